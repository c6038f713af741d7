"""Guides a new search by an earlier sweep of the same training.

The earlier sweep is a guess, never a measurement: it says where to begin and which change to try next. Each
trial checks it, and the search ignores it once the trials contradict it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.past import PastSweep, PastTrial
from sweeper.core.record import BASELINE
from sweeper.results.numbers.effects import ActiveValues, Effects, Flat
from sweeper.results.numbers.finalists import is_speed
from sweeper.schema import CategoricalParameter, Parameter, SweepSpec
from sweeper.schema.neighbours import is_log, is_number, place
from sweeper.search.distributions import nearest_value, value_in

MAX_OFF, MAX_SHARE = 0.7, 0.6
"""Largest distance of a log ratio from the expected one: a factor of two, or this share of the larger of the
two. A larger model brings all speeds closer together, but keeps their order."""

DIFFERS, MIN_ORDERED = 0.15, 0.7
"""Smallest difference of two log speeds that is not noise; share of such pairs that must be in order."""

MAX_COMPARED = 50
"""Number of latest trials whose order is compared with the expected one, pair by pair."""


class Prior:
    """An earlier sweep's estimate of the speeds in a space.

    Args:
        spec: The space that is searched now.
    """

    def __init__(self, sweep: PastSweep, spec: SweepSpec) -> None:
        self._sweep, self._spec = sweep, spec
        self._effects = Effects([(trial.config, trial.throughput) for trial in sweep.measured], spec)
        self._acting = ActiveValues(spec)
        self._levels = [(self._acting(trial.config), math.log(trial.throughput)) for trial in sweep.measured]
        self._nearest_levels: dict[frozenset[tuple[str, Scalar]], float] = {}
        self._first: tuple[TrialConfig, float] | None = None
        self._compared = deque[tuple[float, float]](maxlen=MAX_COMPARED)
        self._holds = False
        self._ran: dict[str, set[Scalar]] = {}

    @classmethod
    def of(cls, sweep: PastSweep | None, spec: SweepSpec, baseline: float) -> Prior | None:
        """Returns the prior of a search for the highest speed; None for others, or without an earlier sweep.

        Args:
            baseline: The objective's value for the baseline; 0 if unknown.
        """
        if sweep is None or not sweep.measured or not is_speed(spec):
            return None
        prior = cls(sweep, spec)
        prior.tell(spec.baseline_config(), baseline)
        return prior

    def tell(self, config: TrialConfig, value: float) -> None:
        """Records a trial of this sweep, the baseline first, and the value of its objective."""
        if value <= 0:
            return
        for name, setting in config.canonical().flatten().items():
            self._ran.setdefault(name, set()).add(setting)
        speed = value if self._spec.objectives[0].direction == "maximize" else 1 / value
        first, base = self._first = self._first or (config, speed)
        if config.key() == first.key():
            return
        log_ratio = math.log(speed / base)
        expected = self.gain(self._acting(config), self._acting(first))
        self._compared.append((log_ratio, expected))
        self._holds = self._is_near() and self._is_in_order()

    def _is_near(self) -> bool:
        """Returns whether at least half of the ratios to the baseline's speed are near the expected ones."""
        offs = (
            abs(log_ratio - expected) / max(MAX_OFF, MAX_SHARE * max(abs(log_ratio), abs(expected)))
            for log_ratio, expected in self._compared
        )
        return statistics.median(offs) <= 1

    def _is_in_order(self) -> bool:
        """Returns whether most pairs of trials that differ are ordered as expected."""
        pairs = itertools.combinations([(0.0, 0.0), *self._compared], 2)
        alike = [
            (one[0] - other[0]) * (one[1] - other[1]) > 0
            for one, other in pairs
            if abs(one[0] - other[0]) > DIFFERS
        ]
        return not alike or sum(alike) >= MIN_ORDERED * len(alike)

    @property
    def holds(self) -> bool:
        """Whether the trials of this sweep agree with the earlier one, apart from noise."""
        return self._holds

    @property
    def is_sure(self) -> bool:
        """Whether more than one trial was compared, and they agree."""
        return self._holds and len(self._compared) > 1

    @property
    def is_untried(self) -> bool:
        """Whether no trial of this sweep was compared with the earlier one yet."""
        return not self._compared

    def gain(self, flat: Flat, over: Flat) -> float:
        """Returns the logarithm of the ratio of two configurations' speeds in the earlier sweep."""
        return self._level(flat) - self._level(over)

    def _level(self, flat: Flat) -> float:
        """Returns the log of a configuration's speed: as measured, or from the nearest measured ones."""
        key = frozenset(flat.items())
        if key not in self._nearest_levels:
            self._nearest_levels[key] = self._nearest_level(flat)
        return self._nearest_levels[key]

    def _nearest_level(self, flat: Flat) -> float:
        apart = [_num_apart(flat, other) for other, _ in self._levels]
        nearest = [level for level, far in zip(self._levels, apart, strict=True) if far == min(apart)]
        return statistics.fmean(log + self._effects.gain(flat, other) for other, log in nearest)

    def starts(self) -> Iterator[tuple[dict[str, Scalar], str]]:
        """Yields starts and why: the earlier winner, then further on if it was at an end of its range."""
        best = self._best_trial()
        if best is None:
            return
        params = self._params_of(best.config)
        yield params, f"the best of `{self._sweep.name}`: its trial {best.number}"
        beyond = f"the best of `{self._sweep.name}` was at an end of its range"
        if end := self._grow(best.config, params):
            yield self._midpoint(params, end), f"{beyond}; halfway to the end of the new range"
            yield end, f"{beyond}; the end of the new range"

    def fails(self, config: TrialConfig) -> bool:
        """Returns whether a configuration has a choice that always failed in the past and never ran here."""
        flat = config.canonical().flatten()
        return any(
            flat.get(name) in gone - self._ran.get(name, set()) for name, gone in self._failing.items()
        )

    @cached_property
    def _failing(self) -> Mapping[str, frozenset[Scalar]]:
        ran: dict[str, set[Scalar]] = {}
        failed: dict[str, set[Scalar]] = {}
        for trial in self._sweep.trials:
            flat = trial.config.canonical().flatten()
            for name, parameter in self._spec.space.items():
                if isinstance(parameter, CategoricalParameter) and name in flat:
                    into = failed if trial.failure else ran
                    into.setdefault(name, set()).add(flat[name])
        return {
            name: frozenset(values - ran.get(name, set()))
            for name, values in failed.items()
            if values - ran.get(name, set()) and ran.get(name)
        }

    def _best_trial(self) -> PastTrial | None:
        measured = {trial.number: trial for trial in self._sweep.measured}
        if self._sweep.winner in measured:
            return measured[self._sweep.winner]
        others = [trial for trial in measured.values() if trial.number != BASELINE]
        return max(others, key=lambda trial: trial.throughput, default=None)

    def _params_of(self, config: TrialConfig) -> dict[str, Scalar]:
        flat = config.flatten()
        return {name: value_in(of, flat.get(name)) for name, of in self._spec.space.items()}

    def _grow(self, config: TrialConfig, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Returns `params` with each number at an end of its earlier range moved to this one's end, or {}."""
        flat = config.flatten()
        grown = dict(params)
        for name, of in self._spec.space.items():
            mine = place(of, flat.get(name))
            places = [place(of, trial.config.flatten().get(name)) for trial in self._sweep.measured]
            numbers = [number for number in places if number is not None]
            if mine is None or len(set(numbers)) < 2:
                continue
            low, high = _ends(of)
            if mine == max(numbers) and params[name] != high:
                grown[name] = high
            elif mine == min(numbers) and params[name] != low:
                grown[name] = low
        return grown if grown != params else {}

    def _midpoint(self, params: Mapping[str, Scalar], end: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Returns `params` with each number halfway to that of `end`, on the parameter's scale."""
        midpoint = dict(params)
        for name, of in self._spec.space.items():
            here, there = place(of, params[name]), place(of, end[name])
            if here is not None and there is not None and here != there:
                middle = (here + there) / 2
                midpoint[name] = nearest_value(of, 2**middle if is_log(of) else middle)
        return midpoint


def _ends(parameter: Parameter) -> tuple[Scalar, Scalar]:
    if isinstance(parameter, CategoricalParameter):
        numbers = sorted(choice for choice in parameter.choices if is_number(choice))
        return numbers[0], numbers[-1]
    return nearest_value(parameter, parameter.low), nearest_value(parameter, parameter.high)


def _num_apart(one: Flat, other: Flat) -> int:
    return len(dict(one.items() ^ other.items()))
