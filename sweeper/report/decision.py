"""The decision: who won by how much, what changes, what it costs, what to mind, what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.analysis.finalists import SPEEDS
from sweeper.analysis.words import figure, joules, loss, metric, seconds, times
from sweeper.core.job import LOG
from sweeper.core.record import BASELINE
from sweeper.report.beside import TITLES, baseline_loss, limits_in_words, value_at
from sweeper.report.material import Material
from sweeper.report.table import Cell, Table, cells, columns


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure to see from afar: `50 ms`, with what it was before."""

    title: str
    value: str
    beside: str = ""


def headline(m: Material) -> str:
    """Returns the decision in one sentence."""
    ratio = m.summary.ratio
    if m.baseline is None:
        first = m.sweep.table.records.get(BASELINE)
        failure = first.failure if first else None
        return (
            f"The baseline did not run ({failure.kind})." if failure else "The baseline is not measured yet."
        )
    if m.best is None:
        others = [r for r in m.ended if r.number != m.baseline.number]
        if not others:
            return "Only the baseline has been measured."
        if not any(r.feasible for r in others):
            return "Nothing but the baseline ran within the limits."
        return "Your baseline is as good as anything that was tried."
    name = m.sweep.name_of(m.best)
    speed = times(ratio.ratio if m.confirmed and ratio else m.sweep.table.x_baseline(m.best))
    known = "confirmed" if m.confirmed else "in a single measurement, unconfirmed"
    goals = m.summary.objectives
    if len(goals) > 1:
        count = len(m.summary.front)
        return (
            f"Of {count} trials that none beats, {name} is picked: {speed} as fast as your baseline, {known}."
        )
    if goals and goals[0] not in SPEEDS:
        goal = goals[0]
        values = (metric(goal, value_at(m, each, goal)) for each in (m.baseline, m.best))
        aim = f"{TITLES.get(goal, goal)} from {' to '.join(values)}"
        return f"Trial {name}: {aim}; its speed, {speed}, is {known}."
    return f"Trial {name} is {speed} as fast as your baseline, {known}."


def facts(m: Material) -> Iterator[Fact]:
    """Yields the figures to see from afar."""
    base, best, ratio = m.baseline, m.best, m.summary.ratio
    if base is None:
        return
    if best is None:
        epoch = m.summary.epoch_seconds(base)
        if epoch is not None:
            yield Fact("an epoch of the baseline", seconds(epoch))
        yield Fact("throughput of the baseline", metric("throughput", m.summary.throughput_of(base)))
        return
    if m.confirmed and ratio is not None:
        yield Fact("against your baseline", times(ratio.ratio), _interval(m))
    else:
        yield Fact(
            "against your baseline", times(m.sweep.table.x_baseline(best)), "one measurement, no interval"
        )
    before, after = m.summary.epoch_seconds(base), m.summary.epoch_seconds(best)
    if before is not None and after is not None:
        yield Fact("an epoch", seconds(after), f"before {seconds(before)}")
    else:
        after, before = m.summary.throughput_of(best), m.summary.throughput_of(base)
        yield Fact("samples per second", figure(after), f"before {figure(before)}")
    hours, hours_before = (value_at(m, each, "projected_hours") for each in (best, base))
    if hours is not None and hours_before is not None:
        yield Fact("your production run", seconds(3600 * hours), f"before {seconds(3600 * hours_before)}")
    if best.quality is not None:
        limit = limits_in_words(m).get("val_loss", "no limit")
        beside = f"before {loss(baseline_loss(m))}, {limit}"
        yield Fact(
            "loss" if best.quality.of == "validation" else "training loss",
            loss(best.quality.val_loss),
            beside,
        )


