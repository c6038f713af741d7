"""Measures or predicts the cost of moving each parameter away from the winner's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeper.core.config import OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.measurement import INFEASIBLE
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.effects import Effects, IdleNames, idle_names
from sweeper.schema import SweepSpec
from sweeper.schema.neighbours import find_nearest, is_number, neighbours, place

MIN_MEASURED = 8
PLATEAU = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The winner's throughput when only one parameter changes.

    Attributes:
        value: The neighbour: a value next to the winner's.
        ratio: Throughput there over the winner's, both as searched; 0 if it fails or breaks a
            limit.
        how: `measured` by a trial that differs in nothing else, or `predicted` from all of them.
    """

    name: str
    value: Scalar
    ratio: float
    how: Literal["measured", "predicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terrain:
    """The winner's surroundings: a `plateau` if no neighbouring number costs more than 5%.

    Attributes:
        costliest: The neighbouring number that costs most.
    """

    word: Literal["plateau", "peak"]
    costliest: Sensitivity


def terrain(sensitivities: Sequence[Sensitivity]) -> Terrain | None:
    """Returns the terrain by the numbers among the neighbours; None if there are none."""
    numbers = [neighbour for neighbour in sensitivities if is_number(neighbour.value)]
    if not numbers:
        return None
    costliest = min(numbers, key=lambda neighbour: neighbour.ratio)
    return Terrain(word="plateau" if costliest.ratio >= PLATEAU else "peak", costliest=costliest)


def by_parameter(sensitivities: Sequence[Sensitivity]) -> dict[str, list[Sensitivity]]:
    """Groups neighbours by parameter, the most costly parameter first."""
    groups: dict[str, list[Sensitivity]] = {}
    for neighbour in sensitivities:
        groups.setdefault(neighbour.name, []).append(neighbour)
    return dict(sorted(groups.items(), key=lambda pair: min(neighbour.ratio for neighbour in pair[1])))


def sensitivity(
    winner: TrialRecord, records: Sequence[TrialRecord], spec: SweepSpec
) -> tuple[Sensitivity, ...]:
    """Returns the winner's throughput at neighbouring values, one parameter at a time.

    Neighbours of a number are the next choices; in a `log` range, half and twice of it; otherwise
    one step, or a tenth of the range if that is more. For anything else, every other choice is a
    neighbour, with the best values found for parameters that take effect with it.

    Parameters without an effect on the winner have no neighbours. `model.*` and `data.*` have none
    either: samples per second are comparable only for the same work.

    Args:
        winner: A measured trial.
        records: All trials; the winner may be among them.

    Returns:
        Neighbours in the order of the space. One that no trial measured is left out if there are
        fewer than `MIN_MEASURED` trials to predict from, or none had that choice.
    """
    mine = winner.metric("throughput")
    if mine is None:
        return ()
    here, without = winner.config, idle_names(winner.config, spec)
    flat, without_effect = here.canonical().flatten(), IdleNames(spec)
    apart = [(record, _differences(record.config, flat, without_effect, without)) for record in records]
    # A trial outside the space, such as a plain script as the baseline, says nothing about it.
    measured = [
        (record.config, speed)
        for record, names in apart
        if names <= spec.space.keys() and (speed := record.metric("throughput"))
    ]
    flats = [config.flatten() for config, _ in measured]
    effects = Effects(measured, spec) if len(measured) >= MIN_MEASURED else None
    sensitivities: list[Sensitivity] = []
    for name, parameter in spec.space.items():
        if name in without or name.partition(".")[0] in OPEN_SECTIONS:
            continue
        value = here.flatten()[name]
        alone = _best_speeds(name, apart)
        for neighbour in neighbours(parameter, value):
            seen = find_nearest(parameter, value, neighbour, alone)
            if seen is not None:
                sensitivities.append(
                    Sensitivity(name=name, value=seen, ratio=alone[seen] / mine, how="measured")
                )
            elif effects is not None and effects.knows(name, neighbour):
                moved = [here.replace({name: neighbour})]
                if place(parameter, neighbour) is None:
                    moved = _with_choice(name, neighbour, here, without, flats)
                ratio = max(effects.ratio(config, here) for config in moved)
                sensitivities.append(Sensitivity(name=name, value=neighbour, ratio=ratio, how="predicted"))
    return tuple(sensitivities)


def _differences(
    config: TrialConfig, right: Mapping[str, Scalar], idle_in: IdleNames, without: frozenset[str]
) -> frozenset[str]:
    """Returns the names in which two configurations differ, without those idle in one of them.

    A parameter that takes effect only with another choice cannot be the same before and after.
    """
    left = config.canonical().flatten()
    differ = frozenset(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return differ - without - idle_in(config, left) if differ else differ


def _best_speeds(name: str, apart: Sequence[tuple[TrialRecord, frozenset[str]]]) -> dict[Scalar, float]:
    """Returns the best throughput by value of `name`, for trials that differ only in it."""
    speeds: dict[Scalar, float] = {}
    for record, names in apart:
        # A configuration that was skipped because it would not fit counts as tried.
        ended = record.measurement or (record.failure and record.failure.kind in INFEASIBLE)
        if names == {name} and ended:
            value = record.config.flatten()[name]
            speed = (record.metric("throughput") or 0.0) if record.feasible else 0.0
            speeds[value] = max(speed, speeds.get(value, 0.0))
    return speeds


def _with_choice(
    name: str,
    choice: Scalar,
    here: TrialConfig,
    without: frozenset[str],
    flats: Sequence[Mapping[str, Scalar]],
) -> list[TrialConfig]:
    """Returns the winner with another choice, and the values of its trials for what takes effect."""
    # Without duplicates: many trials share them.
    brought = dict.fromkeys(
        tuple((setting, flat[setting]) for setting in sorted(without) if setting in flat)
        for flat in flats
        if flat.get(name) == choice
    )
    return [here.replace({name: choice, **dict(settings)}) for settings in brought]
