"""Estimates what a search may still gain from untried neighbours of its best configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Sequence

from sweeper.analysis.effects import Effects
from sweeper.core.record import TrialRecord
from sweeper.spec import SweepSpec
from sweeper.spec.neighbours import neighbours

MIN_MEASURED = 8


def expected_regret(
    best: TrialRecord, records: Sequence[TrialRecord], spec: SweepSpec, taken: Container[str]
) -> float | None:
    """Returns the expected gain in throughput of the most promising untried neighbour of `best`.

    This is the expected improvement of a normal prediction: an additive model of log throughput
    gives the mean, its residuals over the trials the spread (Jones, Schonlau and Welch 1998).

    Args:
        records: Measured trials of the space, including `best`.
        taken: Keys of the configurations that were already proposed.

    Returns:
        A share of the best throughput; 0 if every neighbour is known; None if too few trials were
        measured to predict from.
    """
    measured = [(record.config, speed) for record in records if (speed := record.metric("throughput"))]
    if len(measured) < MIN_MEASURED:
        return None
    effects = Effects(measured, spec)
    here = best.config
    top = best.metric("throughput") or math.nan
    residuals = [math.log(speed / top) - math.log(effects.ratio(config, here)) for config, speed in measured]
    spread = statistics.pstdev(residuals)
    flat = here.flatten()
    moved = [
        here.replace({name: value}).canonical()
        for name, parameter in spec.space.items()
        for value in neighbours(parameter, flat[name])
    ]
    gains = [
        _improvement(math.log(effects.ratio(config, here)), spread)
        for config in moved
        if config.key() not in taken
    ]
    return max(gains, default=0.0)


def _improvement(middle: float, spread: float) -> float:
    """Returns the expected part above 0 of a normal variable."""
    if spread <= 0:
        return max(0.0, middle)
    z = middle / spread
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return middle * below + spread * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
