"""One sweep from its first trial to its result.

baseline ─► beside itself ─► its loss over seeds ─► references ─► preflight
         ─► search ─► confirm ─► traces ─► result.json
everything already in the folder is passed over; what was cut off runs again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweeper.core.config import TrialConfig
from sweeper.core.crashing import passing
from sweeper.core.errors import NothingFeasibleError
from sweeper.core.job import TRACE, TRACE_RUNNER, MeasurePlan
from sweeper.core.measurement import Failure
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.sweep.beside import look_beside
from sweeper.sweep.confirming import confirm, confirm_in_a_hurry
from sweeper.sweep.losses import NUM_SEEDS, auto_quality_samples, looks_at_loss, trained_samples
from sweeper.sweep.preflight import preflight
from sweeper.sweep.searching import Search
from sweeper.sweep.setup import with_enough_steps
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.supervisor import Supervisor

QUALITY_SECONDS = 20.0
QUALITY_SHARE = 1 / 60


def run_phases(supervisor: Supervisor) -> None:
    """Runs every phase; what is found is then in the folder.

    Asked to stop, it confirms the best so far in a hurry, and leaves the sweep to be continued.
    """
    journal = supervisor.journal
    supervisor.load()
    try:
        reason = _up_to_the_search(supervisor)
        result = {"reason": reason, **confirm(supervisor)}
    except StopAskedError:
        supervisor.runner.cancel()
        if supervisor.table.yardstick is None:
            raise KeyboardInterrupt from None
        result = {"reason": "it was stopped", **confirm_in_a_hurry(supervisor)}
    if supervisor.stopping.asked:
        journal.stop(result)
        return
    if supervisor.spec.measure.trace and supervisor.spec.pipeline:
        try:
            _trace(supervisor, [BASELINE, result["winner"]])
        except StopAskedError:
            # The result is whole without them.
            supervisor.runner.cancel()
    journal.finish(result)
    passing("finished")


def _up_to_the_search(supervisor: Supervisor) -> str:
    """Runs everything but the confirmation; returns why the search ended."""
    _baseline(supervisor)
    look_beside(supervisor)
    _losses(supervisor)
    supervisor.table.judge_all()
    for number, config in enumerate(supervisor.spec.references()[1:], start=1):
        _reference(supervisor, number, "reference", config)
    return Search(supervisor, preflight(supervisor)).run()


def _reference(supervisor: Supervisor, number: int, stage: str, config: TrialConfig) -> TrialRecord:
    record = supervisor.table.records.get(number)
    if record is None:
        why = "the space's `baseline`" if number == BASELINE else f"entry {number} of the space's `also_try`"
        supervisor.start(number, stage, config, {}, why)
    elif record.outcome is None:
        supervisor.resume(number)
    for key, job, outcome in supervisor.runner.wait():
        supervisor.finish(key, job, outcome)
    record = supervisor.table.judged(number)
    supervisor.publish(record)
    return record


def _baseline(supervisor: Supervisor) -> None:
    record = _reference(supervisor, BASELINE, "baseline", supervisor.spec.baseline_config())
    if record.failure is not None:
        raise NothingFeasibleError(
            f"the baseline did not run ({record.failure.kind}): {record.failure.message}. "
            f"Its output is in {record.folder}/worker.log. Mend it and run the same command."
        )


def _losses(supervisor: Supervisor) -> None:
    """Runs the baseline's quality pass over several seeds, and cuts the batch range to it."""
    spec, table = supervisor.spec, supervisor.table
    baseline = table.records[BASELINE]
    assert baseline.measurement is not None
    asked = spec.measure.quality_samples
    if asked == 0 or not looks_at_loss(spec):
        return
    if asked == "auto":
        seconds = QUALITY_SECONDS
        if spec.search.minutes:
            seconds = min(seconds, QUALITY_SHARE * spec.search.minutes * 60)
        samples = auto_quality_samples(baseline.measurement, baseline.config.batch_size, seconds)
        if spec.command:
            samples = trained_samples(baseline.measurement)
    else:
        samples = int(asked)
    _cut_batches(supervisor, samples)
    table.measure_loss_after(samples)
    losses, failure = supervisor.losses_of(baseline.config, "loss", NUM_SEEDS)
    table.enter_losses(tuple(losses))
    supervisor.publish(table.judged(BASELINE))
    yardstick = table.yardstick
    if failure and not losses:
        supervisor.observer.line(
            f"The baseline's loss could not be measured ({failure.kind}: {failure.message}): "
            "no limit relative to it is applied."
        )
    if yardstick and not yardstick.loss_tells:
        supervisor.observer.line(
            "The baseline's loss is no better than a constant predictor's: "
            "the loss cannot tell configurations apart here."
        )


def _cut_batches(supervisor: Supervisor, samples: int) -> None:
    spec, lines = with_enough_steps(supervisor.spec, samples)
    supervisor.narrow(spec)
    for line in lines:
        supervisor.observer.line(line)


def _trace(supervisor: Supervisor, numbers: Sequence[int | None]) -> None:
    """Leaves a profiler trace of some steps in the folders of the trials `numbers`."""
    supervisor.phase = "tracing"
    journal = supervisor.journal
    for number in numbers:
        record = supervisor.table.records.get(number) if number is not None else None
        if record is None:
            continue
        job = dataclasses.replace(
            supervisor.job("trace", record.config.on_one_device()),
            runner=TRACE_RUNNER,
            trace=str(journal.trial_folder(record.number).resolve() / TRACE),
            plan=MeasurePlan(repeats=0, warmup_cap_seconds=supervisor.spec.measure.warmup_cap_seconds),
        )
        folder = journal.setup_folder(f"trace-{record.number}")
        outcome = supervisor.runner.run(folder, job)
        if (folder / TRACE).exists():
            # A worker elsewhere has no other folder than the job's.
            (folder / TRACE).replace(job.trace)
        if isinstance(outcome, Failure):
            supervisor.observer.line(
                f"No trace of {supervisor.name(record)} ({outcome.kind}: {outcome.message})."
            )
