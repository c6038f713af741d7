"""Processes that rest: one start each, windows in turn, and the process as the unit of repetition."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import Bench, raced, spec_of, surface, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.job import read_job
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Window
from sweeper.core.record import TrialRecord
from sweeper.core.recording import Recording
from sweeper.race.log import Started, Verified, rounds_of
from sweeper.race.policy import FIRST_TURNS
from sweeper.race.storage import read
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases import lives
from sweeper.sweep.phases.lives import JobLives, can_be_stopped, is_expensive, may_fit_together
from sweeper.sweep.phases.race import SweepRace
from sweeper.sweep.run import run_sweep
from sweeper.system.files import write_atomic
from sweeper.tracking import NullTracker
from sweeper.trainer import on_demand as taking
from sweeper.trainer.on_demand import END, END_AT_ONCE, GO, RequestFiles, read_ready
from sweeper.tuning.lives import TuneLives

pytestmark = pytest.mark.slow


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has both sides look for a turn often: a hundred of them are taken."""
    for module in (lives, taking):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.002)


WINDOW = Window(start_s=1.0, seconds=0.5, steps=10, samples=640)


def record(startup: float, first: float, peak: float | None = None) -> TrialRecord:
    measured = dataclasses.replace(
        synthetic(1.0), startup_seconds=startup, first_step_seconds=first, gpu_mem_peak_gib=peak
    )
    return TrialRecord(number=0, uid="", stage="search", config=TrialConfig(), outcome=measured)


def test_processes_are_kept_where_a_start_takes_much_longer_than_a_window():
    assert not is_expensive(0.9, 0.1)
    assert not is_expensive(4.5, 1.0)
    assert is_expensive(21.0, 1.0)
    assert not is_expensive(21.0, 10.0)


def test_and_where_all_of_them_fit_onto_the_device_at_once():
    dear = [record(1.0, 20.0, 10.0), record(1.0, 20.0, 5.0)]
    assert may_fit_together(dear, 24.0)
    assert not may_fit_together(dear, 16.0)


def test_and_where_all_of_them_fit_into_the_memory_of_the_machine():
    """The winner of a CPU sweep is compared with three others, which are all there at once."""
    dear = record(1.0, 20.0)
    large = dataclasses.replace(dear.outcome, host_mem_peak_gib=psutil.virtual_memory().total / 2**30 / 2)
    assert may_fit_together([dear, dear], 0.0)
    assert not may_fit_together([dataclasses.replace(dear, outcome=large)] * 2, 0.0)


def test_scripts_take_turns_on_a_gpu_where_all_of_them_have_room():
    on_gpu = dataclasses.replace(
        synthetic(1.0), device=DeviceInfo(kind="cuda", name="A10"), gpu_mem_peak_gib=10.0
    )
    of = TrialRecord(number=0, uid="", stage="search", config=TrialConfig(), outcome=on_gpu)
    assert can_be_stopped([record(1.0, 1.0)], 0.0)
    assert can_be_stopped([of, of], 24.0)
    assert not can_be_stopped([of, of], 23.0)
    on_cores = dataclasses.replace(on_gpu, observed={"device": "cpu"})
    assert can_be_stopped([dataclasses.replace(of, outcome=on_cores)], 0.0)
    # Without NVML, as in some containers, its memory is not known.
    unseen = dataclasses.replace(on_gpu, observed={"device": "cuda"}, gpu_mem_peak_gib=None)
    assert not can_be_stopped([dataclasses.replace(of, outcome=unseen)], 24.0)
    assert not can_be_stopped([of], 0.0)


def test_a_trial_waits_for_its_turn(tmp_path: Path):
    turns = RequestFiles(tmp_path)
    answers: list[int] = []

    def trial() -> None:
        for taken in range(3):
            turns.wait([WINDOW] * taken)
            answers.append(taken)

    waiting = threading.Thread(target=trial)
    waiting.start()
    for taken, go in ((0, 1), (1, 2), (2, 3)):
        deadline = time.monotonic() + 10
        while read_ready(tmp_path) != (taken, WINDOW if taken else None):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(answers) == taken
        write_atomic(tmp_path / GO, str(go))
    waiting.join(10)
    assert answers == [0, 1, 2]


def test_at_the_end_no_other_window_is_wanted(tmp_path: Path):
    write_atomic(tmp_path / GO, str(END))
    assert not RequestFiles(tmp_path).wait([WINDOW] * 3)
    assert RequestFiles(tmp_path).may_be_examined
    write_atomic(tmp_path / GO, str(END_AT_ONCE))
    assert not RequestFiles(tmp_path).wait([WINDOW] * 3)
    assert not RequestFiles(tmp_path).may_be_examined
    # It has ended in its turn.
    write_atomic(tmp_path / GO, "3")
    assert not RequestFiles(tmp_path).may_be_examined


