"""Says what a whole run takes, and what the end of each of its parts could bring, in time and money."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.core.measurement import Measurement
from sweeper.results.formatting import count_of, seconds, times
from sweeper.results.numbers.run_costs import RunCosts, run_costs
from sweeper.results.verdict.remedies import percent

TITLE_WIDTH, TIME_WIDTH = 22, 14
HOUR = 3600
_NO_ENDS = "  The end of an epoch was not seen: evaluations and checkpoints there come on top."
_NO_EPOCH = "How long an epoch is was not seen, so there are no figures of the whole run."


def run_lines(
    measured: Measurement, *, num_epochs: float | None = None, price: float | None = None
) -> Iterator[str]:
    """Yields a line for a run, and one for each of its parts but the arithmetic, the largest first.

    Args:
        num_epochs: Number of epochs of the run; by default, it is what was watched of it.
        price: Price of an hour, in any currency.
    """
    costs = run_costs(measured, num_epochs)
    if costs is None:
        if num_epochs is not None:
            yield _NO_EPOCH
        return
    what = "what was watched" if costs.num_epochs is None else count_of(costs.num_epochs, "epoch")
    yield f"Of {what} ({_with_cost(costs.seconds, price)}), apart from the arithmetic:"
    yield from _part_lines(costs, price)
    if not costs.parts:
        yield "  nothing that takes 1%"
    if not costs.has_ends:
        yield _NO_ENDS


def changed_run_lines(
    measured: Measurement,
    ratio: float,
    *,
    start_s: float = 0.0,
    num_epochs: float | None = None,
    price: float | None = None,
) -> Iterator[str]:
    """Yields what a run takes as it is and with changes, and its parts beside its epochs.

    Args:
        measured: The script as it is.
        ratio: Speed of its epochs with the changes over the speed as they are.
        start_s: Seconds that the changes take at the start.
        num_epochs: Number of epochs of the run; by default, its length is not said.
        price: Price of an hour, in any currency.
    """
    before, after = run_costs(measured, num_epochs), run_costs(measured, num_epochs, ratio)
    if before is None or after is None:
        if num_epochs is not None:
            yield _NO_EPOCH
        return
    if num_epochs is not None:
        took = [_with_cost_in_brackets(one, price) for one in (before.seconds, after.seconds + start_s)]
        what = f"A run of {count_of(num_epochs, 'epoch')}"
        yield f"{what} takes {took[0]} as it is, {took[1]} with the changes."
    if after.parts:
        yield "Beside its epochs, counted as they are without the changes:"
        yield from _part_lines(after, price)
    if num_epochs is not None and not after.has_ends:
        yield _NO_ENDS


def _part_lines(costs: RunCosts, price: float | None) -> Iterator[str]:
    for part in costs.parts:
        took = _with_cost(part.seconds, price)
        where = f"{part.place}: " if part.place else ""
        yield (
            f"  {part.title:<{TITLE_WIDTH}} {percent(part.share):>4}  {took:<{TIME_WIDTH}}"
            f" at most {times(part.max_gain)} without  {where}{part.advice}"
        )


def _with_cost(took: float, price: float | None) -> str:
    cost = _cost(took, price)
    return f"{seconds(took)}, {cost}" if cost else seconds(took)


def _with_cost_in_brackets(took: float, price: float | None) -> str:
    cost = _cost(took, price)
    return f"{seconds(took)} ({cost})" if cost else seconds(took)


def _cost(took: float, price: float | None) -> str:
    return "" if price is None else f"{took / HOUR * price:,.3g}"
