"""Predicts a configuration's peak memory from the trials so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from sweeper.core.config import Scalar, TrialConfig, is_known

Array = NDArray[np.float64]
Flat = Mapping[str, Scalar]

OPEN = ("model.", "data.")
STATE = ("model.", "optimizer.", "precision.")
MATTERS = (
    *("loader.", "precision.", "compile.", "memory_format", "activation_", "device.", *OPEN),
    *("optimizer.name", "optimizer.fused", "optimizer.clip_norm"),
)
"""Prefixes of the names that memory may depend on, besides `batch_size`."""

FIXED, WEIGHTS, SAMPLE = range(3)
"""The parts of a peak: context, framework and data; the model; each sample."""

SWEEP = "in the sweep"
"""Name that separates this sweep's peaks from those of an earlier one."""

ENOUGH = 3
"""Peaks needed before anything is predicted."""

INTERVAL = 1.2816
"""Standard deviations on each side of the middle: 80% lie inside."""

NOISE, NOISE_WEIGHT = 0.02, 4.0
"""Relative scatter of peaks (allocators take whole blocks), and the number of trials this guess is worth."""

ROUGH = 0.5
"""Additional scatter of small peaks: far below the limit, a prediction need not be exact."""

CHANCE = 0.5
"""Smallest chance of fitting that is worth a trial. With a smaller one, more trials run out of memory
(recorded surfaces: 3 of 40 at 0.3, 1 to 2 at 0.5); with a larger one, the best is found later (at 0.7
nearly twice as late).
"""

