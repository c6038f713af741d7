"""Says a sweep's decision in a few lines, for the terminal and the API."""

from __future__ import annotations

import math

from sweeper.core.measurement import Bottleneck
from sweeper.core.record import TrialRecord
from sweeper.core.workload import is_reported
from sweeper.results import words
from sweeper.results.numbers.decision import Decision, Side, decide
from sweeper.results.numbers.summary import Summary

OF_THE_CODE = (Bottleneck.SYNC, Bottleneck.HOST, Bottleneck.CAPACITY)
"""Limits that no change of a tune removes, but only the user."""


def decision_lines(summary: Summary) -> list[str]:
    """Returns the decision: winner, interval and loss, or why there is no winner."""
    decision = decide(summary)
    base, best = decision.baseline, decision.best
    if summary.state == "unfinished":
        return [f"{summary.name}: {words.state(summary)}"]
    # A tune has no rounds to ask for: what it leaves open follows.
    lines = ["" if summary.is_tune else words.remedy(decision), words.state(summary)]
    if base is not None and best is not None and decision.ratio is not None:
        lines += _winner_lines(summary, decision, best, base)
    if summary.state == "finished" and summary.reason:
        lines.append(f"The search ended because {summary.reason}.")
    for whose, side in (("your baseline", base), (words.title(decision), best)):
        first, *others = words.limits(whose, side) or ("",)
        if summary.is_tune and side and side.verdict and side.verdict.kind not in OF_THE_CODE:
            # What its changes can do, a tune has tried.
            others = []
        lines += [first, *(f"  {line}" for line in others)]
        if side is not None and side.disturbance:
            lines.append(words.disturbance(whose, side.disturbance))
    return [f"{summary.name}: {words.headline(summary, decision)}", *(f"  {line}" for line in lines if line)]


def _winner_lines(summary: Summary, decision: Decision, best: Side, base: Side) -> list[str]:
    yardstick = summary.yardstick
    assert yardstick is not None
    lines = [f"{words.paces(best, base, decision.ratio)}{_data_share(best, base)}."]
    if decision.ties:
        lines.append(words.tie_text(decision.ties))
    if is_reported(best.record.measurement):
        lines.append(f"The speeds are as reported by {best.reported_by}.")
        if best.record.quality is None and not summary.is_verified:
            lines.append(words.NOT_COMPARED)
    if best.record.quality is not None and yardstick.losses:
        lines.append(words.losses(best, base, yardstick.constant_loss))
    if summary.unreached_loss is not None:
        lines.append(words.missed_loss(summary.unreached_loss))
    if not yardstick.loss_is_informative:
        lines.append(words.CANNOT_TELL)
    if best.hours is not None and base.hours is not None:
        way = "up" if best.hours > base.hours else "down"
        hours = f"{best.hours:.3g} h, {way} from {base.hours:.3g} h{_assumption(summary, best, base)}"
        lines.append(f"Your production run: {hours}{_prices(summary, best, base)}.")
    if decision.break_even is not None:
        lines.append(_paid_line(best.record, *decision.break_even))
    return lines


def _assumption(summary: Summary, best: Side, base: Side) -> str:
    """Returns what the projection assumes if the winner computes something other than the baseline."""
    if summary.time_to_loss is not None:
        return " (to the loss that the baseline reaches)"
    if summary.unreached_loss is not None:
        return " (for the same number of samples; it needs more)"
    same = best.record.config.quality_key() == base.record.config.quality_key()
    return "" if same else " (for the same number of samples)"


def _prices(summary: Summary, best: Side, base: Side) -> str:
    cost, before = summary.cost(best.record), summary.cost(base.record)
    if cost is None or before is None or summary.price_per_hour is None:
        return ""
    return f"; {cost:,.3g} instead of {before:,.3g} at {summary.price_per_hour:g} per hour"


def _data_share(best: Side, base: Side) -> str:
    if best.data_pct is None or base.data_pct is None:
        return ""
    return f"; {best.data_pct:.2g}% of a step goes to loading data (baseline {base.data_pct:.2g}%)"


def _paid_line(winner: TrialRecord, rival: int, steps: float) -> str:
    compiled = f"Compiling (`{winner.config.compile.mode}`)"
    against = f"compared with eager trial {rival}"
    if math.isinf(steps):
        return f"{compiled} never pays off {against}."
    return f"{compiled} pays off from optimiser step {steps:,.0f} on, {against}."
