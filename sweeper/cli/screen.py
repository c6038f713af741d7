"""The terminal: live progress, lines for files, the summary."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeper.analysis.bottleneck import verdict_on
from sweeper.analysis.decision import Decision, Side, decide
from sweeper.analysis.formatting import figure, interval, loss, seconds, tie_line, times
from sweeper.analysis.pareto import RULES
from sweeper.analysis.summary import Row, Summary
from sweeper.core.metrics import metric_row
from sweeper.core.record import TrialRecord
from sweeper.sweep.observer import Status

STDOUT = Path("-")
"""As a file to write to."""

WIDE = 100
"""Columns from which on a line has room for everything."""
MAX_SHOWN = 3
"""Trials that run, by name; of more, the number is enough."""


class _Console(Console):
    """Goes on in silence when the reader of its output has gone: a sweep does not end for that."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Returns the console all commands print to; a file gets plain lines, not cut."""
    # A terminal that does not know how wide it is says 0.
    width = None if os.environ.get("COLUMNS", "").strip() != "0" else 80
    made = _Console(highlight=False, soft_wrap=False, width=width)
    return made if made.is_terminal else _Console(highlight=False, width=120)


def columns(out: Console) -> int | None:
    """Returns the width of a terminal; None for a file, whose lines may be of any length."""
    return out.width if out.is_terminal else None


def wrapped(text: str, width: int | None) -> str:
    """Returns a line broken between words, with what follows indented; None: of any length."""
    if width is None or len(text) <= width:
        return text
    margin = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def prose(out: Console, text: str) -> None:
    """Prints a line of words so that it fits a terminal."""
    out.print(Text(wrapped(text, columns(out))), soft_wrap=True)


def rate(value: float | None) -> str:
    """Returns samples per second with thousands separated."""
    return "–" if value is None else f"{value:,.0f}/s"


class LiveScreen:
    """Lines that stay, and below them on a terminal one that is brought up to date."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None

    def __enter__(self) -> Self:
        """Begins the live line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the live line."""
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Prints one line."""
        prose(self._out, text)

    def live(self, text: str) -> None:
        """Brings the live line up to date."""
        if self._live:
            self._live.update(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))


class Screen(LiveScreen):
    """Watches a sweep for a person."""

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        """Prints one line about a trial that has ended."""
        self._out.print(Text(trial_line(record, name, x_baseline, columns(self._out))), soft_wrap=True)

    def status(self, status: Status) -> None:
        """Shows where the sweep stands."""
        self.live(status_line(status))


def trial_line(
    record: TrialRecord,
    name: str,
    x_baseline: float | None,
    width: int | None = None,
    equal: Collection[str] = (),
) -> str:
    """Returns one line about a trial that has ended.

    Args:
        width: Columns of the terminal; what matters least is left out until the line fits. None for
            a line with everything in it.
        equal: Metrics that are equal in all trials and are left out.
    """
    is_wide = width is None or width >= WIDE
    head = f"  {name:<{38 if is_wide else 30}} "
    if record.failure is not None:
        return wrapped(f"{head}{record.failure.kind}: {record.failure.message}", width)
    # What the line says, each with its rank: the highest goes first.
    parts = [(0, f"{rate(record.metric('throughput')):>{14 if is_wide else 11}}")]
    if (epoch := record.metric("epoch_seconds")) is not None:
        parts.append((4, f"{seconds(epoch):>10} per epoch"))
    reasons = record.measurement.contamination if record.measurement is not None else ()
    mark = "~" if reasons else " "
    parts.append((0, f"{times(x_baseline):>{7 if is_wide else 6}}{mark}"))
    if record.quality is not None:
        parts.append((2, f"loss {loss(record.quality.val_loss):<6}"))
        # The first of them is the one to look at; `--trial N` has them all.
        first = [(name, value) for name, value in record.quality.metrics.items() if name not in equal][:1]
        parts += [(3, f"{name} {figure(value)}") for name, value in first]
    if (verdict := verdict_on(record)) is not None:
        parts.append((1, verdict.kind.value))
    if reasons and is_wide:
        parts.append((5, f"disturbed ({', '.join(reasons)})"))
    over = [name for name, amount in record.violations.items() if amount > 0]
    if over:
        parts.append((1, f"beyond the limit on {', '.join(over)}"))
    while (
        width is not None and len(_joined(head, parts)) > width and (rank := max(rank for rank, _ in parts))
    ):
        parts = [part for part in parts if part[0] != rank]
    line = _joined(head, parts)
    # A long name leaves no room for columns.
    return line if width is None or len(line) <= width else f"  {' '.join(line.split())}"


