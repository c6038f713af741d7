"""Says what a finished trial measured, in one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sweeper.core.record import TrialRecord
from sweeper.results.formatting import figure, loss, rate, seconds, times, wrap
from sweeper.results.verdict.bottleneck import is_unexamined, verdict_on

WIDE = 100
"""Width of a terminal from which a line has room for everything."""


def trial_line(
    record: TrialRecord,
    name: str,
    speedup: float | None,
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
        return wrap(f"{head}{record.failure.kind}: {record.failure.message}", width)
    # Parts of the line with their rank: the highest is dropped first.
    parts = [(0, f"{rate(record.metric('throughput')):>{14 if is_wide else 11}}")]
    if (epoch := record.metric("epoch_seconds")) is not None:
        parts.append((4, f"{seconds(epoch):>10} per epoch"))
    reasons = record.measurement.contamination if record.measurement is not None else ()
    mark = "~" if reasons else " "
    parts.append((0, f"{times(speedup):>{7 if is_wide else 6}}{mark}"))
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
    while width is not None and len(_join(head, parts)) > width and (rank := max(rank for rank, _ in parts)):
        parts = [part for part in parts if part[0] != rank]
    line = _join(head, parts)
    # A long name leaves no room for columns.
    return line if width is None or len(line) <= width else f"  {' '.join(line.split())}"


def _join(head: str, parts: Sequence[tuple[int, str]]) -> str:
    return (head + "  ".join(text for _, text in parts)).rstrip()
