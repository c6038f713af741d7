"""Estimates what each value brings near the best configuration, with its uncertainty.

A Bayesian linear model of the logarithm of the speed. Trials near the best count most, because a value brings
something else where another bottleneck hides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sweeper.analysis.effects import Design, Flat
from sweeper.spec import SweepSpec

NEAR = math.log(2)
"""A trial that is half as fast as the best counts by the weight of one standard deviation."""

NOISE, NOISE_FREEDOM = 0.08, 3
"""Standard deviation of the log of one trial's speed, as recorded on shared hosts, before a search has its
own; and for how many degrees of freedom it counts."""

ALONE = 0.06
"""Standard deviation of the log of what a configuration has that no sum of effects explains."""

EFFECT, EFFECT_AFTER = 0.5, 0.2
"""Standard deviation of the log of what a value brings, before it was tried: here, or in an earlier sweep."""


class LocalModel:
    """Expected speeds of configurations, as logarithms of their ratio to the best."""

    def __init__(
        self,
        known: Sequence[tuple[Flat, float]],
        spec: SweepSpec,
        earlier: Callable[[Flat, Flat], float] | None = None,
    ) -> None:
        """Fits the model.

        Args:
            known: The trials, the best first, and the logarithms of their speeds.
            earlier: The logarithm of the ratio of two configurations' speeds by an earlier sweep.
        """
        self._here, top = known[0]
        self._earlier = earlier or (lambda flat, over: 0.0)
        self._effect = EFFECT if earlier is None else EFFECT_AFTER
        self._design = Design([flat for flat, _ in known], spec)
        self._origin = self._design.row(self._here)
        rows = np.column_stack([np.ones(len(known)), self._design.rows - self._origin])
        found = np.array([log - top for _, log in known])
        weights = np.exp(-0.5 * np.square(found / NEAR))
        left = found - np.array([self._earlier(flat, self._here) for flat, _ in known])
        squares = rows.T @ (weights[:, None] * rows)
        variance = NOISE**2
        for _ in range(2):
            # How much trials differ from the model is known only with the model.
            self._covariance = np.linalg.inv(squares / variance + np.eye(len(squares)) / self._effect**2)
            self._effects = self._covariance @ rows.T @ (weights * left) / variance
            freedom = weights.sum() - float(np.trace(self._covariance @ squares)) / variance
            rest = float(weights @ np.square(left - rows @ self._effects))
            variance = (rest + NOISE_FREEDOM * NOISE**2) / (max(freedom, 0.0) + NOISE_FREEDOM)

    def improvement(self, flat: Flat) -> float:
        """Returns the expected improvement over the best (Jones, Schonlau and Welch 1998)."""
        step = np.concatenate([[0.0], self._design.row(flat) - self._origin])
        spread = float(step @ self._covariance @ step) + self._design.num_new(flat) * self._effect**2
        spread += ALONE**2
        middle = float(step @ self._effects) + self._earlier(flat, self._here)
        return _above_zero(middle, math.sqrt(spread))


def _above_zero(middle: float, spread: float) -> float:
    """Returns the expected part above 0 of a normal variable."""
    if spread <= 0:
        return max(0.0, middle)
    z = middle / spread
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return middle * below + spread * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