def _joined(head: str, parts: Sequence[tuple[int, str]]) -> str:
    return (head + "  ".join(text for _, text in parts)).rstrip()


def status_line(status: Status) -> str:
    """Returns where a sweep stands, in one line."""
    parts = [status.phase]
    if status.total:
        parts.append(f"{status.done} of {status.total}")
    if status.best_ratio is not None:
        parts.append(f"best so far {times(status.best_ratio)} vs baseline ({status.best})")
    if status.running:
        more = f" and {len(status.running) - MAX_SHOWN} more" if len(status.running) > MAX_SHOWN else ""
        parts.append(f"running {', '.join(status.running[:MAX_SHOWN])}{more}")
    if status.seconds_left is not None:
        parts.append(f"{seconds(max(0.0, status.seconds_left))} left")
    return " · ".join(parts)


def print_summary(
    out: Console, summary: Summary, home_option: str, matters: Sequence[Table | str] = ()
) -> None:
    """Prints what a tired person needs to know.

    Args:
        matters: What else is to be shown between the results and how to go on.
    """
    out.print()
    for line in decision(summary):
        prose(out, line)
    base = summary.yardstick
    if base is not None:
        out.print()
        out.print(_table("Best of each model size", summary.per_size, base.baseline))
        if len(summary.per_loader) > 1:
            out.print()
            out.print(_table("Best of each loader kind", summary.per_loader, base.baseline))
        if summary.front:
            out.print()
            out.print(_front_table(summary))
        out.print()
    counted = ", ".join(f"{count} {kind}" for kind, count in summary.counts.items())
    prose(out, f"Searched trials: {counted or 'none'}. Ran on {summary.device}.")
    if summary.synthetic:
        prose(out, "The data is synthetic: speeds are real, losses mean nothing outside of this sweep.")
    if summary.unknown_metrics:
        names = ", ".join(summary.unknown_metrics)
        prose(out, f"Not installed here, so not shown: {names}.")
    for each in matters:
        if isinstance(each, str):
            prose(out, each)
        else:
            out.print(each)
            out.print()
    out.print()
    for line in next_lines(summary, home_option):
        out.print(Text(line), soft_wrap=True)


def decision(summary: Summary) -> list[str]:
    """Returns the decision: winner, interval, loss; or why there is none."""
    found = decide(summary)
    base, best, ratio = found.baseline, found.best, found.ratio
    if base is None:
        return [f"{summary.name}: {summary.state}; the baseline has not been measured."]
    if summary.state == "unfinished":
        return [f"{summary.name} is unfinished; `sweeper run` with the same YAML continues it."]
    stopped = ["  It was stopped: `sweeper run` with the same YAML continues it."] * (
        summary.state == "stopped"
    )
    if best is None or ratio is None:
        return [
            f"{summary.name}: {_undecided(found)}; {summary.reason}.",
            *stopped,
            *why_lines(found),
        ]
    lines = [
        f"{summary.name}: {ratio.ratio:.3g}x your baseline, confirmed "
        f"(95% interval {interval(ratio.low, ratio.high)}, {len(ratio.rounds)} rounds).",
        *stopped,
        f"  {_pace(best)}, down from {_pace(base)}{_data_share(best, base)}."
        if best.epoch_seconds is not None
        else f"  {_pace(best)}, up from {_pace(base)}{_data_share(best, base)}.",
    ]
    if found.tied:
        lines.append(f"  {tie_line(found.tied)}")
    if best.reported_by:
        lines.append(f"  The speeds are as reported by {best.reported_by}.")
        if best.record.quality is None:
            lines.append(
                "  The loss was not compared. To compare it, let the script report one and add a constraint."
            )
    lines += _loss_lines(summary, best, base)
    if best.hours is not None and base.hours is not None:
        lines.append(f"  Your production run: {best.hours:.3g} h, down from {base.hours:.3g} h.")
    if found.break_even is not None:
        lines.append(f"  {_paid_line(best.record, *found.break_even)}")
    if not stopped:
        lines.append(f"  The search ended because {summary.reason}.")
    lines += [f"  {line}" for line in why_lines(found)]
    return lines


