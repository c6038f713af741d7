"""Estimates what a search may still gain from untried neighbours of its best configuration."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import numpy as np

from sweeper.analysis.effects import Design
from sweeper.core.record import TrialRecord
from sweeper.spec import SweepSpec
from sweeper.spec.neighbours import neighbours

MIN_MEASURED = 4

NEAR = math.log(2)
"""A trial that is half as fast as the best tells less of what matters there: by the weight of one standard
deviation."""

NOISE, NOISE_FREEDOM = 0.08, 3
"""Standard deviation of the log of one trial's speed, as recorded on shared hosts, before a search has its
own; and for how many degrees of freedom it counts."""

USUAL_EFFECT = 0.5
"""Standard deviation of the log of what a value brings, before it was tried."""


def expected_regret(
    best: TrialRecord, records: Sequence[TrialRecord], spec: SweepSpec, taken: Container[str]
) -> float | None:
    """Returns the expected gain in throughput of the most promising untried neighbour of `best`.

    This is the expected improvement (Jones, Schonlau and Welch 1998) by a Bayesian linear model of log
    throughput, in which trials near the best count most: what a value brings there is not what it brings
    where something else is in the way.

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
    here, top = best.config, best.metric("throughput") or math.nan
    design = Design([config for config, _ in measured], spec)
    origin = design.row(here)
    rows = np.column_stack([np.ones(len(measured)), design.rows() - origin])
    logs = np.array([math.log(speed / top) for _, speed in measured])
    weights = np.exp(-0.5 * np.square(logs / NEAR))
    squares = rows.T @ (weights[:, None] * rows)
    variance = NOISE**2
    for _ in range(2):
        covariance = np.linalg.inv(squares / variance + np.eye(len(squares)) / USUAL_EFFECT**2)
        effects = covariance @ rows.T @ (weights * logs) / variance
        freedom = weights.sum() - float(np.trace(covariance @ squares)) / variance
        rest = float(weights @ np.square(logs - rows @ effects))
        variance = (rest + NOISE_FREEDOM * NOISE**2) / (max(freedom, 0.0) + NOISE_FREEDOM)
    flat = here.flatten()
    moved = [
        here.replace({name: value}).canonical()
        for name, parameter in spec.space.items()
        for value in neighbours(parameter, flat[name])
    ]
    gains = []
    for config in moved:
        if config.key() in taken:
            continue
        step = np.concatenate([[0.0], design.row(config) - origin])
        spread = float(step @ covariance @ step) + design.num_new(config) * USUAL_EFFECT**2
        gains.append(_improvement(float(step @ effects), math.sqrt(spread)))
    return max(gains, default=0.0)


def _improvement(middle: float, spread: float) -> float:
    """Returns the expected part above 0 of a normal variable."""
    if spread <= 0:
        return max(0.0, middle)
    z = middle / spread
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return middle * below + spread * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