def _interval(m: Material) -> str:
    ratio = m.summary.ratio
    assert ratio is not None
    rounds = _count(len(ratio.rounds), "round")
    # Of a single round the upper end is infinite, which a file has as null.
    if not ratio.high or not math.isfinite(ratio.high):
        return f"{rounds}: too few for an interval"
    return f"{ratio.low:.3g} to {ratio.high:.3g} (95 %), {rounds}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def costs(m: Material) -> Iterator[Fact]:
    """Yields what the sweep has cost, and when it has paid for itself."""
    cost = m.cost
    if not cost.processes:
        return
    yield Fact("the sweep took", seconds(cost.seconds), f"{cost.processes:,} processes")
    yield Fact("energy of the GPUs", "not measured" if cost.joules is None else joules(cost.joules))
    if m.baseline is None or m.best is None:
        return
    before, after = m.summary.throughput_of(m.baseline), m.summary.throughput_of(m.best)
    if not after > before > 0:
        yield Fact("paid for itself", "never: it is no faster")
        return
    # With the winner for so long, the baseline would have needed the sweep's time more.
    until = cost.seconds / (after / before - 1)
    epoch = m.summary.epoch_seconds(m.best)
    epochs = f", {_count(math.ceil(until / epoch) or 1, 'epoch')}" if epoch else ""
    yield Fact("paid for itself after", seconds(until), f"of training with it{epochs}")
    if (paid := m.summary.break_even(m.best)) is not None:
        rival, steps = paid
        word = "never" if math.isinf(steps) else f"from optimiser step {steps:,.0f} on"
        yield Fact("compiling pays", word, f"against trial {rival.number}, which is eager")
    one, other = (value_at(m, each, "projected_hours") for each in (m.baseline, m.best))
    if one is not None and other is not None and one > other:
        yield Fact("saved by one production run", seconds(3600 * (one - other)))


def warnings(m: Material) -> Iterator[str]:
    """Yields what a reader must know before relying on the decision."""
    summary, best = m.summary, m.best
    first = m.sweep.table.records.get(BASELINE)
    if first is not None and first.failure is not None:
        yield f"The baseline: {first.failure.message}. Its output is in {Path(first.folder) / LOG}."
    if summary.synthetic:
        yield "The data was made up: the speeds are this machine's, the losses mean nothing outside."
    if summary.state == "stopped":
        yield "The sweep was stopped; `sweeper run` with the same YAML continues it."
    if summary.state == "unfinished":
        yield "The sweep is unfinished; `sweeper run` with the same YAML continues it."
    if best is not None and not m.confirmed:
        yield "Nothing is confirmed: one measurement may have been lucky."
    if best is not None and m.confirmed and summary.tied:
        yield f"A tie: no telling it from {', '.join(summary.tied)}; it is the simpler one."
    for title, record in (("baseline", m.baseline), (m.best_word, best)):
        if record is not None and (disturbance := summary.disturbance_of(record)):
            yield f"Timings of the {title} were disturbed to the end: {disturbance}."
    if best is not None and best.quality is None:
        yield "The loss was not looked at: the winner may train worse than your baseline."
    if summary.yardstick is not None and not summary.yardstick.loss_tells:
        yield "The loss cannot tell configurations apart here: a constant predictor does as well."
    if best is not None and best.measurement is not None and best.measurement.told_by:
        yield f"The speeds are what {best.measurement.told_by} said."
    unfit = (m.sweep.result or {}).get("unfit", ())
    if names := [m.sweep.name_of(m.sweep.table.records[n]) for n in unfit if n in m.sweep.table.records]:
        yield f"Faster, yet beyond a limit when it was confirmed: {', '.join(names)}."


def verdicts(m: Material) -> Table | None:
    """Returns what limits the baseline, what limits the best trial now, and what to change next."""
    pairs = [("your baseline", m.baseline), (m.best_word, m.best)]
    rows = [
        cells(title, Cell(verdict.kind.value), verdict.why, verdict.next or None)
        for title, record in pairs
        if record is not None and (verdict := record.verdict) is not None
    ]
    if not rows:
        return None
    return Table(caption="What limits it", columns=columns("", "verdict", "~why", "~next"), rows=tuple(rows))


def commands(m: Material) -> Iterator[tuple[str, str]]:
    """Yields what to do next, and the command that does it."""
    folder = m.sweep.journal.folder
    home = folder.parents[1]
    name = m.sweep.journal.name + (
        "" if home == Path("mlruns").resolve() else f" --home {shlex.quote(str(home))}"
    )
    if m.best is not None:
        if not m.confirmed and m.summary.state != "finished":
            yield "go on, and confirm it", "sweeper run SPACE.yaml"
        exported = "" if m.confirmed else f" --trial {m.best.number}"
        yield "write its configuration", f"sweeper export {name}{exported}"
        yield "train with it", f"sweeper train {shlex.quote(str(folder / 'best.yaml'))}"
        if m.confirmed:
            yield "measure it once more", f"sweeper confirm {name}"
    elif m.summary.state == "finished":
        yield "search further", "sweeper run SPACE.yaml --extend 20"
    else:
        yield "go on", "sweeper run SPACE.yaml"
    yield "see all trials", f"sweeper show {name}"
