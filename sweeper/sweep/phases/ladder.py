"""Takes the best configuration apart: without each of its changes, and with each alone."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.analysis.confirmation import changes
from sweeper.core.config import TrialConfig
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.sweep.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner


def apart(context: SweepContext, trials: TrialRunner, best: TrialRecord) -> list[TrialRecord]:
    """Returns the trials of the best without each of its changes, then of each alone; runs the missing.

    One that fails, or is no trial of the space, is left out.
    """
    found: list[TrialRecord] = []
    for config, why in _configs(trials.table.records[BASELINE].config, best.config):
        known = next((r for r in trials.table.finished() if r.config.key() == config.key()), None)
        record = known or _measured(context, trials, config, why)
        if record.measurement is not None and record not in found:
            found.append(record)
    return found


def _configs(baseline: TrialConfig, best: TrialConfig) -> Iterator[tuple[TrialConfig, str]]:
    usual = baseline.flatten()
    changed = changes(best, usual)
    if len(changed) < 2:
        return
    for name in changed:
        yield best.replace({name: usual[name]}), f"the best without `{name}`"
    for name, value in changed.items():
        yield baseline.replace({name: value}), f"`{name}` alone, which the best has"


def _measured(context: SweepContext, trials: TrialRunner, config: TrialConfig, why: str) -> TrialRecord:
    number, values = trials.table.last + 1, config.flatten()
    params = {name: values[name] for name in context.spec.space if name in values}
    trials.start(number, "search", config, params, why)
    for key, job, outcome in trials.jobs.wait():
        trials.finish(key, job, outcome)
    return trials.table.records[number]
