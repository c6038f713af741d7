"""Chooses the trials to confirm: the best few that are not nearly the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.loaders import traits
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.confirmation import TIE, simplicity
from sweeper.results.numbers.pareto import pareto, pick
from sweeper.schema import SweepSpec
from sweeper.schema.neighbours import is_number
from sweeper.schema.sections import Objective

SPEEDS = ("throughput", "epoch_seconds")
"""Objectives that confirmation rounds decide; for others, the rounds only measure the speed."""
ALIKE = 1.25
"""Ratio below which two numbers count as the same setting."""
TWINS = 0.15
"""Log ratio of speeds up to which only one of two trials that differ in their loaders takes part."""


def finalists(
    records: Iterable[TrialRecord], baseline: TrialRecord, spec: SweepSpec, *, needs_loss: bool
) -> list[TrialRecord]:
    """Returns the candidates for confirmation, best first: they beat the baseline at the same work.

    With a speed as the only objective, the `confirm.top` best; with another one, the best; with
    several, the one that `confirm.pick` picks from the front.

    Args:
        needs_loss: Whether to leave out trials without a measured loss.
    """
    eligible = [record for record in records if _is_eligible(record, baseline, spec, needs_loss=needs_loss)]
    if len(spec.objectives) > 1:
        picked = pick(pareto([baseline, *eligible], spec.objectives), spec.objectives, spec.confirm.pick)
        return [picked] if picked is not None and picked.number != baseline.number else []
    better = _better_than(baseline, eligible, spec.objectives[0])
    return _choose_unlike(better, spec.confirm.top if is_speed(spec) else 1)


def _is_eligible(record: TrialRecord, baseline: TrialRecord, spec: SweepSpec, *, needs_loss: bool) -> bool:
    """Returns whether a trial did the baseline's work, in full and within the limits."""
    return (
        record.feasible
        and record.number != baseline.number
        and record.measurement is not None
        and not record.measurement.is_screened
        and record.config.work_key() == baseline.config.work_key()
        and (record.quality is not None or not needs_loss)
        and not beyond_production(record, spec)
    )


def _better_than(
    baseline: TrialRecord, records: Iterable[TrialRecord], objective: Objective
) -> list[TrialRecord]:
    """Returns the trials that beat the baseline in an objective, best first."""
    sign = 1.0 if objective.direction == "maximize" else -1.0
    to_beat = baseline.metric(objective.metric)
    scored = [
        (sign * value, record)
        for record in records
        if (value := record.metric(objective.metric)) is not None
        and (to_beat is None or sign * value > sign * to_beat)
    ]
    return [record for _, record in sorted(scored, key=lambda pair: -pair[0])]


def _choose_unlike(records: Iterable[TrialRecord], max_count: int) -> list[TrialRecord]:
    """Returns the first of some trials, at most `max_count`, without those that are nearly the same.

    Of twins, the better one stays, or the simpler one if rounds would not tell them apart.
    """
    chosen: list[TrialRecord] = []
    for record in records:
        if len(chosen) == max_count:
            break
        if any(are_alike(record.config, other.config) for other in chosen):
            continue
        twin = next((i for i, other in enumerate(chosen) if _distance(record, other) <= TWINS), None)
        if twin is None:
            chosen.append(record)
        elif _is_simpler_and_as_fast(record, chosen[twin]):
            # It would win the rounds.
            chosen[twin] = record
    return chosen


def _is_simpler_and_as_fast(record: TrialRecord, other: TrialRecord) -> bool:
    is_simpler = simplicity(record.config) < simplicity(other.config)
    return is_simpler and _distance(record, other) <= TIE


def beyond_production(record: TrialRecord, spec: SweepSpec) -> str:
    """Returns why a trial's loader cannot hold the production data; empty if it can."""
    measured = record.measurement
    config = record.config
    is_resident = config.names_are_fields and traits(config.loader.kind).is_resident
    if spec.production is None or measured is None or not is_resident:
        return ""
    return spec.production.why_too_large(measured.device)


def is_speed(spec: SweepSpec) -> bool:
    """Returns whether speed is the only objective, so that confirmation rounds decide it."""
    return len(spec.objectives) == 1 and spec.objectives[0].metric in SPEEDS


def _distance(record: TrialRecord, other: TrialRecord) -> float:
    """Returns the distance of two trials' log speeds; infinite if they differ in more than their loaders."""
    mine, its = (trial.metric("throughput") for trial in (record, other))
    same = record.config.replace(
        {name: value for name, value in other.config.flatten().items() if name.startswith("loader.")}
    )
    if not mine or not its or same.key() != other.config.key():
        return math.inf
    return abs(math.log(mine / its))


def are_alike(one: TrialConfig, other: TrialConfig) -> bool:
    """Returns whether two configurations differ only in numbers that are nearly equal."""
    left, right = one.canonical().flatten(), other.canonical().flatten()
    return left.keys() == right.keys() and all(_is_near(left[name], right[name]) for name in left)


def _is_near(one: Scalar, other: Scalar) -> bool:
    if one == other:
        return True
    if not is_number(one) or not is_number(other) or min(one, other) <= 0:
        return False
    return max(one, other) / min(one, other) < ALIKE
