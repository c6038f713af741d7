"""The answer of a tune as something to show: a card for a terminal, as SVG or PNG, and Markdown."""

from __future__ import annotations

import io
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sweeper._version import __version__
from sweeper.core.record import BASELINE
from sweeper.errors import UserError
from sweeper.exports import verification
from sweeper.results.formatting import rate, times
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.words import UNCONFIRMED, later_interval, today_interval
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.system.files import check_out, write_atomic
from sweeper.tuning.handover import command_of
from sweeper.tuning.result import TuneResult
from sweeper.tuning.words import how_it_trains

WIDTH = 84
"""Letters in a line of a card, frame included."""
SVG, PNG = ".svg", ".png"
FILES = (SVG, PNG)
DARK, LIGHT, FAINT, ACCENT = "#15181c", "#e8eaed", "#9aa3ad", "#7bd88f"
POINTS, DPI = 11.0, 144
"""Size of the letters of a PNG, and its dots per inch."""
LETTER, LINE = 0.602, 1.45
"""Width of a letter and height of a line, as multiples of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The answer of a tune.

    Attributes:
        headline: The gain, or that nothing brings more.
        rows: Pairs of a title and a text.
        command: The command of the tune.
    """

    headline: str
    rows: tuple[tuple[str, str], ...]
    command: str

    def panel(self) -> Panel:
        """Returns the card for a terminal."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for title, text in (*self.rows, ("command", self.command)):
            table.add_row(Text(title), Text(text))
        whole = Table.grid()
        whole.add_row(Text(self.headline, style="bold green"))
        whole.add_row(Text(""))
        whole.add_row(table)
        return Panel(whole, padding=(1, 2), expand=False)

    def markdown(self) -> str:
        """Returns the card for the comment of a pull request."""
        rows = "".join(f"| {title} | {text.replace('|', chr(92) + '|')} |\n" for title, text in self.rows)
        return f"### {self.headline}\n\n| `sweeper tune` | |\n|---|---|\n{rows}\n    {self.command}\n"

    def write(self, path: Path) -> None:
        """Writes the card as the picture that the name's suffix asks for.

        Raises:
            EnvironmentStopError: The file cannot be written.
        """
        if path.suffix == SVG:
            screen = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
            screen.print(self.panel())
            write_atomic(path, screen.export_svg(title="sweeper tune"))
        else:
            self._draw(path)

    def _draw(self, path: Path) -> None:
        """Writes the card as PNG."""
        from matplotlib.figure import Figure

        lines = [(self.headline, ACCENT, "bold"), ("", LIGHT, "normal"), *self._lines()]
        wide = max(len(text) for text, *_ in lines) + 6
        width, height = wide * POINTS * LETTER / 72, (len(lines) + 2) * POINTS * LINE / 72
        picture = Figure(figsize=(width, height), facecolor=DARK)
        for number, (text, color, weight) in enumerate(lines, 1):
            picture.text(
                *(3 / wide, 1 - (number + 0.5) / (len(lines) + 2)),
                text,
                color=color,
                weight=weight,
                size=POINTS,
                family="monospace",
                va="center",
                parse_math=False,
            )
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            picture.savefig(temporary, dpi=DPI, facecolor=DARK, format="png")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        """Yields the rows as lines with color and weight."""
        rows = (*self.rows, ("command", self.command))
        indent = max(len(title) for title, _ in rows) + 2
        for title, text in rows:
            for number, line in enumerate(textwrap.wrap(text, WIDTH - indent) or [""]):
                yield f"{'' if number else title:<{indent}}{line}", LIGHT, "normal"


def check_files(cards: list[Path], markdown: Path | None) -> None:
    """Checks that the files of a card can be written, before a tune begins.

    Raises:
        UserError: A folder is not there, a suffix has no format, or matplotlib is missing for a PNG.
    """
    for path in cards:
        if path.suffix not in FILES:
            raise UserError(f"`--card` must be a file that ends with .svg or .png, but got {str(path)!r}.")
        check_out(path, "--card")
        if path.suffix == PNG and find_spec("matplotlib") is None:
            raise UserError(
                "A card as PNG needs matplotlib, which is not installed."
                " Install it with `pip install matplotlib`, or name a file that ends with .svg."
            )
    if markdown is not None:
        check_out(markdown, "--export-markdown")


def card_of(result: TuneResult, options: str = "") -> Card | None:
    """Returns the card of a tune; None if it was stopped before it had an answer.

    Args:
        options: The options of the tune, as they are typed.
    """
    sweep = result.ran.sweep if result.ran is not None else None
    if sweep is None or result.fault:
        return None
    script = shlex.join(command_of(sweep.journal.trial_folder(BASELINE)))
    command = f"sweeper tune {options} -- {script}".replace("  ", " ", 1)
    winner = sweep.confirmation.winner
    ratio = next((one for one in sweep.confirmation.ratios if one.trial == winner), None)
    if ratio is None:
        if not result.bound:
            return None
        return Card(headline=result.bound, rows=tuple(_place(sweep)), command=command)
    if not ratio.has_interval:
        return None
    rows = (*_rows(sweep, ratio), *_searched(result), *_place(sweep))
    headline = f"{times(ratio.ratio)} as fast{' so far' * sweep.confirmation.is_provisional}"
    return Card(headline=headline, rows=rows, command=command)


def _rows(sweep: LoadedSweep, ratio: Ratio) -> Iterator[tuple[str, str]]:
    """Yields what the winner of a tune is."""
    record = sweep.table.records[ratio.trial]
    before = sweep.confirmations().get(BASELINE)
    # A race that was stopped early has measured the script as it is only in turns.
    yield "speed", rate(ratio.throughput) + (f", was {rate(before.throughput)}" if before else "")
    verified = verification.read(record)
    if verified is not None:
        yield "changes", ", ".join(f"{change.name} {change.value}" for change in verified.changes)
        yield "training", f"{how_it_trains(verified)}, over {verified.extent}"
    if sweep.confirmation.is_provisional:
        how = f"{today_interval(ratio)}, {UNCONFIRMED}"
    else:
        how = later_interval(ratio)
    yield "measured", f"in turns with the script as it is: {how}"


def _searched(result: TuneResult) -> Iterator[tuple[str, str]]:
    """Yields what a search of options or of the batch has brought on top of the changes."""
    sweep = result.searched.sweep if result.searched is not None else None
    for ratio in sweep.confirmation.ratios if sweep is not None else ():
        if sweep is not None and ratio.trial == sweep.confirmation.winner and ratio.has_interval:
            yield "on top", f"{times(ratio.ratio)} by a search of its options: {later_interval(ratio)}"


def _place(sweep: LoadedSweep) -> Iterator[tuple[str, str]]:
    """Yields where it was measured."""
    yield "on", str(sweep.about["device"])
    measured = sweep.table.records[BASELINE].measurement
    torch = measured.versions.get("torch", "") if measured is not None else ""
    yield "with", ", ".join([*[f"torch {torch}"] * bool(torch), f"sweeper {__version__}"])
