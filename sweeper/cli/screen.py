"""Terminal output: live progress and lines that fit."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeper.core.codec import encode
from sweeper.core.record import TrialRecord
from sweeper.results.formatting import interval, seconds, times, wrap
from sweeper.results.trial_line import trial_line
from sweeper.sweep.observer import Racer, Status

QUIET_SECONDS = 10.0
"""Time without a line after which a file, which has no live line, gets the status."""
MAX_SHOWN = 3
"""Most running trials that are listed by name; the rest are only counted."""


class _Console(Console):
    """Falls silent when the reader of its output is gone; the sweep goes on."""

    def __init__(self, width: int | None, *, stderr: bool) -> None:
        # Names and values may contain what rich takes for markup: `[relu,gelu]`, `[/data]`, `:x:`.
        super().__init__(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console(*, stderr: bool = False) -> Console:
    """Returns the console for all commands. Output to a file is plain and never truncated.

    Args:
        stderr: Whether it prints to standard error, as where standard output gets only JSON.
    """
    # A terminal of unknown width reports 0.
    width = None if os.environ.get("COLUMNS", "").strip() != "0" else 80
    screen = _Console(width, stderr=stderr)
    return screen if screen.is_terminal else _Console(120, stderr=stderr)


def columns(out: Console) -> int | None:
    """Returns the width of a terminal; None for a file, whose lines may be of any length."""
    return out.width if out.is_terminal else None


def prose(out: Console, text: str) -> None:
    """Prints a line of words so that it fits a terminal."""
    say(out, wrap(text, columns(out)))


def say(out: Console, *lines: str) -> None:
    """Prints lines that stay whole, as those with a command or a path must."""
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def print_json(value: object) -> None:
    """Prints a value as JSON, for programs."""
    print(json.dumps(encode(value), indent=1))


class LiveScreen:
    """Prints lines and, on a terminal, keeps a live line below them."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None
        self._printed_s = time.monotonic()

    def __enter__(self) -> Self:
        """Starts the live line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the live line."""
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Prints one line."""
        self._print(wrap(text, columns(self._out)))

    def update(self, text: str, below: RenderableType | None = None) -> None:
        """Updates the live line; in a file, it is printed now and then.

        Args:
            below: What a terminal shows below it.
        """
        if self._live:
            line = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
            self._live.update(line if below is None else Group(line, below))
        elif time.monotonic() - self._printed_s >= QUIET_SECONDS:
            self._print(f"  ({text})")

    def _print(self, text: str) -> None:
        self._printed_s = time.monotonic()
        say(self._out, text)


class Screen(LiveScreen):
    """Shows the progress of a sweep or a tune."""

    def command(self, text: str) -> None:
        """Prints a line that must stay whole."""
        self._print(text)

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        """Prints a line for a finished trial."""
        self._print(trial_line(record, name, speedup, columns(self._out)))

    def status(self, status: Status) -> None:
        """Updates the live line."""
        self.update(status_line(status), race_table(status.race) if status.race else None)


def status_line(status: Status) -> str:
    """Returns the progress of a sweep in one line."""
    parts = [status.phase]
    if status.total:
        # More rounds than the fewest may be needed.
        is_beyond = status.done > status.total
        parts.append(f"{status.done} rounds" if is_beyond else f"{status.done} of {status.total}")
    if status.race:
        leaders = (racer for racer in status.race[1:2] if racer.score.ratio is not None)
        parts += [f"{racer.name} {_so_far(racer)} so far" for racer in leaders]
    elif status.best_ratio is not None:
        parts.append(f"best so far {times(status.best_ratio)} vs baseline ({status.best})")
    if status.running:
        more = f" and {len(status.running) - MAX_SHOWN} more" if len(status.running) > MAX_SHOWN else ""
        parts.append(f"running {', '.join(status.running[:MAX_SHOWN])}{more}")
    if status.seconds_left is not None:
        parts.append(f"{seconds(status.seconds_left)} left" if status.seconds_left >= 1 else "time is up")
    return " · ".join(parts)


def race_table(race: Sequence[Racer]) -> Table:
    """Returns how a race stands, with a row for the baseline and each candidate."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", style="dim")
    for title in ("", "starts", "turns", "so far"):
        table.add_column(title, justify="right" if title in ("starts", "turns") else "left", no_wrap=True)
    for racer in race:
        score = racer.score
        so_far = "" if score.ratio is None else _so_far(racer)
        out = "" if score.is_continued else "not continued"
        table.add_row(racer.name, str(score.processes), str(score.turns), f"{so_far} {out}".strip())
    return table


def _so_far(racer: Racer) -> str:
    """Returns a ratio with its interval; without one, if a single turn of each carries none."""
    score = racer.score
    assert score.ratio is not None
    if math.isinf(score.high):
        return f"about {times(score.ratio)}"
    return f"{times(score.ratio)} {interval(score.low, score.high)}"