ITERATIONS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRecord:
    """A trial so far.

    Attributes:
        peak_gib: Its peak; None if it ran out of memory.
        sweep: Name of the earlier sweep that it belongs to; empty for this one.
    """

    config: TrialConfig
    peak_gib: float | None
    sweep: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Peak memory in GiB: its median and the ends of its 80% interval."""

    gib: float
    low: float
    high: float


class MemoryModel:
    """Peak = fixed part + weights + batch size x part per sample, each a product of a factor per name.

    On the logarithm of the peak this is regression with a Gaussian prior, linearised around its
    optimum (Laplace's approximation: Bishop, Pattern Recognition and Machine Learning, 4.4); a
    number enters as a power. The noise is MacKay's evidence estimate (Neural Computation 4, 1992).
    A trial that did not fit says that its peak is beyond the limit (a probit likelihood).
    """

    def __init__(self, seen: Sequence[PeakRecord], limit_gib: float) -> None:
        self._limit = limit_gib
        self._seen = [
            (_flatten(trial.config, trial.sweep), trial.config.batch_size, trial.peak_gib) for trial in seen
        ]
        self._enough = sum(peak is not None for _, _, peak in self._seen) >= ENOUGH
        if self._enough:
            self._encode()
            self._fit()

    def predict(self, config: TrialConfig) -> Prediction | None:
        """Returns the expected peak of `config`, or None while too little is known."""
        if not self._enough:
            return None
        middle, deviation = self._log_peak(_flatten(config), config.batch_size)
        ends = (math.exp(middle + side * INTERVAL * deviation) for side in (-1, 1))
        return Prediction(gib=math.exp(middle), low=next(ends), high=next(ends))

    def fits(self, config: TrialConfig, headroom: float = 0.0) -> bool:
        """Returns whether `config` is worth a trial: likely enough to fit, or unknown.

        With `headroom`, that share of the limit must stay free.
        """
        return self.chance(config, headroom) >= CHANCE

    def chance(self, config: TrialConfig, headroom: float = 0.0) -> float:
        """Returns the probability that `config` fits; 1 if too little is known.

        It is 1 if the configuration is no larger than one that fitted, and 0 if it is no smaller than
        one that did not fit. Sizes are `batch_size` and the numbers of the model and the data.
        """
        flat, batch, limit = _flatten(config), config.batch_size, self._limit * (1 - headroom)
        if any(p is not None and p <= limit and _is_within(flat, batch, f, b) for f, b, p in self._seen):
            return 1.0
        if any(p is None and _is_within(f, b, flat, batch) for f, b, p in self._seen):
            return 0.0
        if not self._enough:
            return 1.0
        middle, deviation = self._log_peak(flat, batch)
        return _normal_cdf((math.log(limit) - middle) / deviation)

    def _encode(self) -> None:
        """Makes a column for each value of a name that varies, or a single one for numbers."""
        names = sorted({name for flat, _, _ in self._seen for name in flat})
        self._values = {name: [flat.get(name) for flat, _, _ in self._seen] for name in names}
        varied = {name: sorted(set(values), key=repr) for name, values in self._values.items()}
        self._numeric = {
            name for name, levels in varied.items() if len(levels) > 1 and all(map(_is_number, levels))
        }
        columns: list[tuple[str, Scalar]] = []
        for name, levels in varied.items():
            if len(levels) > 1:
                columns += [(name, level) for level in levels[: 1 if name in self._numeric else None]]
        self._columns = columns
        self._centre = np.zeros(1 + len(columns))
        rows = np.array([self._row(flat) for flat, _, _ in self._seen])
        self._centre[1:] = rows[:, 1:].mean(axis=0)
        # The model's memory and the fixed part add up; a name scales one or the other.
        state = np.array([True, *(name.startswith(STATE) for name, _ in columns)])
        other = np.array([True, *(not flag for flag in state[1:])])
        self._parts = {FIXED: other, WEIGHTS: state, SAMPLE: np.ones(1 + len(columns), dtype=bool)}

    def _row(self, flat: Flat) -> Array:
        cells = [1.0]
        for name, level in self._columns:
            value = flat.get(name)
            cells.append(_log(value) if name in self._numeric else float(value == level))
        # A value that is not a number among numbers has no effect; `_log_peak` widens the interval.
        return np.nan_to_num(np.array(cells) - self._centre)

    def _fit(self) -> None:
        x = np.array([self._row(flat) for flat, _, _ in self._seen])
        batch = np.log([float(size) for _, size, _ in self._seen])
        beyond = np.array([peak is None for _, _, peak in self._seen])
        y = np.log([self._limit if peak is None else peak for _, _, peak in self._seen])
        mean, variance = self._prior(y[~beyond], batch[~beyond])
        spread, theta, noise = self._spread(y), mean, 0.1**2
        for iteration in range(ITERATIONS):
            middle, slope = self._linearise(theta, x, batch)
            residual, weight = y - middle, 1 / spread
            scale = np.sqrt(noise * spread[beyond])
            # Newton's step for "beyond the limit", written as an observation with a position and a weight.
            pull, curvature = _tail_derivatives(-residual[beyond] / scale)
            residual[beyond] = scale * pull / curvature
            weight[beyond] *= curvature
            precision = (slope * weight[:, None]).T @ slope / noise
            self._covariance = np.linalg.inv(precision + np.diag(1 / variance))
            step = self._covariance @ (slope.T @ (weight * residual) / noise - (theta - mean) / variance)
            # Far from the optimum a full step overshoots; near it, full steps may oscillate.
            theta = theta + step * min(1.0 if iteration < 10 else 0.5, 1 / np.abs(step).max(initial=1e-9))
            if iteration >= 4:
                leverage = weight * np.einsum("ij,jk,ik->i", slope, self._covariance, slope) / noise
                left = (1 - leverage[~beyond]).clip(0).sum()
                squares = (weight * residual**2)[~beyond].sum()
                noise = (NOISE_WEIGHT * NOISE**2 + squares) / (NOISE_WEIGHT + left)
        self._theta, self._noise = theta, noise

    def _prior(self, y: Array, batch: Array) -> tuple[Array, Array]:
        """Returns means and variances of the parameters before any trial: the usual factors."""
        starts = {FIXED: (y.min() - 0.5, 1.0), WEIGHTS: (y.min() - 1.5, 1.5)}
        starts[SAMPLE] = ((y - batch).min() - 1.0, 3.0)
        prior = []
        for part, used in self._parts.items():
            columns = [column for column, use in zip(self._columns, used[1:], strict=True) if use]
            prior += [starts[part]]
            prior += [(self._usual_factor(name, level, part), _effect(name, part)) for name, level in columns]
        means, deviations = np.array(prior).T
        return means, deviations**2

    def _linearise(self, theta: Array, x: Array, batch: Array) -> tuple[Array, Array]:
        """Returns the logarithm of the peaks and its derivatives by the parameters."""
        ends = np.cumsum([used.sum() for used in self._parts.values()])
        logs = np.array(
            [
                x[:, used] @ weights
                for used, weights in zip(self._parts.values(), np.split(theta, ends[:-1]), strict=True)
            ]
        )
        logs[SAMPLE] += batch
        total = np.logaddexp.reduce(logs, axis=0)
        shares = np.exp(logs - total)
        return total, np.hstack([shares[part][:, None] * x[:, used] for part, used in self._parts.items()])

    def _log_peak(self, flat: Flat, batch: int) -> tuple[float, float]:
        """Returns mean and standard deviation of the peak's logarithm."""
        middle, slope = self._linearise(self._theta, self._row(flat)[None], np.log([float(batch)]))
        variance = (slope @ self._covariance @ slope.T).item() + self._noise * self._spread(middle).item()
        mean = middle.item()
        share = slope[0, sum(used.sum() for part, used in self._parts.items() if part < SAMPLE)].item()
        for name in flat.keys() | self._values.keys():
            value, seen = flat.get(name), self._values.get(name, [None])
            is_numeric = name in self._numeric and _is_number(value)
            if is_numeric or value in seen:
                continue
            variance += 2 * _effect(name, FIXED) ** 2
            if len(set(seen)) == 1:
                # For a name that has not varied, only the usual factor is known.
                factors = (self._usual_factor(name, level, SAMPLE) for level in (value, seen[0]))
                mean += share * (next(factors) - next(factors))
        return mean, math.sqrt(variance)

    def _spread(self, log_peak: Array) -> Array:
        """Returns the variance of the noise at a peak, relative to that at a large one."""
        spread: Array = 1 + (ROUGH * self._limit / np.exp(log_peak)) ** 2
        return spread

    def _usual_factor(self, name: str, level: Scalar | None, part: int) -> float:
        """Returns the usual logarithm of a factor (exponent of a number), before any trial."""
        if name == "precision.amp" and part == SAMPLE:
            # Autocast stores about half of a step's tensors in half the bytes or less.
            return 0.5 if level == "fp32" else 0.0
        if name == "activation_checkpointing" and part == SAMPLE:
            return 0.0 if level else 0.5
        # Most numbers of a model are sizes: hidden_size, num_layers.
        return 0.5 if name in self._numeric and name.startswith("model.") else 0.0


def _effect(name: str, part: int) -> float:
    """Returns the usual size of a factor's logarithm, or of an exponent: large where memory is spent."""
    if name.startswith(OPEN) or (name == "loader.kind" and part == FIXED):
        return 0.85
    halving = ("precision.amp", "compile.mode", "optimizer.name", "activation_checkpointing")
    return 0.5 if name in halving else 0.15


def _flatten(config: TrialConfig, sweep: str = "") -> Flat:
    flat = config.canonical().flatten()
    # Any of a script's own names may matter. Another sweep's peaks may all be off by a factor.
    values = {name: value for name, value in flat.items() if name.startswith(MATTERS) or not is_known(name)}
    return {**values, SWEEP: sweep}


def _is_number(value: Scalar) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _log(value: Scalar) -> float:
    """Returns the logarithm of a size up to a constant; linear around 0 (`dropout: 0.0`)."""
    return math.asinh(2 * value) if _is_number(value) else math.nan


def _is_within(flat: Flat, batch: int, other: Flat, other_batch: int) -> bool:
    """Returns whether a configuration is nowhere larger than the other, and otherwise equal."""
    if batch > other_batch or flat.keys() != other.keys():
        return False
    pairs = ((name, value, other[name]) for name, value in flat.items())
    return all(
        value == end or (name.startswith(OPEN) and _is_number(value) and _is_number(end) and value <= end)
        for name, value, end in pairs
    )


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _tail_derivatives(z: Array) -> tuple[Array, Array]:
    """Returns the first derivative of log P(normal < z), and the negative of its second."""
    z = z.clip(-30)
    # Below -30 the distribution function underflows, and the weight is 1 anyway.
    below = np.array([_normal_cdf(value) for value in z.tolist()])
    first = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) / below
    return first, np.maximum(first * (first + z), 1e-12)
