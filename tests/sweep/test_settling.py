"""Waiting for a GPU's memory: before each start after another trial, and not for ever."""

from __future__ import annotations

import pytest
from replays import failing, spec_of

from sweeper.core.measurement import DeviceInfo, FailureKind
from sweeper.sweep import settling as under_test
from sweeper.sweep import supervisor
from sweeper.sweep.settling import Settling


class Memory:
    """GiB in use, look by look, and how often it was looked."""

    def __init__(self, *gib: float | None) -> None:
        self.gib, self.looks = list(gib), 0

    def __call__(self, uuid: str) -> float | None:
        self.looks += 1
        return self.gib.pop(0) if len(self.gib) > 1 else self.gib[0]


def test_it_waits_until_no_more_is_held_than_before_the_first_trial(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    memory = Memory(1.0, 9.0, 5.0, 1.1, 7.0)
    settling = Settling(["GPU-a"], memory)
    settling.wait("GPU-a")
    assert memory.looks == 4


def test_the_least_that_was_held_is_what_is_waited_for(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    # Somebody left after the first trial: what they had held is not the next trial's to leave behind.
    memory = Memory(6.0, 0.5, 4.0, 0.6)
    settling = Settling(["GPU-a"], memory)
    settling.wait("GPU-a")
    assert memory.looks == 2
    settling.wait("GPU-a")
    assert memory.looks == 4


def test_it_does_not_wait_for_ever_and_for_whoever_stays_only_once(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(under_test, "PATIENCE_SECONDS", 0.05)
    memory = Memory(1.0, 9.0)
    settling = Settling(["GPU-a"], memory)
    settling.wait("GPU-a")
    looks = memory.looks
    assert looks > 2
    settling.wait("GPU-a")
    assert memory.looks == looks + 1
    # What comes on top of it is waited for again.
    memory.gib = [11.0, 9.1]
    settling.wait("GPU-a")
    assert memory.looks == looks + 3


@pytest.mark.parametrize("gib", [(None,), (1.0, None)])
def test_what_is_not_told_is_not_asked_again(gib):
    memory = Memory(*gib)
    settling = Settling(["GPU-a"], memory)
    for _ in range(3):
        settling.wait("GPU-a")
    assert memory.looks == len(gib)


def test_each_gpu_of_a_slot_is_waited_for_and_a_cpu_is_not(monkeypatch):
    seen = []

    def used(uuid: str) -> float:
        seen.append(uuid)
        return 1.0

    settling = Settling(["GPU-a,GPU-b", "cpu"], used)
    assert seen == ["GPU-a", "GPU-b"]
    settling.wait("GPU-a,GPU-b")
    assert seen == ["GPU-a", "GPU-b"] * 2
    settling.wait("cpu")
    assert len(seen) == 4


def test_a_sweep_waits_before_each_start_but_the_first_on_a_gpu(bench, monkeypatch):
    waited = []

    class Watched(Settling):
        def __init__(self, devices):
            super().__init__(devices, lambda uuid: 1.0)

        def wait(self, device: str) -> None:
            waited.append((device, len(bench.launcher.jobs)))

    monkeypatch.setattr(supervisor, "Settling", Watched)
    device = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-a", memory_gib=22.5)
    bench.run(spec_of(), failing(FailureKind.TIMEOUT), devices=[device])
    # Before every job, but for those of the set-up and the first trial.
    baseline = [job.stage for job in bench.launcher.jobs].index("baseline")
    assert waited == [("GPU-a", count) for count in range(baseline + 1, len(bench.launcher.jobs))]
