"""Prints the summary of a sweep: the decision, its tables, and the next commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sweeper.cli.screen import prose, say
from sweeper.core.metrics import metric_row
from sweeper.core.record import TrialRecord
from sweeper.results import words
from sweeper.results.decision_lines import decision_lines
from sweeper.results.formatting import figure, loss, per_second, seconds, times
from sweeper.results.numbers.pareto import RULES
from sweeper.results.numbers.summary import Row, Summary


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
    out.print()
    for line in decision_lines(summary):
        prose(out, line)
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
        prose(out, words.SYNTHETIC)
    if summary.unknown_metrics:
        names = ", ".join(summary.unknown_metrics)
        prose(out, f"Metrics not shown, because they cannot be imported here: {names}.")
    for part in matters:
        if isinstance(part, str):
            prose(out, part)
        else:
            out.print(part)
            out.print()
    out.print()
    say(out, *next_lines(summary, home_option, look))


def _table(title: str, rows: tuple[Row, ...], summary: Summary, baseline: TrialRecord) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("trial")
    # For a script, the samples per epoch may be unknown.
    epochs = any(row.epoch_seconds is not None for row in rows)
    for name in (*["epoch"] * epochs, "samples/s", "vs baseline", "loss"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.title,
            row.name,
            *[seconds(row.epoch_seconds)] * epochs,
            per_second(row.throughput),
            times(row.speedup) + (" *" if row.confirmed else "  ") + ("~" if row.disturbed else " "),
            loss(row.loss) + ("^" if row.is_one_seed else " "),
        )
    if all(row.record.number != baseline.number for row in rows):
        table.add_row(
            "your baseline",
            "000 baseline",
            *[seconds(summary.epoch_seconds(baseline))] * epochs,
            per_second(summary.throughput_of(baseline)),
            "1x   ",
            loss(summary.value_of(baseline, "val_loss")) + " ",
        )
    if notes := words.marks(rows):
        table.caption, table.caption_justify = "  ".join(notes), "left"
    return table


def _front_table(summary: Summary) -> Table:
    table = Table(title="Pareto front", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial")
    for name in summary.objectives:
        title = f"{name}, {metric_row(name).unit}".removesuffix(", ") + words.of_one_seed(summary, name)
        table.add_column(title, justify="right")
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
