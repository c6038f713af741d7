"""Whether trials on one machine slow each other down: measured once, decided, and kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import Watcher, spec_of, surface

from sweeper.core.job import OUTCOME
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind
from sweeper.sweep.phases import interference
from sweeper.sweep.phases.interference import INTERFERENCE, MAX_ROUNDS, Interference
from sweeper.sweep.run import run_sweep
from sweeper.system.files import read_json, write_json
from sweeper.tracking import NullTracker

GPUS = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in "abc"]
SPEC = spec_of(measure={"quality_samples": 0}, confirm={"rounds": 0}, search={"trials": 6})


def place(job) -> tuple[int, int, int]:
    """Round, number of slots, and slot of a job that runs beside others."""
    _, *numbers = Path(job.folder).name.split("-")
    return tuple(map(int, numbers))


class Neighbours(ReplayLauncher):
    """The baseline has a throughput by round and slot; trials take a while, and are counted."""

    def __init__(self, *ratios: float, failing: tuple[int, int, int] | None = None, cut: str = "") -> None:
        super().__init__(surface, devices=GPUS[: len(ratios)])
        self.capacity = len(ratios)
        self.ratios, self.failing, self.cut = ratios, failing, cut
        self.at_once = self.most = 0
        self.beside: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()

    def submit(self, folder):
        if self.cut and folder.name == self.cut:
            # What runs beside it has ended by then.
            threading.Event().wait(0.2)
            raise KeyboardInterrupt
        return super().submit(folder)

    def _answer(self, job):
        if job.stage == "search" and job.plan.repeats:
            with self._lock:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            threading.Event().wait(0.05)
            with self._lock:
                self.at_once -= 1
        if job.stage != "interference":
            return super()._answer(job)
        index, count, slot = place(job)
        with self._lock:
            self.beside.append((index, count, slot))
        if (index, count, slot) == self.failing:
            return Failure(kind=FailureKind.HOST_OOM, message="no memory is left")
        # The machine grows slower by the hour, and what counts is the same round's.
        speed = 1000.0 * 0.9**index
        return synthetic(speed if count == 1 else speed * self.ratios[slot] * (1 + 0.001 * (index % 3)))


@pytest.fixture
def sweep(bench, monkeypatch):
    """Runs a sweep on slots whose trials have these shares of their throughput alone beside each other."""
    monkeypatch.setattr(ReplayLauncher, "shares_machine", True)

    def run(*ratios: float, spec=SPEC, **how: object) -> tuple[Neighbours, list[str]]:
        launcher, watcher = Neighbours(*ratios, **how), Watcher()
        try:
            run_sweep(bench.home, spec, NullTracker(), watcher, launch=lambda folder: launcher)
        except KeyboardInterrupt:
            assert launcher.cut
        return launcher, [line for line in watcher.lines if "at once" in line or "one at a time" in line]

    return run


def every(rounds: int, slots: int) -> list[tuple[int, int, int]]:
    counts = [(1, slots) if index % 2 == 0 else (slots, 1) for index in range(rounds)]
    return [(i, count, slot) for i, order in enumerate(counts) for count in order for slot in range(count)]


def test_trials_that_leave_each_other_alone_run_at_once(sweep):
    launcher, lines = sweep(0.995, 0.99)
    assert lines == ["2 trials at once: each reaches 99.1% of its speed alone."]
    assert sorted(launcher.beside) == sorted(every(3, 2))
    assert launcher.most == 2


def test_trials_that_slow_each_other_down_run_one_at_a_time(sweep):
    launcher, lines = sweep(1.0, 0.88, 0.99)
    (line,) = lines
    assert line.startswith("Trials slow each other down: 3 at once reach 88.1% [87.9, 88.3]")
    assert line.endswith("] of their speed alone, so they run one at a time.")
    assert launcher.most == 1


def test_where_a_trial_does_not_run_beside_others_they_run_one_at_a_time(sweep):
    launcher, lines = sweep(1.0, 1.0, failing=(1, 2, 1))
    why = "(host_oom: no memory is left)"
    assert lines == [
        f"Whether trials slow each other down could not be measured {why}, so they run one at a time."
    ]
    assert launcher.most == 1


def test_the_baseline_runs_in_short_windows_and_in_turn(sweep):
    launcher, _ = sweep(1.0, 1.0)
    jobs = [job for job in launcher.jobs if job.stage == "interference"]
    assert [place(job)[1] for job in jobs] == [1, 2, 2, 2, 2, 1, 1, 2, 2]
    assert {job.device for job in jobs if place(job)[2] == 0} == {"GPU-a"}
    assert {job.device for job in jobs if place(job)[2] == 1} == {"GPU-b"}
    baseline = next(job for job in launcher.jobs if job.stage == "baseline")
    assert {job.config.key() for job in jobs} == {baseline.config.key()}
    assert {(job.plan.repeats, job.plan.window_seconds, job.plan.diagnose) for job in jobs} == {
        (1, 1.0, False)
    }


@pytest.mark.parametrize("cut", ["0003", "loss-0"])
def test_a_sweep_that_goes_on_decides_the_same_without_running_it_again(sweep, bench, cut):
    spec = spec_of(confirm={"rounds": 0}, search={"trials": 6})
    _, before = sweep(1.0, 0.9, spec=spec, cut=cut)
    launcher, lines = sweep(1.0, 1.0, spec=spec)
    assert lines == before
    assert "90.1%" in lines[0]
    assert launcher.beside == []
    assert launcher.most == 1


def test_of_what_was_cut_off_those_that_ran_at_once_do_so_again(sweep, bench):
    sweep(1.0, 1.0, cut="interference-0-2-1")
    setup = bench.home / "sweeps" / "toy" / "setup"
    assert (setup / "interference-0-1-0" / OUTCOME).exists()
    assert (setup / "interference-0-2-0" / OUTCOME).exists()
    sweep(1.0, 1.0, cut="interference-0-2-0")
    assert not (setup / "interference-0-2-0" / OUTCOME).exists()
    launcher, _ = sweep(1.0, 1.0)
    assert sorted(launcher.beside) == sorted(set(every(3, 2)) - {(0, 1, 0)})


def test_with_other_slots_or_a_spoilt_file_it_is_measured_again(sweep, bench):
    sweep(1.0, 1.0, cut="0003")
    file = bench.home / "sweeps" / "toy" / "setup" / INTERFERENCE
    known = read_json(file)
    write_json(file, {**known, "slots": 3})
    launcher, lines = sweep(1.0, 1.0, cut="0003")
    # The processes' own outcomes count.
    assert launcher.beside == []
    assert len(lines) == 1
    file.write_text("{")
    assert sweep(1.0, 1.0)[1] == lines
    assert read_json(file) == known


def test_little_time_is_one_round(sweep):
    # A round takes longer than the twentieth of it.
    spec = spec_of(confirm={"rounds": 0}, search={"trials": 6, "minutes": 1e-3})
    launcher, lines = sweep(1.0, 0.9, spec=spec, cut="loss-0")
    assert sorted(launcher.beside) == sorted(every(1, 2))
    assert lines == [
        "Trials slow each other down: 2 at once reach 90% of their speed alone, so they run one at a time."
    ]
    # A sweep that goes on could make up for it now, and does not.
    launcher, again = sweep(1.0, 1.0, spec=spec)
    assert (launcher.beside, again) == ([], lines)


def test_more_rounds_are_run_where_the_first_do_not_tell(sweep, monkeypatch):
    monkeypatch.setattr(interference, "MIN_RATIO", 0.9 * 1.001)
    launcher, _ = sweep(1.0, 0.9)
    assert sorted(launcher.beside) == sorted(every(MAX_ROUNDS, 2))


def test_one_slot_has_nothing_to_find_out(sweep):
    launcher, lines = sweep(1.0)
    assert (launcher.beside, lines) == ([], [])


def test_workers_elsewhere_are_not_tried_beside_each_other(bench):
    launcher = Neighbours(0.5, 0.5)
    run_sweep(bench.home, SPEC, NullTracker(), bench.watcher, launch=lambda folder: launcher)
    assert launcher.beside == []
    assert launcher.most == 2


@pytest.mark.parametrize(("ratio", "disturbs"), [(0.9699, True), (0.97, False), (1.02, False)])
def test_the_limit_is_three_percent(ratio, disturbs):
    assert Interference(slots=2, rounds=((1000.0, 1100.0, 1000.0 * ratio),)).disturbs is disturbs
