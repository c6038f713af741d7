"""Terminal output: live progress, a line per trial, the summary."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Collection, Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweeper.analysis.bottleneck import is_unexamined, verdict_on
from sweeper.analysis.formatting import figure, loss, seconds, times
from sweeper.core.record import TrialRecord
from sweeper.sweep.observer import Status

WIDE = 100
"""Width of a terminal from which a line has room for everything."""
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


def wrapped(text: str, width: int | None) -> str:
    """Returns a line wrapped between words, with an indent; unchanged if `width` is None."""
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
    """Returns samples per second with a thousands separator."""
    return "–" if value is None else f"{value:,.0f}/s"


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


def trial_line(
    record: TrialRecord,
    name: str,
    x_baseline: float | None,
    width: int | None = None,
    equal: Collection[str] = (),
) -> str:
    """Returns a line for a finished trial.

    Args:
        width: Columns of the terminal; what matters least is left out until the line fits. None for
            a line with everything.
        equal: Metrics to leave out because they are equal in all trials.
    """
    is_wide = width is None or width >= WIDE
    head = f"  {name:<{38 if is_wide else 30}} "
    if record.failure is not None:
        return wrapped(f"{head}{record.failure.kind}: {record.failure.message}", width)
    # Parts of the line with their rank: the highest is dropped first.
    parts = [(0, f"{rate(record.metric('throughput')):>{14 if is_wide else 11}}")]
    if (epoch := record.metric("epoch_seconds")) is not None:
        parts.append((4, f"{seconds(epoch):>10} per epoch"))
    reasons = record.measurement.contamination if record.measurement is not None else ()
    mark = "~" if reasons else " "
    parts.append((0, f"{times(x_baseline):>{7 if is_wide else 6}}{mark}"))
    if record.quality is not None:
        parts.append((2, f"loss {loss(record.quality.val_loss):<6}"))
        # Only the first; `--trial N` shows them all.
        first = [(name, value) for name, value in record.quality.metrics.items() if name not in equal][:1]
        parts += [(3, f"{name} {figure(value)}") for name, value in first]
    if (verdict := verdict_on(record)) is not None and not is_unexamined(record, verdict):
        parts.append((1, verdict.kind.value))
    if reasons and is_wide:
        parts.append((5, f"disturbed ({', '.join(reasons)})"))
    over = [name for name, amount in record.violations.items() if amount > 0]
    if over:
        parts.append((1, f"over the limit on {', '.join(over)}"))
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
    """Returns the progress of a sweep in one line."""
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
