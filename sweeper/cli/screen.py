"""What a person sees: live progress on a terminal, plain lines in a file, the summary at the end."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeper.analysis.confirmation import TIE
from sweeper.analysis.pareto import RULES
from sweeper.analysis.summary import Row, Summary
from sweeper.analysis.words import figure, loss, seconds, times
from sweeper.core.record import METRICS, TrialRecord
from sweeper.sweep.observer import Status

MOST_SHOWN = 3
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
        self._out.print(Text(text), soft_wrap=True)

    def live(self, text: str) -> None:
        """Brings the live line up to date."""
        if self._live:
            self._live.update(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))


class Screen(LiveScreen):
    """Watches a sweep for a person."""

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        """Prints one line about a trial that has ended."""
        self.line(trial_line(record, name, x_baseline))

    def status(self, status: Status) -> None:
        """Shows where the sweep stands."""
        self.live(status_line(status))


def trial_line(record: TrialRecord, name: str, x_baseline: float | None) -> str:
    """Returns one line about a trial that has ended."""
    if record.failure is not None:
        return f"  {name:<38} {record.failure.kind}: {record.failure.message}"
    parts = [
        f"{rate(record.metric('throughput')):>14}",
        f"{times(x_baseline):>7}",
    ]
    if (epoch := record.metric("epoch_seconds")) is not None:
        parts.insert(1, f"{seconds(epoch):>10} an epoch")
    if record.quality is not None:
        parts.append(f"loss {loss(record.quality.val_loss)}")
        # The first of them is the one to look at; `--trial N` has them all.
        parts += [f"{name} {figure(value)}" for name, value in list(record.quality.metrics.items())[:1]]
    if record.verdict is not None:
        parts.append(record.verdict.kind.value)
    if record.measurement is not None and record.measurement.contamination:
        parts.append(f"disturbed ({', '.join(record.measurement.contamination)})")
    over = [name for name, amount in record.violations.items() if amount > 0]
    if over:
        parts.append(f"beyond the limit on {', '.join(over)}")
    return f"  {name:<38} {'  '.join(parts)}"


def status_line(status: Status) -> str:
    """Returns where a sweep stands, in one line."""
    parts = [status.phase]
    if status.total:
        parts.append(f"{status.done} of {status.total}")
    if status.best_ratio is not None:
        parts.append(f"best so far {times(status.best_ratio)} baseline ({status.best})")
    if status.running:
        more = f" and {len(status.running) - MOST_SHOWN} more" if len(status.running) > MOST_SHOWN else ""
        parts.append(f"running {', '.join(status.running[:MOST_SHOWN])}{more}")
    if status.seconds_left is not None:
        parts.append(f"{seconds(max(0.0, status.seconds_left))} left")
    return " · ".join(parts)


def print_summary(
    out: Console, summary: Summary, home_option: str, matters: Sequence[Table | Text] = ()
) -> None:
    """Prints what a tired person needs to know.

    Args:
        matters: What else is to be shown between the results and how to go on.
    """
    out.print()
    for line in decision(summary):
        out.print(Text(line), soft_wrap=True)
    base = summary.yardstick
    if base is not None:
        out.print()
        out.print(_table("Best of each model size", summary.per_size, base.baseline))
        if len(summary.per_loader) > 1:
            out.print(_table("Best of each loader kind", summary.per_loader, base.baseline))
        if summary.front:
            out.print(_front_table(summary))
    counted = ", ".join(f"{count} {kind}" for kind, count in summary.counts.items())
    out.print(Text(f"Searched trials: {counted or 'none'}. Ran on {summary.device}."), soft_wrap=True)
    if summary.synthetic:
        out.print("The data was made up: the speeds are this machine's, the losses mean nothing outside.")
    for each in matters:
        out.print(each, soft_wrap=isinstance(each, Text))
    out.print()
    for line in next_lines(summary, home_option):
        out.print(Text(line), soft_wrap=True)


def decision(summary: Summary) -> list[str]:
    """Returns the decision: winner, interval, loss; or why there is none."""
    base = summary.yardstick
    if base is None:
        return [f"{summary.name}: {summary.state}; the baseline has not been measured."]
    if summary.state == "unfinished":
        return [f"{summary.name} is unfinished; `sweeper run` with the same YAML continues it."]
    winner, ratio = summary.winner, summary.ratio
    stopped = ["  It was stopped: `sweeper run` with the same YAML continues it."] * (
        summary.state == "stopped"
    )
    if winner is None or ratio is None:
        faster = [row for row in summary.per_loader if (row.x_baseline or 0.0) > 1 and not row.confirmed]
        if faster and not summary.baseline_throughput:
            best = max(faster, key=lambda row: row.throughput)
            return [
                f"{summary.name}: {best.name} is {times(best.x_baseline)} your baseline in a single trial, "
                f"unconfirmed; {summary.reason}.",
                *stopped,
                *why_lines(summary, best.record),
            ]
        if summary.undecided and math.log(summary.undecided[1].ratio) > TIE:
            name, tried = summary.undecided
            return [
                f"{summary.name}: no winner is confirmed: {name} is {tried.ratio:.3g}x your baseline, but "
                f"with a 95 % interval of {tried.low:.3g} to {tried.high:.3g} after {len(tried.rounds)} "
                f"rounds; {summary.reason}.",
                *stopped,
                *why_lines(summary, None),
            ]
        return [
            f"{summary.name}: nothing is better than your baseline "
            f"({_pace(summary, base.baseline)}); {summary.reason}.",
            *stopped,
            *why_lines(summary, None),
        ]
    lines = [
        f"{summary.name}: {ratio.ratio:.3g}x your baseline, confirmed "
        f"(95 % interval {ratio.low:.3g} to {ratio.high:.3g}, {len(ratio.rounds)} rounds).",
        *stopped,
        f"  {_pace(summary, winner)} in place of {_pace(summary, base.baseline)}"
        f"{_data_share(winner, base.baseline)}.",
    ]
    if summary.tied:
        lines.append(f"  A tie: no telling it from {', '.join(summary.tied)}; it is the simpler one.")
    if winner.measurement and winner.measurement.told_by:
        lines.append(f"  The speeds are what {winner.measurement.told_by} said.")
        if winner.quality is None:
            lines.append("  The loss was not looked at: see `constraints` and what the script reports.")
    if winner.quality is not None and base.losses:
        mean = sum(base.losses) / len(base.losses)
        what = "Loss" if winner.quality.of == "validation" else "Training loss"
        lines.append(
            f"  {what} after the same {winner.quality.samples:,} samples: {loss(winner.quality.val_loss)}, "
            f"the baseline's {loss(mean)}"
            + (
                f" (predicting a constant: {loss(base.constant_loss)})."
                if base.constant_loss is not None
                else "."
            )
        )
    hours, before = summary.projected_hours(winner), summary.projected_hours(base.baseline)
    if hours is not None and before is not None:
        lines.append(f"  Your production run: {hours:.3g} h in place of {before:.3g} h.")
    if (paid := summary.break_even(winner)) is not None:
        lines.append(f"  {_paid_line(winner, *paid)}")
    if not base.loss_tells:
        lines.append("  The loss cannot tell configurations apart here: a constant predictor does as well.")
    if not stopped:
        lines.append(f"  The search ended because {summary.reason}.")
    lines += [f"  {line}" for line in why_lines(summary, winner)]
    return lines


def _pace(summary: Summary, record: TrialRecord) -> str:
    """`12.3 s an epoch`, or samples per second where nobody knows how many an epoch has."""
    epoch = summary.epoch_seconds(record)
    return f"{seconds(epoch)} an epoch" if epoch is not None else rate(summary.throughput_of(record))


def _data_share(winner: TrialRecord, baseline: TrialRecord) -> str:
    share, before = winner.metric("data_pct"), baseline.metric("data_pct")
    if share is None or before is None:
        return ""
    return f"; {share:.2g} % of a step goes to loading data (baseline {before:.2g} %)"


def _paid_line(winner: TrialRecord, rival: TrialRecord, steps: float) -> str:
    compiled = f"Compiling (`{winner.config.compile.mode}`)"
    against = f"against trial {rival.number}, which is eager"
    if math.isinf(steps):
        return f"{compiled} never pays {against}."
    return f"{compiled} has paid for its longer start from optimiser step {steps:,.0f} on, {against}."


def why_lines(summary: Summary, winner: TrialRecord | None) -> list[str]:
    """Returns what limits the baseline, and what limits the winner now; and what was not clean."""
    assert summary.yardstick is not None
    lines = []
    for title, record in (("Your baseline", summary.yardstick.baseline), ("The winner", winner)):
        verdict = record.verdict if record else None
        if record is None or verdict is None:
            continue
        lines.append(f"{title} is {verdict.kind}: {verdict.why}.")
        if verdict.next:
            lines.append(f"  Next: {verdict.next}.")
        if disturbance := summary.disturbance_of(record):
            lines.append(f"  Its timings were disturbed to the end: {disturbance}.")
    return lines


def _table(title: str, rows: tuple[Row, ...], baseline: TrialRecord) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("trial")
    # Of a script it may not be known how many samples an epoch has.
    epochs = any(row.epoch_seconds is not None for row in rows)
    for name in (*["epoch"] * epochs, "samples/s", "x baseline", "loss"):
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
    notes = ["* confirmed by interleaved repeats"] if any(row.confirmed for row in rows) else []
    notes += ["~ disturbed by something else"] if any(row.disturbed for row in rows) else []
    if notes:
        table.caption, table.caption_justify = "  ".join(notes), "left"
    return table


def _front_table(summary: Summary) -> Table:
    table = Table(title="Pareto front", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial")
    for name in summary.objectives:
        table.add_column(f"{name}, {METRICS[name].unit}".removesuffix(", "), justify="right")
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
