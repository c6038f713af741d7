"""Hill climbing: changes one parameter at a time, starting from the best configurations so far."""

from __future__ import annotations

import itertools
import math
import random
from bisect import insort
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.core.config import OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.record import SearchResult
from sweeper.results.numbers.effects import ActiveValues, Flat
from sweeper.schema import SweepSpec
from sweeper.schema.neighbours import neighbours
from sweeper.search.distributions import distribution, spell
from sweeper.search.local_model import LocalModel
from sweeper.search.prior import Prior

Params = dict[str, Scalar]

MAX_BASES = 1000
"""Configurations whose neighbours are tried, best first; skipping that many takes 5 ms."""
MAX_NEAR, NEAR = 8, 0.15
"""Limits for trials that only noise may separate from the best: number, and the log of the best's lead."""
MAX_KNOWN = 60
"""Best trials that the model of effects is fitted to; more take longer and add little."""
MIN_KNOWN = 4
"""Trials needed to estimate the gain that is left."""


class Suggestion(NamedTuple):
    """Parameters to try, and why."""

    params: Params
    why: str


class _Neighbour(NamedTuple):
    name: str
    value: Scalar
    config: TrialConfig
    key: str
    flat: Flat


class Climb:
    """Ranks the feasible configurations and proposes the most promising neighbour of the best.

    An ask takes no longer after ten thousand trials than after a few.
    """

    def __init__(self, spec: SweepSpec, prior: Prior | None = None) -> None:
        """Starts without trials.

        Args:
            prior: The guess from an earlier sweep; None without one.
        """
        self._spec, self._prior = spec, prior
        self._sign = 1 if spec.objectives[0].direction == "maximize" else -1
        self._baseline = spec.baseline_config().flatten()
        self._work = spec.baseline_config().work_key()
        self._min_gain = spec.search.regret or 0.0
        self._acting = ActiveValues(spec)
        self._params: dict[int, Params] = {}
        self._results: dict[int, tuple[Flat, float]] = {}
        self._are_positive, self._scale = True, 0.0
        self._order: list[tuple[bool, float, int]] = []
        self._nearby: dict[int, list[_Neighbour]] = {}
        self._fitted: LocalModel | None = None

    def tell(self, number: int, result: SearchResult) -> None:
        """Records the result of a trial; infeasible trials are ignored.

        Samples per second are comparable only for equal work: the smallest model is always the
        fastest. So configurations with the baseline's work rank first.
        """
        if not result.values or any(violation > 0 for violation in result.constraints.values()):
            return
        value, config = result.values[0], self._spec.config(result.params)
        self._fitted = None
        self._params[number] = dict(result.params)
        self._results[number] = self._acting(config), value
        self._are_positive = self._are_positive and value > 0
        self._scale = self._scale or abs(value)
        insort(self._order, (config.work_key() != self._work, -self._sign * value, number))

    def _level(self, number: int) -> float:
        """Returns how good a trial is, so that differences are gains: relative ones, as far as possible."""
        _, value = self._results[number]
        # A loss may be 0 or negative, and has no logarithm then.
        return self._sign * (math.log(value) if self._are_positive else value / (self._scale or 1.0))

    def ask(self, keys: Container[str], seed: int) -> Suggestion | None:
        """Returns an untried neighbour of the best configuration so far, and why, or None.

        The neighbours of all configurations that only noise may separate from the best come first, the
        most promising one first; then those of each next best configuration.

        Args:
            keys: Keys of the configurations asked for already.
        """
        model = self._model()
        if model is None:
            return None
        draw = random.Random(seed)
        near = len(list(self._bases()))
        numbers = [number for _, _, number in self._order[:MAX_BASES]]
        for group in (numbers[:near], *([number] for number in numbers[near:])):
            left = {
                neighbour.key: (number, neighbour)
                for number in group
                for neighbour in self._untried_neighbours(number, keys)
            }
            if left:
                number, (name, value, *_) = max(
                    left.values(),
                    key=lambda candidate: (
                        not self._fails(candidate[1]),
                        self._promise(candidate[1], model, self._batches(keys)),
                        draw.random(),
                    ),
                )
                base = self._params[number]
                why = f"one step from trial {number}: {name} {base[name]} -> {value}"
                return Suggestion({**base, name: value}, why)
        return None

    def _promise(self, to: _Neighbour, model: LocalModel, batches: Container[str]) -> float:
        """Returns the expected gain; for a batch size next to the best's, at least `search.regret`."""
        return max(self._min_gain if to.key in batches else 0.0, model.improvement(to.flat))

    def _batches(self, keys: Container[str]) -> set[str]:
        """Returns the keys of the untried neighbours of the best that differ from it in batch size.

        The effect of a batch size depends on all other values, so trials elsewhere do not show it.
        """
        _, _, best = self._order[0]
        return {
            neighbour.key
            for neighbour in self._untried_neighbours(best, keys)
            if neighbour.name == "batch_size"
        }

    def _bases(self) -> Iterator[int]:
        """Yields the trials that only noise may separate from the best, the best first."""
        other_work, _, best = self._order[0]
        for is_other, _, number in self._order[:MAX_NEAR]:
            if is_other == other_work and self._level(number) >= self._level(best) - NEAR:
                yield number

    def expected_gain(self, keys: Container[str]) -> float | None:
        """Returns the expected gain of the best untried neighbour, whichever it is, over the best trial.

        The gain is the logarithm of a ratio. None while too little is known, or while it is small but a
        batch size next to the best's is untried.
        """
        if not self._order or len(self._results) < MIN_KNOWN:
            return None
        # An earlier sweep is only a guess, which must not end the search.
        model = LocalModel(self._best_trials(), self._spec)
        left = {
            neighbour.key: neighbour
            for number in self._bases()
            for neighbour in self._untried_neighbours(number, keys)
        }
        gain = model.improvement_of_any(
            [neighbour.flat for neighbour in left.values() if not self._fails(neighbour)]
        )
        return None if self._batches(keys) and gain <= self._min_gain else gain

    def gains_of(self, configs: Sequence[TrialConfig]) -> list[float]:
        """Returns each configuration's expected gain over the best, as the logarithm of a ratio."""
        if not self._order or not configs:
            return [0.0] * len(configs)
        model = LocalModel(self._best_trials(), self._spec)
        return [model.improvement(self._acting(config)) for config in configs]

    def _model(self) -> LocalModel | None:
        if self._fitted is not None or not self._order:
            return self._fitted
        prior = self._prior
        earlier = prior.gain if prior is not None and prior.holds else None
        self._fitted = LocalModel(self._best_trials(), self._spec, earlier)
        return self._fitted

    def _best_trials(self) -> list[tuple[Flat, float]]:
        """Returns the best trials that do the same work as the best one."""
        other_work = self._order[0][0]
        alike = itertools.takewhile(lambda entry: entry[0] == other_work, self._order)
        numbers = (number for _, _, number in itertools.islice(alike, MAX_KNOWN))
        return [(self._results[number][0], self._level(number)) for number in numbers]

    def _untried_neighbours(self, number: int, keys: Container[str]) -> list[_Neighbour]:
        return [neighbour for neighbour in self._neighbours(number) if neighbour.key not in keys]

    def stack(self, keys: Container[str]) -> Suggestion | None:
        """Returns all changes that gained alone, combined; None for fewer than two, or if already asked for.

        Of several values of a parameter, only the best is used.
        """
        base = {name: self._baseline.get(name) for name in self._spec.space}
        alone: dict[str, float] = {}
        params: Params = dict(base)
        base_value: float | None = None
        for _, value, number in self._order:
            # Best first: a parameter's first value is its best.
            changed = [name for name, setting in self._params[number].items() if setting != base[name]]
            if not changed:
                base_value = value
                break
            if len(changed) == 1 and changed[0] not in alone:
                alone[changed[0]] = value
                params[changed[0]] = self._params[number][changed[0]]
        if base_value is None or len(alone) < 2 or self._spec.config(params).key() in keys:
            return None
        return Suggestion(params, f"all changes that gained alone, combined: {', '.join(sorted(alone))}")

    def _neighbours(self, number: int) -> list[_Neighbour]:
        if number not in self._nearby:
            base = self._params[number]
            self._nearby[number] = [
                _Neighbour(name, value, config, config.key(), self._acting(config))
                for name, value, config in changes(self._spec, base)
            ]
        return self._nearby[number]

    def _fails(self, to: _Neighbour) -> bool:
        return self._prior is not None and self._prior.fails(to.config)


def changes(spec: SweepSpec, params: Mapping[str, Scalar]) -> Iterator[tuple[str, Scalar, TrialConfig]]:
    """Yields the changes of one parameter that have an effect, each with the resulting configuration.

    A number changes to its neighbours, a choice to any other. Parameters that change the work are left out.
    """
    key = spec.config(params).key()
    for name, parameter in spec.space.items():
        if name.partition(".")[0] in OPEN_SECTIONS:
            continue
        values = neighbours(parameter, params[name])
        if name == "loader.num_workers" and params[name] and parameter.contains(0) and 0 not in values:
            # 0 is another way of loading: the training process loads its own data.
            values.append(0)
        for neighbour in values:
            value = spell(distribution(parameter), neighbour)
            config = spec.config({**params, name: value})
            if config.key() != key:
                yield name, value, config
