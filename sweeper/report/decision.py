"""Writes the decision section: who won by how much, what changes, warnings, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.analysis.confirmation import Ratio
from sweeper.analysis.decision import later_pace
from sweeper.analysis.finalists import SPEEDS
from sweeper.analysis.formatting import (
    figure,
    interval_of_later,
    joules,
    loss,
    metric,
    seconds,
    tie_line,
    times,
)
from sweeper.analysis.time_to_loss import MAX_SAMPLES
from sweeper.core.job import LOG
from sweeper.core.record import BASELINE
from sweeper.core.workload import is_reported
from sweeper.report.before_after import TITLES, limits_in_words, value_at
from sweeper.report.report_data import ReportData
from sweeper.report.table import Cell, Table, cells, columns


@dataclass(frozen=True, slots=True)
class Fact:
    """A headline figure such as `50 ms`, with a remark such as its earlier value."""

    title: str
    value: str
    note: str = ""


def headline(m: ReportData) -> str:
    """Returns the decision in one sentence."""
    found = m.decision
    if found.baseline is None:
        first = m.sweep.table.records.get(BASELINE)
        failure = first.failure if first else None
        return (
            f"The baseline did not run ({failure.kind})." if failure else "The baseline is not measured yet."
        )
    if found.best is None:
        others = [r for r in m.ended if r.number != found.baseline.record.number]
        if not others:
            return "Only the baseline has been measured."
        if not any(r.feasible for r in others):
            return "Nothing but the baseline ran within the limits."
        if found.ratio is not None:
            return (
                f"Undecided: {found.rival} is {times(found.ratio.ratio)} as fast as your baseline "
                f"({_interval(found.ratio)})."
            )
        return "Your baseline is as good as anything that was tried."
    name, speed = found.best.name, times(found.speedup)
    known = "confirmed" if found.is_confirmed else "in a single measurement, unconfirmed"
    goals = m.summary.objectives
    if len(goals) > 1:
        count = len(m.summary.front)
        return (
            f"Of {count} trials on the Pareto front, {name} is picked: "
            f"{speed} as fast as your baseline, {known}."
        )
    if goals and goals[0] not in SPEEDS:
        goal = goals[0]
        values = (metric(goal, value_at(m, each, goal)) for each in (m.baseline, m.best))
        aim = f"{TITLES.get(goal, goal)} from {' to '.join(values)}"
        return f"Trial {name}: {aim}; {speed} as fast as your baseline, {known}."
    if (sooner := m.summary.to_loss) is not None:
        aim = f"{times(sooner.ratio)} as fast to your baseline's loss"
        return f"Trial {name}: {aim}; {speed} as fast as your baseline, {known}."
    missed = "" if m.summary.missed_loss is None else ", but misses its loss"
    return f"Trial {name} is {speed} as fast as your baseline{missed}, {known}."


def facts(m: ReportData) -> Iterator[Fact]:
    """Yields the headline figures."""
    found = m.decision
    base, best = found.baseline, found.best
    if base is None:
        return
    if best is None:
        if base.epoch_seconds is not None:
            yield Fact("per epoch, baseline", seconds(base.epoch_seconds))
        yield Fact("throughput of the baseline", metric("throughput", base.throughput))
        return
    if (sooner := m.summary.to_loss) is not None:
        known = f"{interval_of_later(sooner.low, sooner.high)}, {_count(len(sooner.samples), 'seed')}"
        yield Fact("to your baseline's loss", times(sooner.ratio), known)
    elif m.summary.missed_loss is not None:
        known = f"within {MAX_SAMPLES} times its samples"
        yield Fact("to your baseline's loss", "not reached", known)
    known = _interval(found.ratio) if found.ratio else "one measurement, no interval"
    yield Fact("vs your baseline", times(found.speedup), known)
    later = later_pace(best, found.ratio) if found.ratio else ""
    sure = f"later {later}, " if later else ""
    if base.epoch_seconds is not None and best.epoch_seconds is not None:
        yield Fact("per epoch", seconds(best.epoch_seconds), f"{sure}was {seconds(base.epoch_seconds)}")
    else:
        yield Fact("samples per second", figure(best.throughput), f"{sure}was {figure(base.throughput)}")
    if best.hours is not None and base.hours is not None:
        yield Fact("your production run", seconds(3600 * best.hours), f"was {seconds(3600 * base.hours)}")
        cost, before = m.summary.cost(best.record), m.summary.cost(base.record)
        if cost is not None and before is not None:
            yield Fact("its price", f"{cost:,.3g}", f"was {before:,.3g}")
    if best.record.quality is not None:
        limit = limits_in_words(m).get("val_loss", "no limit")
        yield Fact(
            "loss" if best.record.quality.of == "validation" else "training loss",
            loss(best.loss),
            f"was {loss(base.loss)}, {limit}",
        )


def _interval(ratio: Ratio) -> str:
    rounds = _count(len(ratio.rounds), "round")
    # With a single round the upper end is infinite, which is null in a file.
    if not ratio.high or not math.isfinite(ratio.high):
        return f"{rounds}: too few for an interval"
    return f"{interval_of_later(ratio.low, ratio.high)}, {rounds}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def costs(m: ReportData) -> Iterator[Fact]:
    """Yields the cost of the sweep, and when it pays for itself."""
    cost = m.cost
    if not cost.processes:
        return
    yield Fact("the sweep took", seconds(cost.seconds), f"{cost.processes:,} processes")
    yield Fact("GPU energy", "not measured" if cost.joules is None else joules(cost.joules))
    base, best = m.decision.baseline, m.decision.best
    if base is None or best is None:
        return
    if not best.throughput > base.throughput > 0:
        yield Fact("pays for itself", "never: the winner is no faster")
        return
    # After training for this long, the winner has saved as much time as the sweep took.
    until = cost.seconds / (best.throughput / base.throughput - 1)
    epoch = best.epoch_seconds
    epochs = f", {_count(math.ceil(until / epoch) or 1, 'epoch')}" if epoch else ""
    yield Fact("pays for itself after", seconds(until), f"of training with it{epochs}")
    if m.decision.break_even is not None:
        rival, steps = m.decision.break_even
        word = "never" if math.isinf(steps) else f"from optimiser step {steps:,.0f} on"
        yield Fact("compiling pays off", word, f"compared with eager trial {rival}")
    if best.hours is not None and base.hours is not None and base.hours > best.hours:
        yield Fact("saved per production run", seconds(3600 * (base.hours - best.hours)))


def warnings(m: ReportData) -> Iterator[str]:
    """Yields what a reader must know before relying on the decision."""
    summary, found = m.summary, m.decision
    first = m.sweep.table.records.get(BASELINE)
    if first is not None and first.failure is not None:
        yield f"The baseline failed: {first.failure.message}. Its output is in {Path(first.folder) / LOG}."
    if summary.synthetic:
        yield "The data is synthetic: speeds are real, but losses mean nothing outside this sweep."
    if summary.state == "stopped":
        yield "The sweep was stopped; `sweeper run` with the same YAML continues it."
    if summary.state == "unfinished":
        yield "The sweep is unfinished; `sweeper run` with the same YAML continues it."
    if found.kind == "unconfirmed":
        yield "Nothing is confirmed: a single measurement may be luck."
    if found.tied:
        yield tie_line(found.tied)
    for title, side in (("baseline", found.baseline), (m.best_word, found.best)):
        if side is not None and side.disturbance:
            yield f"Timings stayed disturbed ({title}): {side.disturbance}."
    if found.best is not None and found.best.record.quality is None:
        yield "The loss was not compared: the winner may train worse than your baseline."
    if summary.yardstick is not None and not summary.yardstick.loss_is_informative:
        yield "The loss cannot tell configurations apart here: a constant predictor does as well."
    if found.best is not None and is_reported(found.best.record.measurement):
        yield f"The speeds are as reported by {found.best.reported_by}."
    if summary.unfit:
        yield f"Faster, but beyond a limit in confirmation: {', '.join(summary.unfit)}."


def verdicts(m: ReportData) -> Table | None:
    """Returns what limits the baseline, what limits the best trial now, and what to change next."""
    pairs = [("your baseline", m.decision.baseline), (m.best_word, m.decision.best)]
    rows = [
        cells(title, Cell(verdict.kind.value), verdict.why, verdict.next or None)
        for title, side in pairs
        if side is not None and (verdict := side.verdict) is not None
    ]
    if not rows:
        return None
    return Table(caption="What limits it", columns=columns("", "verdict", "~why", "~next"), rows=tuple(rows))


def commands(m: ReportData) -> Iterator[tuple[str, str]]:
    """Yields what to do next, and the command that does it."""
    folder = m.sweep.journal.folder
    home = folder.parents[1]
    name = m.sweep.journal.name + (
        "" if home == Path("mlruns").resolve() else f" --home {shlex.quote(str(home))}"
    )
    if m.best is not None:
        if not m.confirmed and m.summary.state != "finished":
            yield "continue and confirm it", "sweeper run SPACE.yaml"
        exported = "" if m.confirmed else f" --trial {m.best.number}"
        yield "export its configuration", f"sweeper export {name}{exported}"
        yield "train with it", f"sweeper train {shlex.quote(str(folder / 'best.yaml'))}"
        if m.confirmed:
            yield "measure it again", f"sweeper confirm {name}"
    elif m.summary.state == "finished":
        yield "search further", "sweeper run SPACE.yaml --extend 20"
    else:
        yield "continue", "sweeper run SPACE.yaml"
    yield "show all trials", f"sweeper show {name}"
