"""Timed stretches: whole drains, warm-up, and windows that are taken again where something disturbed them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from burning import strangers

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Window
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.system.process import usage
from sweeper.trainer import measure
from sweeper.trainer.data import make_loader
from sweeper.trainer.setup import set_up
from sweeper.trainer.step import clocks
from sweeper.trainer.step.clocks import BACKWARD, FORWARD, NUM_PHASES, NoClock
from sweeper.trainer.step.group import Group
from sweeper.trainer.timing import conditions, windows
from sweeper.trainer.timing import step_timer as under_test
from sweeper.trainer.timing.conditions import Conditions
from sweeper.trainer.timing.step_timer import StepTimer
from sweeper.trainer.timing.windows import MAX_TRIES, TimedWindow, WindowSet, collect_windows

ALONE = Group.start(1, lambda *_: None)
OTHERS = "other processes took cores"
SLOW = "the processor was slow (canary)"
FOREIGN = "other processes used the GPU"


def timer(job) -> StepTimer:
    pipeline, stepper, _ = set_up(job)
    loader = make_loader(pipeline.train, job.config.loader, job.config.batch_size, 0, stepper.device)
    loader.start()
    return StepTimer(stepper, loader, ALONE)


# -- stretches and warm-up ------------------------------------------------------------------------------


def test_a_stretch_covers_whole_prefetch_drains_where_they_fit(make_job):
    drained = timer(make_job())
    drained.loader.drain_steps = 7
    for drain_steps, whole in ((0, 7), (5, 5)):
        for _ in range(3):
            found = drained.stretch(NoClock(), 0.02, 60.0, drain_steps)
            assert found.steps % whole == 0
            assert found.seconds >= 0.02
            assert found.samples == 100 * found.steps


def test_a_drain_that_does_not_fit_is_cut(make_job):
    drained = timer(make_job())
    drained.loader.drain_steps = 10**9
    found = drained.stretch(NoClock(), 0.02, 0.05)
    assert 0.05 <= found.seconds < 5
    assert found.steps < 10**9
    warmup = drained.warm_up(0.2)
    assert not warmup.steady
    assert warmup.steps >= 1
    assert warmup.step_seconds > 0


def test_samples_of_skipped_steps_are_taken_off_the_window(make_job):
    skipping = timer(make_job({"precision.amp": "fp16", "model.fault": "inf", "accumulate_steps": 2}))
    skipping.loader.drain_steps = 2
    taken = skipping.take_window(NoClock(), 0.02, 200)
    assert taken.window.steps >= 2
    assert taken.window.samples == 0
    assert taken.lost == 100 * taken.window.steps


def test_some_skipped_steps_cost_their_samples_and_no_more(make_job, monkeypatch):
    trained = timer(make_job())
    trained.stepper.skipped += 5
    stretch = trained.stretch

    def skipping(*args, **named):
        trained.stepper.skipped += 3
        return stretch(*args, **named)

    monkeypatch.setattr(trained, "stretch", skipping)
    taken = trained.take_window(NoClock(), 0.05, 100)
    assert taken.lost == 300
    assert taken.window.samples == 100 * taken.window.steps - 300
    measure._check_training(1.0, 9000, 1000)
    with pytest.raises(TrialFailedError, match="fp16 skipped 11% of its steps"):
        measure._check_training(1.0, 8900, 1100)


def test_warm_up_waits_for_every_shape_that_is_compiled(make_sequence_job, monkeypatch):
    trained = timer(make_sequence_job({"batch_size": 32, "loader.buckets": 2}))
    assert trained.loader.num_shapes == 2
    asked = []

    def has_seen(num_shapes: int) -> bool:
        asked.append(num_shapes)
        return len(asked) > 2

    monkeypatch.setattr(trained.stepper, "has_seen", has_seen)
    monkeypatch.setattr(under_test, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(under_test, "is_steady", lambda blocks: len(blocks) >= 2)
    warmup = trained.warm_up(20.0)
    assert asked == [2, 2, 2]
    assert warmup.steady
    assert warmup.step_seconds > 0
    assert warmup.steps >= 4
    asked.clear()
    monkeypatch.setattr(trained.stepper, "has_seen", lambda _: False)
    assert trained.warm_up(0.1).steady is False


# -- windows that something disturbs, on a clock of their own -------------------------------------------

STEP_SECONDS, SAMPLES = 1e-3, 10
PLAN = MeasurePlan(window_seconds=0.1, repeats=3, cap_seconds=1e9)
TAKEN = 0.05


class Bench:
    """A training whose steps take a millisecond of its own clock, and what goes on beside its windows.

    Attributes:
        host: By window, processor seconds that others take while threads of the trial wait for a core.
        keeper: By window, what the keeper answers.
        heard: The windows that the keeper was told of.
    """

    device = torch.device("cpu")
    drain_steps = 1

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        host: Sequence[float] = (),
        keeper: Sequence[Sequence[str]] = (),
        canaries: Sequence[float] = (),
    ) -> None:
        self.host, self.keeper, self.canaries = host, keeper, iter(canaries)
        self.heard: list[Window] = []
        self.skipped = torch.zeros(())
        self.phase, self.skips = FORWARD, 0
        self.now = 100.0
        self._reads = 0
        self._at = Conditions(50.0, 5.0, 1.0, 70.0, 2.0, None, 10, 1000, 0.5)
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(under_test, "time", clock)
        monkeypatch.setattr(windows, "time", clock)
        monkeypatch.setattr(clocks, "time", clock)
        monkeypatch.setattr(under_test, "read_conditions", self.read)
        monkeypatch.setattr(under_test, "undisturbed_canary_ms", lambda: next(self.canaries, 0.0))

    def taken(self, number: int) -> float:
        return self.host[number] if number < len(self.host) else 0.0

    def said(self, number: int) -> Sequence[str]:
        return self.keeper[number] if number < len(self.keeper) else ()

    def step(self, loader, clock) -> int:
        clock.start()
        self.now += STEP_SECONDS
        clock.mark(self.phase)
        self.skipped += self.skips
        return SAMPLES

    def read(self) -> Conditions:
        number, after = divmod(self._reads, 2)
        self._reads += 1
        disturbed = bool(self.taken(number) or self.said(number))
        # What a disturbed window leaves behind can be told from what others do.
        self.phase, self.skips = (BACKWARD, 1) if disturbed and not after else (FORWARD, 0)
        if after:
            own, at = 0.1, self._at
            self._at = dataclasses.replace(
                at,
                cpu_seconds=at.cpu_seconds + own,
                busy_seconds=at.busy_seconds + own + self.taken(number),
                waited_seconds=at.waited_seconds + self.taken(number),
                minor_faults=at.minor_faults + 7,
            )
        return self._at

    def window(self, window: Window) -> Sequence[str]:
        self.heard.append(window)
        return list(self.said(len(self.heard) - 1))

    def windows(self, plan: MeasurePlan = PLAN) -> WindowSet:
        return StepTimer(self, self, ALONE).take_windows(plan, SAMPLES, self)


def numbers(bench: Bench, found: WindowSet) -> list[int]:
    """Which of the windows that were taken have been kept."""
    return [[window.start_s for window in bench.heard].index(each.start_s) for each in found.kept]


def test_quiet_windows_are_taken_once(monkeypatch):
    bench = Bench(monkeypatch)
    found = bench.windows()
    assert numbers(bench, found) == [0, 1, 2]
    assert (found.repeated, found.lost) == (0, 0)
    assert [window.disturbances for window in found.kept] == [()] * 3
    assert {window.minor_faults for window in found.kept} == {7}
    assert found.kept[0].waited_seconds == found.kept[0].foreign_cpu_seconds == 0.0


@pytest.mark.parametrize("whose", ["host", "keeper"])
def test_a_disturbed_window_is_taken_again(monkeypatch, whose: str):
    away = {"host": {"host": [0, TAKEN, TAKEN]}, "keeper": {"keeper": [[], [FOREIGN], [FOREIGN]]}}[whose]
    bench = Bench(monkeypatch, **away)
    found = bench.windows()
    assert numbers(bench, found) == [0, 3, 4]
    assert found.repeated == 2
    assert [window.disturbances for window in found.kept] == [()] * 3


def test_each_window_may_be_taken_again(monkeypatch):
    bench = Bench(monkeypatch, host=[TAKEN, 0, TAKEN, TAKEN, 0, TAKEN, TAKEN])
    found = bench.windows()
    assert numbers(bench, found) == [1, 4, 7]
    assert found.repeated == 5
    assert [window.disturbances for window in found.kept] == [()] * 3


def test_what_is_always_disturbed_is_kept_with_its_reasons(monkeypatch):
    bench = Bench(monkeypatch, host=[TAKEN] * 99)
    found = bench.windows()
    # The first is taken three times; after that what goes on will not be over soon.
    assert MAX_TRIES == 3
    assert numbers(bench, found) == [2, 3, 4]
    assert found.repeated == 2
    assert [window.disturbances for window in found.kept] == [(OTHERS,)] * 3
    assert found.kept[0].foreign_cpu_seconds == pytest.approx(TAKEN)


def test_after_one_that_stayed_disturbed_no_other_is_taken_again(monkeypatch):
    bench = Bench(monkeypatch, host=[0, TAKEN, TAKEN, TAKEN, TAKEN, 0])
    found = bench.windows(dataclasses.replace(PLAN, repeats=4))
    assert numbers(bench, found) == [0, 3, 4, 5]
    assert [window.disturbances for window in found.kept] == [(), (OTHERS,), (OTHERS,), ()]
    assert found.repeated == 2


def test_in_turns_none_is_taken_again():
    """The others see the same disturbance, and the turn would be theirs."""
    number, heard = iter(range(9)), []

    def take(seconds: float, kept: Sequence[Window]) -> TimedWindow:
        heard.append(len(kept))
        window = Window(start_s=float(next(number)), seconds=1.0, steps=1, samples=1)
        return TimedWindow(dataclasses.replace(window, foreign_cpu_seconds=1.0, waited_seconds=1.0))

    found = collect_windows(PLAN, SilentProgress(), take, is_in_turns=True)
    assert heard == list(range(PLAN.repeats))
    assert found.repeated == 0
    assert all(window.disturbances for window in found.kept)


# A window and the steps before it take 0.12 s; further ones each as long again.
@pytest.mark.parametrize(("cap", "kept"), [(0.0, [0]), (0.13, [1]), (0.25, [2]), (0.37, [2, 3])])
def test_the_cap_ends_repetition(monkeypatch, cap: float, kept: list[int]):
    bench = Bench(monkeypatch, host=[TAKEN] * 99)
    found = bench.windows(dataclasses.replace(PLAN, cap_seconds=cap))
    assert numbers(bench, found) == kept
    assert found.repeated == kept[0]
    assert len(bench.heard) == kept[-1] + 1
    assert all(window.disturbances == (OTHERS,) for window in found.kept)


def test_what_was_discarded_is_in_none_of_the_figures(monkeypatch):
    bench = Bench(monkeypatch, host=[TAKEN, 0, 0, TAKEN, TAKEN, 0])
    found = bench.windows()
    assert found.repeated == 3
    assert bench.skipped > 0
    assert found.lost == 0
    assert found.steps == round(found.seconds / STEP_SECONDS)
    assert found.seconds == pytest.approx(0.3, abs=3 * STEP_SECONDS)
    assert found.samples == SAMPLES * found.steps
    assert found.phases[BACKWARD] == 0
    assert sum(found.phases) == pytest.approx(found.seconds)
    assert len(found.phases) == NUM_PHASES


def test_what_was_kept_disturbed_is_in_all_of_the_figures(monkeypatch):
    bench = Bench(monkeypatch, host=[TAKEN] * 99)
    found = bench.windows(dataclasses.replace(PLAN, repeats=1))
    assert found.repeated == 2
    assert found.lost == SAMPLES * found.steps
    assert found.samples == 0
    assert found.phases[BACKWARD] == pytest.approx(found.seconds)


def test_the_reasons_of_host_and_keeper_are_joined(monkeypatch):
    bench = Bench(monkeypatch, host=[TAKEN] * 9, keeper=[[FOREIGN, "hot"]] * 9)
    found = bench.windows(dataclasses.replace(PLAN, repeats=1))
    assert found.kept[0].disturbances == (OTHERS, FOREIGN, "hot")
    # The keeper is asked about the window before anything is said of it.
    assert [window.disturbances for window in bench.heard] == [()] * 3


def test_a_window_has_the_slower_canary_of_before_and_after(monkeypatch):
    bench = Bench(monkeypatch, canaries=[3.0, 5.0, 0.0, 0.0, 4.0])
    found = bench.windows(dataclasses.replace(PLAN, repeats=4))
    assert [window.canary_ms for window in found.kept] == [5.0, 5.0, 0.0, 4.0]
    assert found.repeated == 0


def test_a_slow_canary_repeats_a_window_where_the_quiet_one_is_known(monkeypatch):
    bench = Bench(monkeypatch, canaries=[20.0, 27.0, 21.0, 20.0])
    plan = dataclasses.replace(PLAN, repeats=1, quiet_canary_ms=20.0)
    found = bench.windows(plan)
    # It stands between two windows, and makes both of them slow.
    assert numbers(bench, found) == [2]
    assert (found.repeated, found.kept[0].disturbances) == (2, ())
    always = Bench(monkeypatch, canaries=[27.0] * 9)
    assert always.windows(plan).kept[0].disturbances == (SLOW,)


# A step of 1 ms takes 10 samples: 10,000 a second.
SCREENED = dataclasses.replace(PLAN, screen_seconds=0.02)


def test_a_trial_that_cannot_catch_up_ends_after_its_screening(monkeypatch):
    bench = Bench(monkeypatch)
    found = bench.windows(dataclasses.replace(SCREENED, screen_above=10_500.0))
    assert found.is_screened
    (window,) = found.kept
    assert window.seconds == pytest.approx(0.02, abs=2e-3)
    assert (found.steps, found.samples) == (window.steps, window.samples)
    assert sum(found.phases) == pytest.approx(window.seconds)


def test_a_trial_that_passes_its_screening_is_timed_without_it(monkeypatch):
    bench = Bench(monkeypatch)
    found = bench.windows(dataclasses.replace(SCREENED, screen_above=9_500.0))
    assert not found.is_screened
    assert len(bench.heard) == 4
    assert [window.seconds for window in found.kept] == pytest.approx([0.1] * 3, abs=2e-3)
    assert sum(found.phases) == pytest.approx(found.seconds)


def test_a_disturbed_screening_is_taken_again_and_decides_nothing(monkeypatch):
    bench = Bench(monkeypatch, keeper=[[FOREIGN]])
    found = bench.windows(dataclasses.replace(SCREENED, screen_above=10_500.0))
    assert found.is_screened
    assert found.repeated == 1
    assert len(bench.heard) == 2
    bench = Bench(monkeypatch, keeper=[[FOREIGN]] * 3)
    found = bench.windows(dataclasses.replace(SCREENED, screen_above=10_500.0))
    assert not found.is_screened
    assert len(found.kept) == 3


def test_a_hopeless_trial_does_not_warm_up_to_the_end(make_job, monkeypatch):
    trained = timer(make_job())
    monkeypatch.setattr(under_test, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(under_test, "is_steady", lambda blocks: len(blocks) >= 5)
    hopeless = trained.warm_up(20.0, screen_above=1e12)
    assert not hopeless.steady
    steady = trained.warm_up(20.0, screen_above=1.0)
    assert steady.steady
    assert steady.steps > hopeless.steps


@pytest.mark.parametrize("at", ["before", "after"])
def test_counters_that_are_not_told_are_none(monkeypatch, at: str):
    bench = Bench(monkeypatch, host=[TAKEN])
    read = bench.read

    def without() -> Conditions:
        found, number = read(), bench._reads % 2
        lacking = number == (at == "before")
        return dataclasses.replace(found, waited_seconds=None) if lacking else found

    monkeypatch.setattr(under_test, "read_conditions", without)
    found = bench.windows(dataclasses.replace(PLAN, repeats=1))
    (window,) = found.kept
    assert (window.waited_seconds, window.pressure_seconds, window.disturbances) == (None, None, ())
    assert window.foreign_cpu_seconds == pytest.approx(TAKEN)


# -- on this machine ------------------------------------------------------------------------------------


@pytest.mark.alone
def test_beside_a_busy_process_on_every_core_it_is_noticed(make_job):
    trained = timer(make_job())
    with strangers():
        plan = MeasurePlan(window_seconds=0.25, repeats=1, cap_seconds=30)
        found = trained.take_windows(plan, 100, SilentProgress())
    (window,) = found.kept
    assert found.repeated == 2
    assert OTHERS in window.disturbances
    assert window.waited_seconds > 0.05
    assert window.foreign_cpu_seconds > 0.1


def machine_busy_seconds() -> float:
    """Busy time of all cores, as the first line of /proc/stat has it."""
    with open("/proc/stat") as file:
        columns = [int(each) for each in file.readline().split()[1:]]
    return (sum(columns[:3]) + sum(columns[5:7])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
@pytest.mark.parametrize("threads", [1, 4 * len(os.sched_getaffinity(0))])
def test_a_trial_of_its_own_disturbs_nothing(make_job, threads: int):
    """Neither what it computes nor what its own threads take from one another is another's doing."""
    trained = timer(make_job({"model.hidden": 256, "batch_size": 1000, "device.cpu_threads": threads}))
    quiet_ms = min(conditions.canary_ms() for _ in range(5))
    plan = MeasurePlan(window_seconds=0.2, repeats=1, cap_seconds=0, quiet_canary_ms=quiet_ms)
    try:
        for _ in range(3):
            busy, own, began = machine_busy_seconds(), usage(os.getpid()).cpu_seconds, time.perf_counter()
            (window,) = trained.take_windows(plan, 1000, SilentProgress()).kept
            seconds = time.perf_counter() - began
            others = machine_busy_seconds() - busy - (usage(os.getpid()).cpu_seconds - own)
            if others < 0.05 * seconds and window.canary_ms < 1.2 * quiet_ms and window.steal_seconds < 0.01:
                assert window.disturbances == ()
                assert threads == 1 or window.waited_seconds > 0.05
                return
    finally:
        torch.set_num_threads(1)
    pytest.skip("this machine is busy with something else")
