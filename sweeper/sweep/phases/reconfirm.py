"""`sweeper confirm`: measures the winner of a finished sweep against its baseline again."""

from __future__ import annotations

import dataclasses
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.codec import encode
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.core.record import TrialRecord
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.results import words
from sweeper.results.formatting import rate, seconds
from sweeper.results.numbers.confirmation import Ratio
from sweeper.sweep.folder.catalog import find_sweep, lock_of, require_schema
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import REPEATED_RACE, Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.observer import SweepObserver
from sweeper.sweep.phases.race import MAX_ROUNDS, SweepRace
from sweeper.sweep.start import setup
from sweeper.sweep.start.bootstrap import Launch, OpenSweep, supervised
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.sweep.workloads import fingerprint, workload_of
from sweeper.system.files import write_json
from sweeper.tracking import NullTracker

WINDOWS_OF_SOAK = 30
MIN_WINDOW_SECONDS = 0.2
ALLOWANCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """A long run of the winner in one process.

    Attributes:
        held: Throughput in the last third of the time over throughput in the first third.
    """

    seconds: float
    throughput: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reconfirmation:
    """A winner, confirmed once more; a notebook shows the result in words.

    Attributes:
        before: The sweep's ratio; `now` is today's ratio, or None if too few rounds ran.
        holds: Whether it is still faster than the baseline.
    """

    name: str
    number: int
    before: Ratio
    now: Ratio | None
    soak: Soak | None = None

    @property
    def holds(self) -> bool:
        """Whether the winner is faster than the baseline today."""
        return self.now is not None and self.now.is_faster_now

    @property
    def lines(self) -> list[str]:
        """The result in words."""
        if self.now is None:
            return [f"{self.name}: too few processes finished; the logs in their folders say why."]
        lines = [f"{self.name}: {words.repeat_text(self.before, self.now)}"]
        if self.soak is not None:
            lines.append(
                f"Soak test: {rate(self.soak.throughput)} over {seconds(self.soak.seconds)} in one process; "
                f"the last third ran at {100 * self.soak.held:.3g}% of the speed of the first."
            )
        return lines

    def __repr__(self) -> str:
        """Returns the result in words."""
        return "\n".join(self.lines)


def reconfirm(
    home: Path,
    name: str,
    observer: SweepObserver,
    *,
    soak_seconds: float = 0.0,
    minutes: float | None = None,
    launch: Launch | None = None,
) -> Reconfirmation:
    """Confirms the winner of a sweep again; the sweep's own result stays as it is.

    Args:
        soak_seconds: Seconds that the winner then runs in one process; 0 skips this.
        minutes: Longest time without that run; None for as long as it takes until the answer is clear.

    Raises:
        UserError: There is no such sweep, it has not ended, its script is not here, or the long run failed.
        NothingFeasibleError: The sweep has no winner.
    """
    journal = find_sweep(home, name)
    require_schema(journal, "confirm")
    number = _winner_of(journal)
    document = journal.read_sweep_file()
    spec = journal.spec(document)
    if script := workload_of(spec).absent_file(spec):
        raise UserError(
            f"`sweeper confirm` must run where the script of `{name}` is, but {script!r} is not in"
            f" {os.getcwd()!r}. Change to its folder."
        )
    marks = fingerprint(spec, setup.device_model(spec.execution))
    changes = list(differences(document["fingerprint"], marks))
    for changed in changes:
        observer.line(f"Changed since the sweep: {changed}.")
    limited = spec.model_copy(update={"search": spec.search.model_copy(update={"minutes": minutes})})
    lock = lock_of(journal)
    opened = OpenSweep(home=home, journal=journal, lock=lock, spec=limited, fingerprint=marks)
    try:
        # Processes run one after another, so one worker of a cluster is enough.
        with supervised(opened, NullTracker(), observer, launch, max_jobs=1) as context:
            return _race_again(context, number, soak_seconds, is_unchanged=not changes)
    except StopAskedError:
        # Too few rounds have run to show anything.
        raise KeyboardInterrupt from None
    finally:
        lock.release()


def _winner_of(journal: Journal) -> int:
    """Returns the number of a sweep's confirmed winner.

    Raises:
        UserError: The sweep has not ended.
        NothingFeasibleError: It has no winner.
    """
    result = journal.result()
    if result is None:
        raise UserError(f"`{journal.name}` has not finished; `sweeper run` with the same YAML continues it.")
    number = result.confirmation.winner
    if number is None or not result.confirmation.ratios:
        raise NothingFeasibleError(f"`{journal.name}` has no winner to confirm: {result.search_end}.")
    return number


def _race_again(
    context: SweepContext, number: int, soak_seconds: float, *, is_unchanged: bool
) -> Reconfirmation:
    """Races the winner with the baseline once more, and writes down what came of it.

    Args:
        is_unchanged: Whether the code and the libraries are those of the sweep.
    """
    spec, journal = context.spec, context.journal
    sweep = load_sweep(journal)
    with TrialRunner.of(context, sweep.table) as trials:
        earlier = list(journal.race_folder("").glob(f"{REPEATED_RACE}-*"))
        name_of_race = f"{REPEATED_RACE}-{1 + len(earlier):04d}"
        race = SweepRace(context, trials, name_of_race, spec.measure.window_seconds)
        num_rounds = max(1, spec.confirm.rounds)
        race.run([number], num_rounds, MAX_ROUNDS * num_rounds)
        if is_unchanged:
            # The effect of changed code or libraries is not drift of the machine.
            race.record()
        result = race.result(())
        soak = None
        if soak_seconds and not context.stopping.is_requested:
            soak = _soak(context, trials, sweep.table.records[number], name_of_race, soak_seconds)
        write_json(
            journal.race_folder(name_of_race) / "result.json",
            {**encode(result), "soak": encode(soak) if soak else None},
        )
        ratios = {ratio.trial: ratio for ratio in race.ratios()}
    return Reconfirmation(
        name=journal.name, number=number, before=sweep.ratios()[number], now=ratios.get(number), soak=soak
    )


def _soak(context: SweepContext, trials: TrialRunner, record: TrialRecord, race: str, seconds: float) -> Soak:
    trials.progress.begin("soaking")
    window = max(MIN_WINDOW_SECONDS, seconds / WINDOWS_OF_SOAK)
    plan = MeasurePlan(
        window_seconds=window,
        repeats=max(3, round(seconds / window)),
        cap_seconds=seconds,
        quiet_canary_ms=trials.quiet_canary_ms(),
        diagnose=False,
    )
    job = dataclasses.replace(
        trials.job("soak", record.config, {"arm": record.number}),
        plan=plan,
        timeout_seconds=2 * seconds + ALLOWANCE_SECONDS,
    )
    outcome = trials.run(context.journal.race_folder(race) / "soak", job)
    if isinstance(outcome, Failure):
        raise UserError(
            f"the soak of {context.name(record)} failed ({outcome.kind}): {outcome.message}. "
            f"Its output is in {context.journal.race_folder(race)}/soak/worker.log."
        )
    assert isinstance(outcome, Measurement)
    speeds = [window.samples / window.seconds for window in outcome.windows]
    third = max(1, len(speeds) // 3)
    return Soak(
        seconds=sum(window.seconds for window in outcome.windows),
        throughput=outcome.throughput,
        held=statistics.fmean(speeds[-third:]) / statistics.fmean(speeds[:third]),
    )