def _undecided(found: Decision) -> str:
    """Why there is no confirmed winner."""
    assert found.baseline is not None
    if found.best is not None:
        return f"{found.best.name} is {times(found.speedup)} your baseline in a single trial, unconfirmed"
    if found.ratio is not None:
        tried = found.ratio
        return (
            f"no winner is confirmed: {found.rival} is {tried.ratio:.3g}x your baseline, but its "
            f"95% interval is {interval(tried.low, tried.high)} after {len(tried.rounds)} rounds"
        )
    return f"nothing is better than your baseline ({_pace(found.baseline)})"


def _loss_lines(summary: Summary, best: Side, base: Side) -> list[str]:
    lines, quality, yardstick = [], best.record.quality, summary.yardstick
    assert yardstick is not None
    if quality is not None and yardstick.losses:
        what = "Loss" if quality.of == "validation" else "Training loss"
        constant = yardstick.constant_loss
        lines.append(
            f"  {what} after the same {quality.samples:,} samples: {loss(best.loss)}, "
            f"the baseline's {loss(base.loss)}"
            + (f" (predicting a constant: {loss(constant)})." if constant is not None else ".")
        )
    if not yardstick.loss_is_informative:
        lines.append("  The loss cannot tell configurations apart here: a constant predictor does as well.")
    return lines


def _pace(side: Side) -> str:
    """`12.3 s per epoch`, or samples per second if the number of samples per epoch is unknown."""
    epoch = side.epoch_seconds
    return f"{seconds(epoch)} per epoch" if epoch is not None else rate(side.throughput)


def _data_share(best: Side, base: Side) -> str:
    if best.data_pct is None or base.data_pct is None:
        return ""
    return f"; {best.data_pct:.2g}% of a step goes to loading data (baseline {base.data_pct:.2g}%)"


def _paid_line(winner: TrialRecord, rival: int, steps: float) -> str:
    compiled = f"Compiling (`{winner.config.compile.mode}`)"
    against = f"against trial {rival}, which is eager"
    if math.isinf(steps):
        return f"{compiled} never pays off {against}."
    return f"{compiled} pays off from optimiser step {steps:,.0f} on, {against}."


def why_lines(found: Decision) -> list[str]:
    """Returns what limits the baseline, and what limits the trial to use; and what was not clean."""
    lines = []
    for title, side in (("Your baseline", found.baseline), ("The winner", found.best)):
        if side is None or side.verdict is None:
            continue
        lines.append(f"{title} is {side.verdict.kind}: {side.verdict.why}.")
        if side.verdict.next:
            lines.append(f"  Next: {side.verdict.next}.")
        if side.disturbance:
            lines.append(f"  Its timings were disturbed until the end: {side.disturbance}.")
    return lines


def _table(title: str, rows: tuple[Row, ...], baseline: TrialRecord) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("trial")
    # Of a script it may not be known how many samples an epoch has.
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
            *[seconds(baseline.metric("epoch_seconds"))] * epochs,
            rate(baseline.metric("throughput")).removesuffix("/s"),
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


def next_lines(summary: Summary, home_option: str) -> list[str]:
    """Returns the commands to go on with."""
    name = f"{summary.name}{home_option}"
    lines = [f"Look:    sweeper ui {name}", f"Details: sweeper show {name}"]
    if summary.winner is not None:
        lines.append(f"Use it:  sweeper export {name}")
    return lines
