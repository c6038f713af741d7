"""Says what a finished trial measured, in one line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sweeper.core.record import TrialRecord
from sweeper.results.formatting import figure, loss, rate, seconds, times, wrap
from sweeper.results.verdict.bottleneck import is_unexamined, verdict_on

WIDE = 100
"""Width of a terminal from which a line has room for everything."""

_Part = tuple[int, str]
"""A part of the line, after its rank: the highest is left out first."""


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
    parts = list(_parts(record, speedup, equal, is_wide=is_wide))
    if width is None:
        return _join(head, parts)
    line = _join(head, _drop_until_it_fits(head, parts, width))
    # A long name leaves no room for columns.
    return line if len(line) <= width else f"  {' '.join(line.split())}"


def _parts(
    record: TrialRecord, speedup: float | None, equal: Collection[str], *, is_wide: bool
) -> Iterator[_Part]:
    """Yields the parts of a measured trial's line."""
    disturbances = record.measurement.contamination if record.measurement is not None else ()
    yield 0, f"{rate(record.metric('throughput')):>{14 if is_wide else 11}}"
    if (epoch := record.metric("epoch_seconds")) is not None:
        yield 4, f"{seconds(epoch):>10} per epoch"
    mark = "~" if disturbances else " "
    yield 0, f"{times(speedup):>{7 if is_wide else 6}}{mark}"
    if record.quality is not None:
        yield 2, f"loss {loss(record.quality.val_loss):<6}"
        # Only the first; `--trial N` shows them all.
        for name in [name for name in record.quality.metrics if name not in equal][:1]:
            yield 3, f"{name} {figure(record.quality.metrics[name])}"
    if (verdict := verdict_on(record)) is not None and not is_unexamined(record, verdict):
        yield 1, verdict.kind.value
    if disturbances and is_wide:
        yield 5, f"disturbed ({', '.join(disturbances)})"
    over = [name for name, amount in record.violations.items() if amount > 0]
    if over:
        yield 1, f"over the limit on {', '.join(over)}"


def _drop_until_it_fits(head: str, parts: Sequence[_Part], width: int) -> Sequence[_Part]:
    """Returns the parts without those of the highest ranks, as far as the line needs it; rank 0 stays."""
    for rank in sorted({rank for rank, _ in parts if rank}, reverse=True):
        if len(_join(head, parts)) <= width:
            break
        parts = [part for part in parts if part[0] != rank]
    return parts


def _join(head: str, parts: Sequence[_Part]) -> str:
    return (head + "  ".join(text for _, text in parts)).rstrip()
