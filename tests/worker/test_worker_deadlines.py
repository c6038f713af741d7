"""When a job is overdue, by hand-made clocks; and the counter that tells."""

from __future__ import annotations

import os

import pytest

from sweeper.core.job import RETRIED
from sweeper.core.measurement import INFEASIBLE, FailureKind
from sweeper.core.progress import STAGES, STEPPING, TRAINING_STAGE, LocalSteps
from sweeper.worker.deadlines import LATE_SECONDS, LOOK_SECONDS, STALL_RATIO, KillReason, OverdueWatch
from sweeper.worker.step_counter import SharedSteps, make_counter


class Bench:
    """A job whose keeper looks as often as it is told to."""

    def __init__(self, timeout=600.0, stages=None, stall=60.0):
        self.now, self.count, self.paused = 1000.0, 0, False
        self.overdue = OverdueWatch(timeout, stages or {}, stall, self.now)

    def reach(self, name):
        self.overdue.stage(name, self.now, self.count)

    def run(self, seconds, step_seconds=0.0) -> KillReason | None:
        """Lets time pass, with a step each so often; returns the first finding."""
        end, next_step = self.now + seconds, self.now + step_seconds
        while self.now < end - 1e-6:
            self.now = min(self.now + max(1e-3, self.overdue.seconds_to_look(self.now)), end)
            while step_seconds and next_step <= self.now + 1e-6:
                self.count, next_step = self.count + 1, next_step + step_seconds
            if found := self.overdue.look(self.now, self.count, self.paused):
                return found
        return None


def test_the_whole_time():
    bench = Bench(timeout=50)
    assert bench.run(49.9) is None
    assert bench.run(1) == KillReason(FailureKind.TIMEOUT, "no result within 50 s (in stage `start`)")
    assert bench.now == pytest.approx(1050)


def test_a_stages_time_is_that_of_all_its_parts():
    bench = Bench(stages={"compile": 10.0})
    bench.reach("build")
    assert bench.run(30) is None
    for _ in range(2):
        bench.reach("compile")
        assert bench.run(4) is None
        bench.reach("warmup")
        assert bench.run(30, step_seconds=0.1) is None
    bench.reach("compile")
    began = bench.now
    assert bench.run(30) == KillReason(
        FailureKind.TIMEOUT, "stage `compile` took longer than its limit of 10 s"
    )
    assert bench.now == pytest.approx(began + 2)


@pytest.mark.parametrize("stage", sorted(STEPPING))
def test_steps_that_stop_coming(stage):
    bench = Bench(stall=30)
    bench.reach(stage)
    assert bench.run(20, step_seconds=0.01) is None
    stopped = bench.now
    found = bench.run(100)
    assert found.kind is FailureKind.STALLED
    assert 30 <= bench.now - stopped <= 30 + 2 * LOOK_SECONDS
    assert f"after 2,000 steps (in stage `{stage}`)" in found.message


@pytest.mark.parametrize("stage", [name for name in STAGES if name not in STEPPING] + ["prepare"])
def test_no_stall_where_no_steps_are_taken(stage):
    bench = Bench(stall=5)
    bench.reach(stage)
    assert bench.run(2, step_seconds=0.1) is None
    assert bench.run(500) is None


def test_no_stall_before_a_stages_first_step_nor_where_it_is_turned_off():
    bench = Bench(stall=5)
    bench.reach("warmup")
    assert bench.run(10, step_seconds=0.1) is None
    bench.reach("quality")
    assert bench.run(300) is None
    off = Bench(stall=0)
    off.reach("window")
    assert off.run(10, step_seconds=0.1) is None
    assert off.run(500) is None


def test_steps_before_a_stage_that_nobody_had_looked_at_are_none_of_it():
    bench = Bench(stall=5)
    bench.reach("warmup")
    assert bench.run(10, step_seconds=0.1) is None
    bench.count += 1
    bench.reach("quality")
    assert bench.run(300) is None