@pytest.mark.parametrize(
    ("kind", "message", "is_crowded"),
    [
        (FailureKind.HOST_OOM, "the kernel has killed it", True),
        (FailureKind.USER_ERROR, "OSError: [Errno 98] Address already in use", True),
        (FailureKind.USER_ERROR, "ValueError: a bug", False),
    ],
)
def test_what_fails_beside_others_for_want_of_room_is_crowded_out(
    kind: FailureKind, message: str, is_crowded: bool
):
    processes = object.__new__(JobLives)
    processes._rests, processes._arms = True, {1: 0, 2: 1}
    processes._outcomes = {2: Failure(kind=kind, message=message)}
    assert processes.is_crowded_out(2) == is_crowded
    assert not processes.is_crowded_out(1)
    # The other one has ended.
    processes._outcomes[1] = synthetic(1.0)
    assert not processes.is_crowded_out(2)


def test_once_a_process_was_crowded_out_there_is_no_room_for_others():
    processes = object.__new__(TuneLives)
    processes._rests, processes._arms = True, {1: 0, 2: 1}
    processes.is_crowded, processes.memory_gib, processes._gpu_gib = False, 0.001, {}
    assert processes.has_room(2)
    processes._outcomes = {2: Failure(kind=FailureKind.HOST_OOM, message="killed")}
    assert processes.is_crowded_out(2)
    assert not processes.has_room(2)


def test_what_an_earlier_process_has_shown_holds_after_one_that_fails():
    shown = Verified(1, 2.0, extent="60 steps", kind="exact")
    failed = Verified(2, 4.0, "oom", is_failure=True)
    raced_so_far = object.__new__(SweepRace)
    raced_so_far._log = [Started(1, 5, 1.0, 1.0), shown, Started(2, 5, 3.0, 1.0, 1), failed]
    assert raced_so_far.verified == {5: shown}
    raced_so_far._log = [Started(2, 5, 3.0, 1.0), failed]
    assert raced_so_far.verified == {5: failed}


@pytest.mark.parametrize(
    ("left", "own", "limit"), [(100.0, 60.0, 60.0), (20.0, 60.0, 34.0), (20.0, 0.0, 34.0), (-9.0, 60.0, 10.0)]
)
def test_a_start_of_a_tune_ends_with_its_time(left: float, own: float, limit: float):
    trials: Any = SimpleNamespace(budget=SimpleNamespace(seconds_left=left))
    context: Any = SimpleNamespace(spec=SimpleNamespace(search=SimpleNamespace(minutes=3.0)))
    recording = lives.limit_recording(Recording(limit_seconds=own), context, trials)
    assert recording is not None
    # A tenth of three minutes, but for the report.
    assert recording.limit_seconds == limit
    assert lives.limit_recording(None, context, trials) is None


@pytest.mark.parametrize(
    ("left", "is_of_changes", "is_given_up"), [(-13, True, False), (-15, True, True), (-15, False, False)]
)
def test_a_turn_of_a_tune_is_given_up_when_its_time_is_over(
    tmp_path: Path, left: float, is_of_changes: bool, is_given_up: bool
):
    """It may be in an evaluation, which ends after another one or two looks here."""
    spec = SimpleNamespace(
        search=SimpleNamespace(minutes=3.0), traits=SimpleNamespace(is_of_changes=is_of_changes)
    )
    turns, looks = tmp_path / "0001" / "turns", iter(range(40))
    turns.mkdir(parents=True)
    processes = object.__new__(JobLives)
    processes._folder, processes._outcomes, processes._withdrawn = tmp_path, {}, set()
    processes._num_returned, processes._rests = {1: 0}, True
    processes._context = SimpleNamespace(spec=spec)
    processes._trials = SimpleNamespace(
        budget=SimpleNamespace(seconds_left=left), progress=SimpleNamespace(tick=lambda: None)
    )
    processes._runner = SimpleNamespace(has_ended=lambda life: next(looks) > 30)
    assert processes.turn(1) is None
    assert (turns / GO).read_text() == (str(END_AT_ONCE) if is_given_up else "1")
    assert (1 in processes._withdrawn) is is_given_up
    # What it has measured before its first turn is no turn.
    processes._outcomes[1] = dataclasses.replace(synthetic(1.0), windows=(WINDOW,))
    assert len(processes.end(1)) == (not is_given_up)


