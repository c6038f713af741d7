"""Hill-climbing: the neighbours of the best configuration so far, one parameter changed at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from sweeper.core.config import OPEN_SECTIONS, Scalar
from sweeper.search.distributions import distribution, spelled
from sweeper.search.told import Told
from sweeper.spec import SweepSpec
from sweeper.spec.neighbours import is_number, neighbours

Params = dict[str, Scalar]


def climb(spec: SweepSpec, told: Mapping[int, Told], taken: Collection[str], seed: int) -> Params | None:
    """Returns an untried neighbour of the best configuration so far; None where there is none.

    Of the next best, where all of the best one's are known: by noise, it may be the best. What has gained
    most when it was changed is changed first, and in the direction that gained.

    Args:
        told: What became of the trials so far.
        taken: Keys of the configurations that were asked for.
    """
    order = ranked(spec, told)
    if not order:
        return None
    draw = random.Random(seed)
    steps = _steps(order)
    for base in order:
        options: list[tuple[float, float, Params]] = []
        for name, value in changes(spec, base.params):
            params = {**base.params, name: value}
            if spec.config(params).key() not in taken:
                gain = steps.get((name, _direction(base.params[name], value)), 0.0)
                options.append((gain, draw.random(), params))
        if options:
            return max(options, key=lambda option: option[:2])[2]
    return None


def ranked(spec: SweepSpec, told: Mapping[int, Told]) -> list[Told]:
    """Returns the feasible ones: those of the baseline's own work first, best first by the first objective.

    Samples per second compare only where the work is the same: of all, the smallest model is the fastest.
    """
    sign = 1 if spec.objectives[0].direction == "maximize" else -1
    work = spec.baseline_config().work_key()
    fine = [
        (spec.config(each.params).work_key() != work, -sign * each.values[0], number)
        for number, each in told.items()
        if each.values and all(v <= 0 for v in each.constraints.values())
    ]
    return [told[number] for _, _, number in sorted(fine)]


def changes(spec: SweepSpec, params: Mapping[str, Scalar]) -> Iterator[tuple[str, Scalar]]:
    """Yields the changes of one parameter that have an effect: to a number beside, or to another choice.

    Not of those that change the work itself.
    """
    own = spec.config(params).key()
    for name, parameter in spec.space.items():
        if name.partition(".")[0] in OPEN_SECTIONS:
            continue
        for beside in neighbours(parameter, params[name]):
            value = spelled(distribution(parameter), beside)
            if spec.config({**params, name: value}).key() != own:
                yield name, value


def reason(spec: SweepSpec, told: Mapping[int, Told], params: Mapping[str, Scalar]) -> str:
    """Returns which trial `params`, as `climb` gave them, are a neighbour of, and what was changed."""
    numbers = {id(each): number for number, each in told.items()}
    for each in ranked(spec, told):
        changed = [name for name in params if params[name] != each.params[name]]
        if len(changed) == 1:
            (name,) = changed
            number = numbers[id(each)]
            return f"one step from trial {number}: {name} {each.params[name]} -> {params[name]}"
    return "one step from a good trial"


def _direction(before: Scalar, after: Scalar) -> object:
    """Returns which way a number went, or which choice was made."""
    if is_number(before) and is_number(after):
        return math.copysign(1, after - before)
    return after


def _steps(order: Sequence[Told]) -> dict[tuple[str, object], float]:
    """Returns what single changes have gained so far (mean log ratio), by parameter and direction."""
    gains: dict[tuple[str, object], list[float]] = {}
    for i, one in enumerate(order):
        for other in order[i + 1 :]:
            changed = [name for name in one.params if one.params[name] != other.params[name]]
            if len(changed) != 1 or not one.values or not other.values:
                continue
            name = changed[0]
            ratio = abs(math.log(max(one.values[0], 1e-300) / max(other.values[0], 1e-300)))
            up, down = (other.params[name], one.params[name]), (one.params[name], other.params[name])
            gains.setdefault((name, _direction(*up)), []).append(ratio)
            gains.setdefault((name, _direction(*down)), []).append(-ratio)
    return {key: sum(values) / len(values) for key, values in gains.items()}
