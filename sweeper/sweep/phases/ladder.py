"""Takes the best configuration apart, to find the changes that pay off and what each brings alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from sweeper.analysis.confirmation import changes
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.search.halves import MIN_GAIN, Halves, halves_of
from sweeper.sweep.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

Fits = Callable[[Sequence[TrialRecord]], bool]


def ladder(context: SweepContext, trials: TrialRunner, best: TrialRecord, fits: Fits) -> list[TrialRecord]:
    """Returns the candidates: the best, the best without each of its changes, then each change alone.

    A change that gained next to nothing in the search is dropped from the best. So are the changes that
    gained the least, until there is time to measure the best without each remaining change. Missing trials
    run here.

    Args:
        fits: Function that returns whether there is time to confirm some candidates.
    """
    if Halves.suits(context.spec):
        return _of_halves(context, trials, best, fits)
    usual = trials.table.records[BASELINE].config.flatten()
    tried: set[str] = set()

    def record_of(config: TrialConfig, why: str) -> TrialRecord | None:
        found = _known(trials, config)
        if found is None and config.key() not in tried:
            tried.add(config.key())
            found = _measured(context, trials, config, why)
        return found if found is not None and found.measurement is not None and found.feasible else None

    while True:
        changed = changes(best.config, usual)
        if len(changed) < 2:
            return [best]
        among = trials.table.finished()
        gains = {name: gain(name, changed, usual, among) for name in changed}
        known = {name: value for name, value in gains.items() if value is not None}
        least = min(known, key=lambda name: known[name], default=None)
        is_long = len(changed) > 2 and not fits([best] * (1 + len(changed)))
        if least is not None and (known[least] < MIN_GAIN or is_long):
            rest = record_of(best.config.replace({least: usual[least]}), f"the best without `{least}`")
            if rest is None:
                return [best]
            best = rest
            continue
        configs = {name: best.config.replace({name: usual[name]}) for name in changed}
        without = [record_of(config, f"the best without `{name}`") for name, config in configs.items()]
        # New trials may show that a change brings nothing.
        if len(trials.table.finished()) == len(among):
            break
    found = [best, *(each for each in without if each is not None)]
    for name, value in changed.items():
        alone = _known(trials, trials.table.records[BASELINE].config.replace({name: value}))
        # A change alone is of interest, but must not take time from the rounds that decide.
        if alone is not None and alone not in found and fits([*found, alone] * 2):
            found.append(alone)
    return found


def _of_halves(
    context: SweepContext, trials: TrialRunner, best: TrialRecord, fits: Fits
) -> list[TrialRecord]:
    """Returns the candidates: the changes that are shown to pay off, with each set of those that may.

    Changes that no trial tells apart stay together. The least promising are left out if there is no time for
    all sets. If no change may pay off,
    a best trial with one change is the only candidate; one with several changes was fast by chance.
    """
    halves = halves_of(context.spec, trials.table.results.values())
    found = halves.known()
    sure = [name for name in found.best() if found.is_shown(name)]
    open_ones = {*found.best()} - {*sure}
    groups = [tuple(name for name in group if name in open_ones) for group in found.groups]
    may_pay = sorted(filter(None, groups), key=lambda group: -found.gain(group))
    while len(may_pay) > (0 if sure else 1) and not fits([best] * (2 * _num_sets(sure, may_pay) + 1)):
        may_pay.pop()
    wanted = [
        [*sure, *itertools.chain(*extra)]
        for count in range(len(may_pay), -1, -1)
        for extra in itertools.combinations(may_pay, count)
        if sure or extra
    ]
    records = []
    for each in wanted:
        config = context.spec.config(halves.params(each))
        record = _known(trials, config) or _measured(
            context, trials, config, "the changes that seem to pay off, combined"
        )
        if record.measurement is not None and record.feasible:
            records.append(record)
    if not records and len(changes(best.config, trials.table.records[BASELINE].config.flatten())) == 1:
        return [best]
    return records


def _num_sets(sure: Sequence[str], may_pay: Sequence[tuple[str, ...]]) -> int:
    return (1 << len(may_pay)) - (not sure)


def gain(
    name: str,
    changed: Mapping[str, Scalar],
    usual: Mapping[str, Scalar],
    records: Iterable[TrialRecord],
) -> float | None:
    """Returns the mean log ratio of speeds over all pairs of trials that differ in one change alone.

    It is None without such a pair. Each change of the best that a pair lacks halves the pair's weight, since
    the gain of a change depends on the others.

    Args:
        name: The change.
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
    return total / weights if weights else None


def _known(trials: TrialRunner, config: TrialConfig) -> TrialRecord | None:
    """Returns the measured trial of a configuration; None if there is none."""
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
