"""Hill climbing: changes one parameter at a time, starting from the best configurations so far."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import NamedTuple

from sweeper.core.config import OPEN_SECTIONS, Scalar
from sweeper.core.record import SearchResult
from sweeper.search.distributions import distribution, spelled
from sweeper.spec import SweepSpec
from sweeper.spec.neighbours import is_number, neighbours

Params = dict[str, Scalar]

MAX_BASES = 1000
"""Configurations whose neighbours are tried, best first; skipping that many takes 5 ms."""
MAX_ALIKE = 100
"""The latest configurations with one different parameter that a new one is compared with."""


Expected = Callable[[Params, Params], float]
"""The expected logarithm of what the second configuration gains over the first."""


class Asked(NamedTuple):
    """Parameters to try, and why."""

    params: Params
    why: str


class _Neighbour(NamedTuple):
    name: str
    value: Scalar
    key: str


class Climb:
    """Ranks the feasible configurations and keeps what changing one parameter has gained.

    The work is done when a result is told, so that an ask costs the same after ten thousand trials.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._sign = 1 if spec.objectives[0].direction == "maximize" else -1
        self._own = spec.baseline_config().flatten()
        self._work = spec.baseline_config().work_key()
        self._names = [name for name in spec.space if name.partition(".")[0] not in OPEN_SECTIONS]
        self._params: dict[int, Params] = {}
        self._order: list[tuple[bool, float, int]] = []
        self._nearby: dict[int, list[_Neighbour]] = {}
        self._alike: dict[Hashable, deque[tuple[Scalar, float]]] = {}
        self._gains: dict[tuple[str, object], list[float]] = {}

    def tell(self, number: int, result: SearchResult) -> None:
        """Records the result of a trial; infeasible trials are ignored.

        Samples per second compare only for equal work: the smallest model is always the fastest. So
        configurations with the baseline's work rank first.
        """
        if not result.values or any(violation > 0 for violation in result.constraints.values()):
            return
        value = result.values[0]
        other_work = self._spec.config(result.params).work_key() != self._work
        self._params[number] = dict(result.params)
        insort(self._order, (other_work, -self._sign * value, number))
        for name in self._names:
            rest = (name, *(result.params[other] for other in self._spec.space if other != name))
            alike = self._alike.setdefault(rest, deque(maxlen=MAX_ALIKE))
            mine = result.params[name]
            for theirs, reached in alike:
                if theirs != mine:
                    gain = self._sign * math.log(max(value, 1e-300) / max(reached, 1e-300))
                    self._add(name, theirs, mine, gain)
                    self._add(name, mine, theirs, -gain)
            alike.append((mine, value))

    def _add(self, name: str, before: Scalar, after: Scalar, gain: float) -> None:
        total = self._gains.setdefault((name, _direction(before, after)), [0.0, 0.0])
        total[0] += gain
        total[1] += 1

    def ask(self, taken: Container[str], seed: int, expected: Expected | None = None) -> Asked | None:
        """Returns an untried neighbour of the best configuration so far, and why, or None.

        Once all neighbours of the best are known, the next best follows, which may be better but
        for noise. The parameter and the direction that have gained most come first.

        Args:
            taken: Keys of the configurations asked for already.
            expected: What is known of a step besides: parameters, and those one step from them.
        """
        draw = random.Random(seed)
        for _, _, number in self._order[:MAX_BASES]:
            base = self._params[number]
            left = [each for each in self._neighbours(number) if each.key not in taken]
            if self._spec.confirm.ladder:
                # What the best would be without a change is asked at its end (`sweep.phases.ladder`).
                left = [each for each in left if each.value != self._own.get(each.name)]
            if left:
                gain = self._gain if expected is None else _expecting(expected)
                name, value, _ = max(left, key=lambda each: (gain(base, each), draw.random()))
                why = f"one step from trial {number}: {name} {base[name]} -> {value}"
                return Asked({**base, name: value}, why)
        return None

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
                _Neighbour(name, value, self._spec.config({**base, name: value}).key())
                for name, value in changes(self._spec, base)
            ]
        return self._nearby[number]

    def _gain(self, base: Params, to: _Neighbour) -> float:
        total, count = self._gains.get((to.name, _direction(base[to.name], to.value)), (0.0, 1.0))
        return total / count


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


def _expecting(expected: Expected) -> Callable[[Params, _Neighbour], float]:
    return lambda base, to: expected(base, {**base, to.name: to.value})


def _direction(before: Scalar, after: Scalar) -> object:
    """Returns which way a number went, or which choice was made."""
    if is_number(before) and is_number(after):
        return math.copysign(1, after - before)
    return after
