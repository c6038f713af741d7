"""Takes the best configuration apart: which of its changes earn their place, and what each brings alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sweeper.analysis.confirmation import changes
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.sweep.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

Fits = Callable[[Sequence[TrialRecord]], bool]


def ladder(context: SweepContext, trials: TrialRunner, best: TrialRecord, fits: Fits) -> list[TrialRecord]:
    """Returns the candidates: the best, the best without each of its changes, then each change alone.

    A change that brought nothing in the search leaves the best. So do those that brought the least, until
    there is time to measure the best without each that is left: what nobody has measured does not win.
    Trials that are missing run here.

    Args:
        fits: Whether there is time to confirm some candidates.
    """
    usual = trials.table.records[BASELINE].config.flatten()
    while True:
        changed = changes(best.config, usual)
        without = dict(_without(context, trials, best, changed, usual)) if len(changed) > 1 else {}
        if not without:
            return [best]
        gains = {name: gain(name, changed, usual, trials.table.finished()) for name in without}
        least = min(gains, key=lambda name: gains[name])
        if gains[least] > 0 and (len(changed) == 2 or fits([best, *without.values()])):
            break
        best = without[least]
    found = [best, *without.values()]
    for name, value in changed.items():
        alone = _known(trials, trials.table.records[BASELINE].config.replace({name: value}))
        if alone is not None and alone not in found:
            found.append(alone)
    return found


def gain(
    name: str,
    changed: Mapping[str, Scalar],
    usual: Mapping[str, Scalar],
    records: Iterable[TrialRecord],
) -> float:
    """Returns the logarithm of what a change brings, over all pairs of trials that differ in it alone.

    A single pair is two single measurements. Each change of the best that a pair lacks halves its weight:
    what a change brings depends on the others.

    Args:
        changed: The changes of the best.
        usual: The baseline's values.
    """
    speeds = {}
    for record in records:
        own = changes(record.config, usual)
        if record.measurement is not None and own.items() <= changed.items():
            speeds[frozenset(own)] = record.measurement.throughput
    total = weights = 0.0
    for names, speed in speeds.items():
        if name in names and (other := speeds.get(names - {name})):
            weight = 0.5 ** (len(changed) - len(names))
            total += weight * math.log(speed / other)
            weights += weight
    return total / weights if weights else 0.0


def _without(
    context: SweepContext,
    trials: TrialRunner,
    best: TrialRecord,
    changed: Mapping[str, Scalar],
    usual: Mapping[str, Scalar],
) -> Iterator[tuple[str, TrialRecord]]:
    """Yields the best without each of its changes, by the change's name; one that fails is left out."""
    for name in changed:
        config = best.config.replace({name: usual[name]})
        record = _known(trials, config) or _measured(context, trials, config, f"the best without `{name}`")
        if record.measurement is not None and record.feasible:
            yield name, record


def _known(trials: TrialRunner, config: TrialConfig) -> TrialRecord | None:
    """Returns the trial of a configuration that was measured; None if there is none."""
    return next(
        (
            each
            for each in trials.table.finished()
            if each.config.key() == config.key() and each.measurement is not None
        ),
        None,
    )


def _measured(context: SweepContext, trials: TrialRunner, config: TrialConfig, why: str) -> TrialRecord:
    number, values = trials.table.last + 1, config.flatten()
    params = {name: values[name] for name in context.spec.space if name in values}
    trials.start(number, "search", config, params, why)
    for key, job, outcome in trials.jobs.wait():
        trials.finish(key, job, outcome)
    return trials.table.judged(number)
