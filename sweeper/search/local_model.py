"""Estimates the effect of each value near the best configuration, with its uncertainty.

The estimate is a Bayesian linear model of the logarithm of the speed. Trials near the best count most,
because a different bottleneck elsewhere may hide the effect of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sweeper.results.numbers.effects import Design, Flat
from sweeper.schema import SweepSpec

NEAR = math.log(2)
"""Standard deviation of the Gaussian weights: a trial half as fast as the best counts exp(-1/2)."""

NOISE, NOISE_FREEDOM = 0.08, 3
"""Standard deviation of the log of one trial's speed, as recorded on shared hosts, and the degrees of freedom
that this prior counts for."""

ALONE = 0.06
"""Standard deviation of the part of a configuration's log speed that no sum of effects explains."""

EFFECT, EFFECT_AFTER = 0.5, 0.2
"""Prior standard deviation of a value's effect on the log of the speed, without and with an earlier sweep."""

DRAWS = 400
"""Number of draws from the posterior for an expected maximum."""


class LocalModel:
    """Expected speeds of configurations, as logarithms of their ratio to the best."""

    def __init__(
        self,
        trials: Sequence[tuple[Flat, float]],
        spec: SweepSpec,
        earlier: Callable[[Flat, Flat], float] | None = None,
    ) -> None:
        """Fits the model.

        Args:
            trials: The trials, the best first, and the logarithms of their speeds.
            earlier: The logarithm of the ratio of two configurations' speeds by an earlier sweep.
        """
        self._here, top = trials[0]
        self._earlier = earlier or (lambda flat, over: 0.0)
        self._effect = EFFECT if earlier is None else EFFECT_AFTER
        self._design = Design([flat for flat, _ in trials], spec)
        self._origin = self._design.row(self._here)
        rows = np.column_stack([np.ones(len(trials)), self._design.rows - self._origin])
        log_ratios = np.array([log - top for _, log in trials])
        weights = np.exp(-0.5 * np.square(log_ratios / NEAR))
        left = log_ratios - np.array([self._earlier(flat, self._here) for flat, _ in trials])
        squares = rows.T @ (weights[:, None] * rows)
        variance = NOISE**2
        for _ in range(2):
            # The variance around the model is known only once the model is fitted.
            self._covariance = np.linalg.inv(squares / variance + np.eye(len(squares)) / self._effect**2)
            self._effects = self._covariance @ rows.T @ (weights * left) / variance
            freedom = weights.sum() - float(np.trace(self._covariance @ squares)) / variance
            rest = float(weights @ np.square(left - rows @ self._effects))
            variance = (rest + NOISE_FREEDOM * NOISE**2) / (max(freedom, 0.0) + NOISE_FREEDOM)

    def improvement(self, flat: Flat) -> float:
        """Returns the expected improvement over the best (Jones, Schonlau and Welch 1998)."""
        step = self._step(flat)
        spread = float(step @ self._covariance @ step) + self._own_variance(flat)
        middle = float(step @ self._effects) + self._earlier(flat, self._here)
        return _mean_above_zero(middle, math.sqrt(spread))

    def improvement_of_any(self, flats: Sequence[Flat]) -> float:
        """Returns the expected improvement of the best of several configurations over the best so far.

        It exceeds each one's own, as it is not known which of them is the best.
        """
        if not flats:
            return 0.0
        steps = np.array([self._step(flat) for flat in flats])
        middles = steps @ self._effects + np.array([self._earlier(flat, self._here) for flat in flats])
        spreads = np.sqrt([self._own_variance(flat) for flat in flats])
        # The same draws each time: the search repeats exactly.
        draw = np.random.default_rng(0)
        effects = np.linalg.cholesky(self._covariance) @ draw.standard_normal((steps.shape[1], DRAWS))
        gains = steps @ effects + spreads[:, None] * draw.standard_normal((len(flats), DRAWS))
        return float((middles[:, None] + gains).max(axis=0).clip(min=0).mean())

    def _step(self, flat: Flat) -> NDArray[np.float64]:
        return np.concatenate([[0.0], self._design.row(flat) - self._origin])

    def _own_variance(self, flat: Flat) -> float:
        """Returns the variance of the part that no known configuration shares."""
        return self._design.num_new(flat) * self._effect**2 + ALONE**2


def _mean_above_zero(middle: float, spread: float) -> float:
    """Returns the expected value of the part of a normal variable above 0."""
    if spread <= 0:
        return max(0.0, middle)
    z = middle / spread
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return middle * below + spread * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
