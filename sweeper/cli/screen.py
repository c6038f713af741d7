"""Terminal output: live progress and lines that fit."""

from __future__ import annotations

import os
import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweeper.analysis.formatting import seconds, times, wrapped
from sweeper.core.record import TrialRecord
from sweeper.results.trial_line import trial_line
from sweeper.sweep.observer import Status

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
    made = _Console(width, stderr=stderr)
    return made if made.is_terminal else _Console(120, stderr=stderr)


def columns(out: Console) -> int | None:
    """Returns the width of a terminal; None for a file, whose lines may be of any length."""
    return out.width if out.is_terminal else None


def prose(out: Console, text: str) -> None:
    """Prints a line of words so that it fits a terminal."""
    out.print(Text(wrapped(text, columns(out))), soft_wrap=True)


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
        self._print(wrapped(text, columns(self._out)))

    def live(self, text: str) -> None:
        """Updates the live line; in a file, it is printed now and then."""
        if self._live:
            self._live.update(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._printed_s >= QUIET_SECONDS:
            self._print(f"  ({text})")

    def _print(self, text: str) -> None:
        self._printed_s = time.monotonic()
        self._out.print(Text(text), soft_wrap=True)


class Screen(LiveScreen):
    """Shows the progress of a sweep or a tune."""

    def command(self, text: str) -> None:
        """Prints a line that must stay whole."""
        self._print(text)

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        """Prints a line for a finished trial."""
        self._print(trial_line(record, name, x_baseline, columns(self._out)))

    def status(self, status: Status) -> None:
        """Updates the live line."""
        self.live(status_line(status))


def status_line(status: Status) -> str:
    """Returns the progress of a sweep in one line."""
    parts = [status.phase]
    if status.total:
        # More rounds than the fewest may be needed.
        is_beyond = status.done > status.total
        parts.append(f"{status.done} rounds" if is_beyond else f"{status.done} of {status.total}")
    if status.best_ratio is not None:
        parts.append(f"best so far {times(status.best_ratio)} vs baseline ({status.best})")
    if status.running:
        more = f" and {len(status.running) - MAX_SHOWN} more" if len(status.running) > MAX_SHOWN else ""
        parts.append(f"running {', '.join(status.running[:MAX_SHOWN])}{more}")
    if status.seconds_left is not None:
        parts.append(f"{seconds(max(0.0, status.seconds_left))} left")
    return " · ".join(parts)
