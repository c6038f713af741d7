"""Says what a whole run takes, and what the end of each of its parts could bring, in time and money."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.core.measurement import Measurement
from sweeper.results.formatting import count_of, seconds, times
from sweeper.results.numbers.run_costs import run_costs, steps_per_pass
from sweeper.results.verdict.remedies import percent

TITLE_WIDTH, TIME_WIDTH = 22, 14
HOUR = 3600


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
            yield "How long an epoch is was not seen, so there are no figures of the whole run."
        return
    what = "what was watched" if costs.num_epochs is None else count_of(costs.num_epochs, "epoch")
    yield f"Of {what} ({_with_cost(costs.seconds, price)}), apart from the arithmetic:"
    for part in costs.parts:
        took = _with_cost(part.seconds, price)
        where = f"{part.place}: " if part.place else ""
        yield (
            f"  {part.title:<{TITLE_WIDTH}} {percent(part.share):>4}  {took:<{TIME_WIDTH}}"
            f" at most {times(part.max_gain)} without  {where}{part.advice}"
        )
    if not costs.parts:
        yield "  nothing that takes 1%"
    if not costs.has_ends:
        yield "  The end of an epoch was not seen: evaluations and checkpoints there come on top."


def price_line(measured: Measurement, ratio: float, num_epochs: float, price: float | None) -> str:
    """Returns what the steps of a run take as they are, and `ratio` times as fast; empty if not known.

    Args:
        num_epochs: Number of epochs of the run.
        price: Price of an hour, in any currency.
    """
    num_steps = num_epochs * steps_per_pass(measured)
    if not num_steps:
        return ""
    before = num_steps * measured.step_ms / 1000
    pair = [
        f"{seconds(took)} ({cost})" if (cost := _cost(took, price)) else seconds(took)
        for took in (before, before / ratio)
    ]
    what = f"The steps of {count_of(num_epochs, 'epoch')}"
    return f"{what} take {pair[0]} as they are, {pair[1]} with the changes."


def _with_cost(took: float, price: float | None) -> str:
    cost = _cost(took, price)
    return f"{seconds(took)}, {cost}" if cost else seconds(took)


def _cost(took: float, price: float | None) -> str:
    return "" if price is None else f"{took / HOUR * price:,.3g}"