def test_the_windows_first_step_is_awaited_once_the_warm_up_has_taken_one():
    bench = Bench(timeout=10_000, stall=5)
    bench.reach("warmup")
    assert bench.run(60, step_seconds=2.0) is None
    bench.reach("window")
    stopped = bench.now
    found = bench.run(300)
    assert found.kind is FailureKind.STALLED
    assert 40 <= bench.now - stopped <= 42
    # Programs that only report samples take no steps.
    unaware = Bench(timeout=10_000, stall=5)
    unaware.reach("warmup")
    assert unaware.run(60) is None
    unaware.reach("window")
    assert unaware.run(300) is None


def test_a_production_run_is_to_take_a_first_step_as_well():
    bench = Bench(timeout=1e9, stall=600)
    bench.reach("build")
    assert bench.run(3000) is None
    bench.reach(TRAINING_STAGE)
    assert bench.run(599) is None
    assert bench.run(3).message == "no step for 600 s after 0 steps (in stage `training`)"


@pytest.mark.parametrize("step_seconds", [4.0, 9.0])
def test_slow_steps_have_twenty_times_their_own_time(step_seconds):
    bench = Bench(timeout=10_000, stall=10)
    bench.reach("window")
    assert bench.run(30 * step_seconds, step_seconds=step_seconds) is None
    stopped = bench.now
    assert bench.run(STALL_RATIO * step_seconds - 3) is None
    assert bench.run(10).kind is FailureKind.STALLED
    assert bench.now - stopped >= STALL_RATIO * step_seconds - 1


def test_a_first_step_longer_than_the_limit_is_none():
    bench = Bench(timeout=10_000, stall=10)
    bench.reach("warmup")
    assert bench.run(500, step_seconds=100.0) is None


def test_what_came_before_a_stage_is_no_measure_of_its_steps():
    bench = Bench(stall=10)
    assert bench.run(300) is None
    bench.reach("warmup")
    assert bench.run(1, step_seconds=1.0) is None
    assert bench.run(25).kind is FailureKind.STALLED


def test_words_and_pauses_are_signs_of_life():
    bench = Bench(stall=10)
    bench.reach("quality")
    assert bench.run(5, step_seconds=0.1) is None
    for _ in range(10):
        assert bench.run(8) is None
        bench.overdue.note_life(bench.now)
    bench.paused = True
    assert bench.run(100) is None
    bench.paused = False
    assert bench.run(8) is None
    assert bench.run(8).kind is FailureKind.STALLED


def test_time_in_which_nobody_could_look_does_not_count():
    bench = Bench(timeout=100, stages={"window": 50.0}, stall=10)
    bench.reach("window")
    assert bench.run(20, step_seconds=0.1) is None
    bench.overdue.seconds_to_look(bench.now)
    bench.now += 3600
    assert bench.overdue.look(bench.now, bench.count, False) is None
    assert bench.run(9) is None
    assert bench.run(3).kind is FailureKind.STALLED
    # A little late is no excuse: all of it counts.
    bench = Bench(timeout=20)
    bench.overdue.seconds_to_look(bench.now)
    bench.now += 20 + LATE_SECONDS - 0.1
    assert bench.overdue.look(bench.now, 0, False).kind is FailureKind.TIMEOUT


def test_neither_is_tried_again_and_both_are_learnt_from():
    assert {FailureKind.TIMEOUT, FailureKind.STALLED} <= INFEASIBLE
    assert not {FailureKind.TIMEOUT, FailureKind.STALLED} & RETRIED


def test_a_counter_is_seen_by_another_process():
    descriptor = make_counter()
    mine = SharedSteps(descriptor)
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        theirs = SharedSteps(descriptor)
        for _ in range(1000):
            theirs.add()
        with theirs.paused():
            os.read(reads, 1)
        os._exit(0)
    while not mine.is_paused:
        pass
    assert mine.count == 1000
    os.write(writes, b".")
    os.waitpid(pid, 0)
    assert not mine.is_paused
    # Whoever cuts it would have the reader die of SIGBUS.
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    mine.close()
    for each in (descriptor, reads, writes):
        os.close(each)


def test_a_counter_of_ones_own():
    steps = LocalSteps()
    steps.add()
    with steps.paused():
        assert (steps.count, steps.pauses) == (1, 1)
    assert steps.pauses == 0