class TurnTaking(ReplayLauncher):
    """Answers a kept job window by window, and remembers whose turn it was.

    Attributes:
        order: `(round, trial)` of every window, in the order they were taken.
        together: How many kept jobs were under way at most.
    """

    def __init__(self, first=lambda config: {"first_step_seconds": 60.0}) -> None:
        super().__init__(lambda config: dataclasses.replace(surface(config), **first(config)))
        self._pool._max_workers = 16
        self.order: list[tuple[int, int]] = []
        self.together = self._now = 0

    def _answer(self, job):
        if not job.turns_folder:
            return super()._answer(job)
        self._now += 1
        self.together = max(self.together, self._now)
        turns = RequestFiles(Path(job.turns_folder))
        measured = super()._answer(job)
        windows: list[Window] = []
        while turns.wait(windows):
            self.order.append((job.params["round"], job.params["arm"]))
            windows += measured.windows
        self._now -= 1
        return dataclasses.replace(measured, windows=tuple(windows))


@pytest.mark.usefixtures("attentive")
def test_processes_whose_start_is_dear_take_turns(bench: Bench):
    launcher = TurnTaking()
    spec = spec_of(confirm={"rounds": 4, "top": 2})
    run_sweep(bench.home, spec, NullTracker(), bench.watcher, launch=lambda folder: launcher)
    journal = Journal(bench.home / "sweeps" / "toy")
    result = journal.result()
    assert result is not None
    assert len(raced(bench)) == 4
    assert result.confirmation.ratios[0].ratio == pytest.approx(
        throughput(
            TrialConfig().replace({"batch_size": 1024, "loader.kind": "resident", "precision.amp": "bf16"})
        )
        / 64
    )
    # One process of each candidate and the baseline at a time, each of them asked in turn.
    assert launcher.together == 3
    entries = [read_job(entry.folder) for entry in journal.race_jobs("final")]
    # The slower candidate is not continued.
    assert len(entries) == 3 * 3 + 2
    assert all(job.turns_folder for job in entries)
    first = [trial for index, trial in launcher.order if index == 0]
    assert len(first) == 3 * FIRST_TURNS
    for start in range(0, len(first), 3):
        assert len(set(first[start : start + 3])) == 3
    assert len({tuple(first[start : start + 3]) for start in range(0, len(first), 3)}) > 1


@pytest.mark.parametrize(("cached", "kept"), [(1.0, False), (30.0, True)])
def test_a_start_that_only_compiled_once_is_not_dear(bench: Bench, attentive, cached: float, kept: bool):
    """Every trial but the first of its settings found its code in the cache, and so do the rounds."""
    seen: set[int] = set()

    def first(config: TrialConfig) -> dict[str, object]:
        if config.batch_size in seen:
            return {"first_step_seconds": cached, "compile_cache": "warm"}
        seen.add(config.batch_size)
        return {"first_step_seconds": 60.0, "compile_cache": "cold"}

    launcher = TurnTaking(first)
    spec = spec_of(confirm={"rounds": 4, "top": 2})
    run_sweep(bench.home, spec, NullTracker(), bench.watcher, launch=lambda folder: launcher)
    entries = [read_job(entry.folder) for entry in Journal(bench.home / "sweeps" / "toy").race_jobs("final")]
    assert entries
    assert {bool(job.turns_folder) for job in entries} == {kept}


@pytest.mark.usefixtures("attentive")
@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.LOST])
def test_a_process_that_ends_early_does_not_hold_the_others_up(bench: Bench, kind: FailureKind):
    """If its keeper was killed with it, it leaves no outcome."""

    class Failing(TurnTaking):
        def _answer(self, job):
            if job.turns_folder and job.params["arm"] != 0 and job.params["round"] == 1:
                return Failure(kind=kind, message="no room beside the others")
            return super()._answer(job)

    spec = spec_of(confirm={"rounds": 4, "top": 2})
    run_sweep(bench.home, spec, NullTracker(), bench.watcher, launch=lambda folder: Failing())
    result = Journal(bench.home / "sweeps" / "toy").result()
    assert result is not None
    assert [len(each) for each in raced(bench)] == [3, 3, 3]
    assert result.confirmation.winner is not None


@pytest.mark.usefixtures("attentive")
def test_the_warm_up_of_a_process_that_took_no_turn_is_no_turn(bench: Bench):
    """The baseline has failed at its start, after a turn of one: the other is ended before its first."""

    class Warm(TurnTaking):
        def _answer(self, job):
            if job.turns_folder and job.params["arm"] == 0 and job.params["round"] == 1:
                return Failure(kind=FailureKind.OOM, message="no room beside the others")
            measured = super()._answer(job)
            if not job.turns_folder or measured.windows:
                return measured
            return dataclasses.replace(measured, windows=(WINDOW,))

    spec = spec_of(confirm={"rounds": 3, "top": 2})
    run_sweep(bench.home, spec, NullTracker(), bench.watcher, launch=lambda folder: Warm())
    rounds = rounds_of(read(Journal(bench.home / "sweeps" / "toy").race_log("final")))
    assert rounds[1].speeds.keys() == {3}
