"""Prints the summary of a sweep: the decision, its tables, and the next commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeper.analysis.bottleneck import is_unexamined
from sweeper.analysis.confirmation import MIN_ROUNDS, Ratio
from sweeper.analysis.decision import Decision, Side, decide, later_pace
from sweeper.analysis.finalists import SPEEDS
from sweeper.analysis.formatting import (
    figure,
    interval,
    interval_of_later,
    loss,
    metric,
    seconds,
    tie_line,
    times,
)
from sweeper.analysis.pareto import RULES
from sweeper.analysis.summary import Row, Summary
from sweeper.analysis.time_to_loss import MAX_SAMPLES, TimeToLoss
from sweeper.cli.screen import prose, rate
from sweeper.core.metrics import metric_row
from sweeper.core.record import TrialRecord
from sweeper.core.workload import is_reported

LOSS_HINT = (
    "  The loss was not compared. To compare it, add"
    " `constraints: {val_loss: {max_ratio_to_baseline: 1.02}}`."
)


def print_summary(
    out: Console,
    summary: Summary,
    home_option: str,
    matters: Sequence[Table | str] = (),
    look: str = "",
) -> None:
    """Prints the decision, the best trials and the next commands.

    Args:
        matters: More to print between the results and the next commands.
        look: The command that shows the sweep in MLflow; with the home's database by default.
    """
    print_decision(out, summary)
    base = summary.yardstick
    if base is not None:
        out.print()
        out.print(_table("Best of each model size", summary.per_size, summary, base.baseline))
        if len(summary.per_loader) > 1:
            out.print()
            out.print(_table("Best of each loader kind", summary.per_loader, summary, base.baseline))
        if summary.front:
            out.print()
            out.print(_front_table(summary))
        out.print()
    counted = ", ".join(f"{count} {kind}" for kind, count in summary.counts.items())
    prose(out, f"Searched trials: {counted or 'none'}. Ran on {summary.device}.")
    if summary.synthetic:
        prose(out, "The data is synthetic: speeds are real, but losses mean nothing outside this sweep.")
    if summary.unknown_metrics:
        names = ", ".join(summary.unknown_metrics)
        prose(out, f"Metrics not shown, because they cannot be imported here: {names}.")
    for each in matters:
        if isinstance(each, str):
            prose(out, each)
        else:
            out.print(each)
            out.print()
    out.print()
    for line in next_lines(summary, home_option, look):
        out.print(Text(line), soft_wrap=True)


def print_decision(out: Console, summary: Summary, *, is_proved: bool = False) -> None:
    """Prints the decision alone.

    Args:
        is_proved: Whether everything searched is proved to train the same, so that the loss need not be
            compared.
    """
    out.print()
    for line in decision(summary):
        if line != LOSS_HINT or not is_proved:
            prose(out, line)


def decision(summary: Summary) -> list[str]:
    """Returns the decision: winner, interval and loss, or why there is no winner."""
    found = decide(summary)
    base, best, ratio = found.baseline, found.best, found.ratio
    if base is None:
        return [f"{summary.name}: {summary.state}; the baseline has not been measured."]
    if summary.state == "unfinished":
        return [f"{summary.name} is unfinished; `sweeper run` with the same YAML continues it."]
    stopped = ["  It was stopped; `sweeper run` with the same YAML continues it."] * (
        summary.state == "stopped"
    )
    if best is None or ratio is None:
        return [
            f"{summary.name}: {_undecided(found, summary.counts)}; {summary.reason}.",
            *stopped,
            *why_lines(found),
        ]
    speed = (
        f"{ratio.ratio:.3g}x your baseline, confirmed "
        f"({interval_of_later(ratio.low, ratio.high)}, {len(ratio.rounds)} rounds)."
    )
    sooner = _sooner(summary.to_loss) if summary.to_loss is not None else _aim(summary, best, base)
    lines = [
        f"{summary.name}: {sooner or speed}",
        *([f"  Samples per second: {speed}"] * bool(sooner)),
        *stopped,
        f"  {_pace(best)}{_later(best, ratio)}, {_way(best, base)} from {_pace(base)}"
        f"{_data_share(best, base)}.",
    ]
    if found.tied:
        lines.append(f"  {tie_line(found.tied)}")
    if is_reported(best.record.measurement):
        lines.append(f"  The speeds are as reported by {best.reported_by}.")
        if best.record.quality is None:
            lines.append(LOSS_HINT)
    lines += _loss_lines(summary, best, base)
    if best.hours is not None and base.hours is not None:
        way = "up" if best.hours > base.hours else "down"
        hours = f"{best.hours:.3g} h, {way} from {base.hours:.3g} h{_assumption(summary)}"
        lines.append(f"  Your production run: {hours}{_prices(summary, best, base)}.")
    if found.break_even is not None:
        lines.append(f"  {_paid_line(best.record, *found.break_even)}")
    if not stopped:
        lines.append(f"  The search ended because {summary.reason}.")
    lines += [f"  {line}" for line in why_lines(found)]
    return lines


def _sooner(found: TimeToLoss) -> str:
    ratio, low, high, how = found.ratio, found.low, found.high, "faster"
    if ratio < 1:
        ratio, low, high, how = 1 / ratio, 1 / high, 1 / low if low else math.inf, "slower"
    return (
        f"{ratio:.3g}x {how} to your baseline's loss of {loss(found.loss)} "
        f"({interval_of_later(low, high)}, {len(found.samples)} seeds)."
    )


def _aim(summary: Summary, best: Side, base: Side) -> str:
    """Returns what the search aimed at, if that is a single objective other than a speed; empty otherwise."""
    goal, *others = summary.objectives or SPEEDS
    if others or goal in SPEEDS:
        return ""
    found, before = (metric(goal, each.record.metric(goal)) for each in (best, base))
    return f"{goal} {found}, baseline {before}, in a single trial each."


def _assumption(summary: Summary) -> str:
    """Returns what the projection assumes if the winner computes something other than the baseline."""
    base = summary.yardstick
    assert base is not None
    assert summary.winner is not None
    if summary.to_loss is not None:
        return ", to the loss that the baseline reaches"
    if summary.missed_loss is not None:
        return ", if it needed as many samples, but it needs more"
    same = summary.winner.config.quality_key() == base.baseline.config.quality_key()
    return "" if same else ", if it needs as many samples"


def _prices(summary: Summary, best: Side, base: Side) -> str:
    cost, before = summary.cost(best.record), summary.cost(base.record)
    if cost is None or before is None or summary.price_per_hour is None:
        return ""
    return f"; {cost:,.3g} instead of {before:,.3g} at {summary.price_per_hour:g} per hour"


def _undecided(found: Decision, counts: Mapping[str, int]) -> str:
    """Returns why there is no confirmed winner; `counts` are trials by outcome."""
    assert found.baseline is not None
    if found.best is not None:
        return f"{found.best.name} is {times(found.speedup)} your baseline in a single trial, unconfirmed"
    if found.ratio is not None:
        tried = found.ratio
        if tried.is_faster_now:
            return (
                f"undecided here: {found.rival} is {tried.ratio:.3g}x your baseline now"
                f" {interval(*tried.now)}, but this machine drifts, and later it may be"
                f" {interval(tried.low, tried.high)}. A quieter machine would settle it (`sweeper doctor`)"
            )
        if len(tried.rounds) < MIN_ROUNDS:
            return (
                f"no winner is confirmed: {found.rival} is {tried.ratio:.3g}x your baseline, but the time was"
                f" up before the {MIN_ROUNDS} rounds that an interval needs"
            )
        return (
            f"no winner is confirmed: {found.rival} is {tried.ratio:.3g}x your baseline, but its "
            f"95% interval is {interval(tried.low, tried.high)} after {len(tried.rounds)} rounds. More"
            " (`confirm.rounds`) or a quieter machine (`sweeper doctor`) would settle it"
        )
    if not counts:
        return f"no trial was compared with your baseline ({_pace(found.baseline)})"
    return f"no trial is better than your baseline ({_pace(found.baseline)})"


def _loss_lines(summary: Summary, best: Side, base: Side) -> list[str]:
    lines, quality, yardstick = [], best.record.quality, summary.yardstick
    assert yardstick is not None
    if quality is not None and yardstick.losses:
        what = "Loss" if quality.of == "validation" else "Training loss"
        constant = yardstick.constant_loss
        lines.append(
            f"  {what} after the same {quality.samples:,} samples: {loss(best.loss)}, "
            f"baseline {loss(base.loss)}"
            + (f" (constant predictor {loss(constant)})." if constant is not None else ".")
        )
    if summary.missed_loss is not None:
        lines.append(
            f"  Within {MAX_SAMPLES} times the samples, it does not reach your baseline's loss of"
            f" {loss(summary.missed_loss)}: it is faster, but learns less from each sample."
        )
    if not yardstick.loss_is_informative:
        lines.append("  The loss cannot tell configurations apart here: a constant predictor does as well.")
    return lines


def _pace(side: Side) -> str:
    """Returns `12.3 s per epoch`, or samples per second if the epoch length is unknown."""
    epoch = side.epoch_seconds
    return f"{seconds(epoch)} per epoch" if epoch is not None else rate(side.throughput)


def _later(side: Side, ratio: Ratio) -> str:
    found = later_pace(side, ratio)
    return f" {found}" if found else ""


def _way(side: Side, other: Side) -> str:
    """Returns the direction in which the pace changed: a goal other than speed may make it slower."""
    pace, others = (
        each.throughput if side.epoch_seconds is None else each.epoch_seconds or 0.0 for each in (side, other)
    )
    return "up" if pace > others else "down"


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


def why_lines(found: Decision) -> list[str]:
    """Returns what limits the baseline and the winner, and what disturbed their timings."""
    lines = []
    for title, side in (("Your baseline", found.baseline), ("The winner", found.best)):
        if side is None or side.verdict is None or is_unexamined(side.record, side.verdict):
            continue
        lines.append(f"{title} is {side.verdict.kind}: {side.verdict.why}.")
        if side.verdict.next:
            lines.append(f"  Next: {side.verdict.next}.")
        if side.disturbance:
            lines.append(f"  Its timings stayed disturbed: {side.disturbance}.")
    return lines


def _table(title: str, rows: tuple[Row, ...], summary: Summary, baseline: TrialRecord) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("trial")
    # For a script, the samples per epoch may be unknown.
    epochs = any(row.epoch_seconds is not None for row in rows)
    for name in (*["epoch"] * epochs, "samples/s", "vs baseline", "loss"):
        table.add_column(name, justify="right")
    for row in rows:
        record = row.record
        table.add_row(
            row.title,
            row.name,
            *[seconds(row.epoch_seconds)] * epochs,
            f"{row.throughput:,.0f}",
            times(row.x_baseline) + (" *" if row.confirmed else "  ") + ("~" if row.disturbed else " "),
            loss(record.metric("val_loss")),
        )
    if all(row.record.number != baseline.number for row in rows):
        table.add_row(
            "your baseline",
            "000 baseline",
            *[seconds(summary.epoch_seconds(baseline))] * epochs,
            f"{summary.throughput_of(baseline):,.0f}",
            "1x   ",
            loss(baseline.metric("val_loss")),
        )
    notes = ["* confirmed in interleaved rounds"] if any(row.confirmed for row in rows) else []
    notes += ["~ disturbed by other processes"] if any(row.disturbed for row in rows) else []
    if notes:
        table.caption, table.caption_justify = "  ".join(notes), "left"
    return table


def _front_table(summary: Summary) -> Table:
    table = Table(title="Pareto front", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial")
    for name in summary.objectives:
        table.add_column(f"{name}, {metric_row(name).unit}".removesuffix(", "), justify="right")
    table.add_column("")
    for row in summary.front:
        values = (row.record.metric(name) for name in summary.objectives)
        picked = summary.picked is not None and row.record.number == summary.picked.number
        table.add_row(
            row.name,
            *("–" if value is None else figure(value) for value in values),
            "◄ picked" if picked else "",
        )
    table.caption, table.caption_justify = f"picked: {RULES[summary.rule]}", "left"
    return table


def next_lines(summary: Summary, home_option: str, look: str = "") -> list[str]:
    """Returns the commands to run next; `look` is the one for MLflow if it is not the usual one."""
    name = f"{summary.name}{home_option}"
    lines = [f"Look:    {look or f'sweeper ui {name}'}", f"Details: sweeper show {name}"]
    if summary.winner is not None:
        lines.append(f"Use it:  sweeper export {name}")
    return lines
