"""Hill climbing: changes one parameter at a time, starting from the best configurations so far."""

from __future__ import annotations

import itertools
import math
import random
from bisect import insort
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from sweeper.analysis.effects import Acting, Flat
from sweeper.core.config import OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.record import SearchResult
from sweeper.search.distributions import distribution, spelled
from sweeper.search.local_model import LocalModel
from sweeper.search.prior import Prior
from sweeper.spec import SweepSpec
from sweeper.spec.neighbours import neighbours

Params = dict[str, Scalar]

MAX_BASES = 1000
"""Configurations whose neighbours are tried, best first; skipping that many takes 5 ms."""
MAX_KNOWN = 60
"""The best trials, from which is told what a change brings; more take longer, and tell little more."""
MIN_KNOWN = 4
"""Trials from which is told what is left to gain."""


class Asked(NamedTuple):
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
    """Ranks the feasible configurations, and tries the neighbour of the best that promises most.

    An ask costs the same after ten thousand trials.
    """

    def __init__(self, spec: SweepSpec, prior: Prior | None = None) -> None:
        """Knows no trial yet.

        Args:
            prior: What an earlier sweep says; None without one.
        """
        self._spec, self._prior = spec, prior
        self._sign = 1 if spec.objectives[0].direction == "maximize" else -1
        self._own = spec.baseline_config().flatten()
        self._work = spec.baseline_config().work_key()
        self._acting = Acting(spec)
        self._params: dict[int, Params] = {}
        self._known: dict[int, tuple[Flat, float]] = {}
        self._order: list[tuple[bool, float, int]] = []
        self._nearby: dict[int, list[_Neighbour]] = {}

    def tell(self, number: int, result: SearchResult) -> None:
        """Records the result of a trial; infeasible trials are ignored.

        Samples per second compare only for equal work: the smallest model is always the fastest. So
        configurations with the baseline's work rank first.
        """
        if not result.values or any(violation > 0 for violation in result.constraints.values()):
            return
        value, config = result.values[0], self._spec.config(result.params)
        self._params[number] = dict(result.params)
        self._known[number] = self._acting(config), self._sign * math.log(max(value, 1e-300))
        insort(self._order, (config.work_key() != self._work, -self._sign * value, number))

    def ask(self, taken: Container[str], seed: int) -> Asked | None:
        """Returns an untried neighbour of the best configuration so far, and why, or None.

        Once all neighbours of the best are known, the next best follows, which may be better but
        for noise. The change that promises most comes first.

        Args:
            taken: Keys of the configurations asked for already.
        """
        draw = random.Random(seed)
        model = self._model()
        for _, _, number in self._order[:MAX_BASES]:
            left = self._left(number, taken)
            if left and model is not None:
                gains = [
                    (not self._fails(each), model.improvement(each.flat), draw.random()) for each in left
                ]
                name, value, *_ = left[gains.index(max(gains))]
                base = self._params[number]
                why = f"one step from trial {number}: {name} {base[name]} -> {value}"
                return Asked({**base, name: value}, why)
        return None

    def expected_gain(self, taken: Container[str]) -> float | None:
        """Returns what the most promising untried neighbour of the best is expected to gain over it.

        As the logarithm of a ratio; None as long as too little is known.
        """
        model = self._model()
        if model is None or len(self._known) < MIN_KNOWN:
            return None
        left = self._left(self._order[0][2], taken)
        return max((model.improvement(each.flat) for each in left if not self._fails(each)), default=0.0)

    def _model(self) -> LocalModel | None:
        if not self._order:
            return None
        other_work = self._order[0][0]
        alike = itertools.takewhile(lambda each: each[0] == other_work, self._order)
        known = [self._known[number] for _, _, number in itertools.islice(alike, MAX_KNOWN)]
        prior = self._prior
        earlier = prior.gain if prior is not None and prior.holds else None
        return LocalModel(known, self._spec, earlier)

    def _left(self, number: int, taken: Container[str]) -> list[_Neighbour]:
        left = [each for each in self._neighbours(number) if each.key not in taken]
        if self._spec.confirm.ladder:
            # What the best would be without a change is asked at its end (`sweep.phases.ladder`).
            left = [each for each in left if each.value != self._own.get(each.name)]
        return left

    def stacked(self, taken: Container[str]) -> Asked | None:
        """Returns all that gained alone, together; None if that is less than two, or was asked for.

        Of several values of a parameter, the best counts.
        """
        base = {name: self._own.get(name) for name in self._spec.space}
        alone: dict[str, float] = {}
        params: Params = dict(base)
        usual: float | None = None
        for _, value, number in self._order:
            # From the best on: the first of a parameter is its best.
            changed = [name for name, each in self._params[number].items() if each != base[name]]
            if not changed:
                usual = value
                break
            if len(changed) == 1 and changed[0] not in alone:
                alone[changed[0]] = value
                params[changed[0]] = self._params[number][changed[0]]
        if usual is None or len(alone) < 2 or self._spec.config(params).key() in taken:
            return None
        return Asked(params, f"what gained alone, together: {', '.join(sorted(alone))}")

    def _neighbours(self, number: int) -> list[_Neighbour]:
        if number not in self._nearby:
            base = self._params[number]
            self._nearby[number] = [
                self._neighbour(base, name, value) for name, value in changes(self._spec, base)
            ]
        return self._nearby[number]

    def _neighbour(self, base: Params, name: str, value: Scalar) -> _Neighbour:
        config = self._spec.config({**base, name: value})
        return _Neighbour(name, value, config, config.key(), self._acting(config))

    def _fails(self, to: _Neighbour) -> bool:
        return self._prior is not None and self._prior.fails(to.config)


def changes(spec: SweepSpec, params: Mapping[str, Scalar]) -> Iterator[tuple[str, Scalar]]:
    """Yields the changes of one parameter that matter: to the next number, or another choice.

    Parameters that change the work are left out.
    """
    own = spec.config(params).key()
    for name, parameter in spec.space.items():
        if name.partition(".")[0] in OPEN_SECTIONS:
            continue
        for neighbour in neighbours(parameter, params[name]):
            value = spelled(distribution(parameter), neighbour)
            if spec.config({**params, name: value}).key() != own:
                yield name, value
