"""Writes the decision section: who won by how much, what changes, warnings, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import LOG
from sweeper.core.record import BASELINE
from sweeper.core.workload import is_reported
from sweeper.report.before_after import limits_in_words
from sweeper.report.report_data import ReportData
from sweeper.report.table import Cell, Table, cells, columns
from sweeper.results import words
from sweeper.results.formatting import count_of, figure, joules, loss, metric, seconds, times
from sweeper.results.numbers.decision import later_pace
from sweeper.results.numbers.time_to_loss import MAX_SAMPLES


@dataclass(frozen=True, slots=True)
class Fact:
    """A headline figure such as `50 ms`, with a remark such as its earlier value."""

    title: str
    value: str
    note: str = ""


def facts(m: ReportData) -> Iterator[Fact]:
    """Yields the headline figures."""
    decision = m.decision
    base, best = decision.baseline, decision.best
    if base is None:
        return
    if best is None:
        if base.epoch_seconds is not None:
            yield Fact("per epoch, baseline", seconds(base.epoch_seconds))
        yield Fact("throughput of the baseline", metric("throughput", base.throughput))
        return
    if (sooner := m.summary.time_to_loss) is not None:
        sure = words.loss_time_interval(sooner)
        yield Fact("to your baseline's loss", times(sooner.ratio), sure)
    elif m.summary.unreached_loss is not None:
        yield Fact("to your baseline's loss", "not reached", f"within {MAX_SAMPLES} times its samples")
    interval = words.later_interval(decision.ratio) if decision.ratio else words.SINGLE
    yield Fact("vs your baseline", times(decision.speedup), interval)
    later = later_pace(best, decision.ratio) if decision.ratio else ""
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
            f"{words.seeds(best)}; was {loss(base.loss)}, {words.seeds(base)}; {limit}",
        )


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
    epochs = f", {count_of(math.ceil(until / epoch) or 1, 'epoch')}" if epoch else ""
    yield Fact("pays for itself after", seconds(until), f"of training with it{epochs}")
    if m.decision.break_even is not None:
        rival, steps = m.decision.break_even
        word = "never" if math.isinf(steps) else f"from optimiser step {steps:,.0f} on"
        yield Fact("compiling pays off", word, f"compared with eager trial {rival}")
    if best.hours is not None and base.hours is not None and base.hours > best.hours:
        yield Fact("saved per production run", seconds(3600 * (base.hours - best.hours)))


def warnings(m: ReportData) -> Iterator[str]:
    """Yields what a reader must know before relying on the decision."""
    summary, decision = m.summary, m.decision
    first = m.sweep.table.records.get(BASELINE)
    if first is not None and first.failure is not None:
        yield f"The baseline failed: {first.failure.message}. Its output is in {Path(first.folder) / LOG}."
    if summary.synthetic:
        yield words.SYNTHETIC
    if goes_on := words.state(summary):
        yield goes_on
    if remedy := words.remedy(decision):
        yield remedy
    if decision.kind == "unconfirmed":
        yield "Nothing is confirmed: a single measurement may be luck."
    if decision.ties:
        yield words.tie_text(decision.ties)
    for whose, side in (("your baseline", decision.baseline), (words.title(decision), decision.best)):
        if side is not None and side.disturbance:
            yield words.disturbance(whose, side.disturbance)
    if decision.best is not None and decision.best.record.quality is None:
        yield words.NOT_COMPARED
    if summary.yardstick is not None and not summary.yardstick.loss_is_informative:
        yield words.CANNOT_TELL
    if decision.best is not None and is_reported(decision.best.record.measurement):
        yield f"The speeds are as reported by {decision.best.reported_by}."
    if summary.infeasible:
        yield f"Faster, but beyond a limit in confirmation: {', '.join(summary.infeasible)}."


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
