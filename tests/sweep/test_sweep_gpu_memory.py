"""Waiting for a GPU's memory: before each start after another trial, and not for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import stub_nvml
from replays import failing, spec_of

from sweeper.core.measurement import DeviceInfo, FailureKind
from sweeper.sweep import trial_runner
from sweeper.sweep.start import gpu_memory as under_test
from sweeper.sweep.start.gpu_memory import MemoryWaiter, uuids_of
from sweeper.telemetry.nvml.devices import awake


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
    waiter = MemoryWaiter(["GPU-a"], memory)
    waiter.wait("GPU-a")
    assert memory.looks == 4


def test_the_least_that_was_held_is_what_is_waited_for(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    # Somebody left after the first trial: what they had held is not the next trial's to leave behind.
    memory = Memory(6.0, 0.5, 4.0, 0.6)
    waiter = MemoryWaiter(["GPU-a"], memory)
    waiter.wait("GPU-a")
    assert memory.looks == 2
    waiter.wait("GPU-a")
    assert memory.looks == 4


def test_it_does_not_wait_for_ever_and_for_whoever_stays_only_once(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(under_test, "PATIENCE_SECONDS", 0.05)
    memory = Memory(1.0, 9.0)
    waiter = MemoryWaiter(["GPU-a"], memory)
    waiter.wait("GPU-a")
    looks = memory.looks
    assert looks > 2
    waiter.wait("GPU-a")
    assert memory.looks == looks + 1
    # What comes on top of it is waited for again.
    memory.gib = [11.0, 9.1]
    waiter.wait("GPU-a")
    assert memory.looks == looks + 3


@pytest.mark.parametrize("gib", [(None,), (1.0, None)])
def test_what_is_not_told_is_not_asked_again(gib):
    memory = Memory(*gib)
    waiter = MemoryWaiter(["GPU-a"], memory)
    for _ in range(3):
        waiter.wait("GPU-a")
    assert memory.looks == len(gib)


def test_each_gpu_of_a_slot_is_waited_for_and_a_cpu_is_not(monkeypatch):
    seen = []

    def used(uuid: str) -> float:
        seen.append(uuid)
        return 1.0

    waiter = MemoryWaiter(["GPU-a,GPU-b", "cpu"], used)
    assert seen == ["GPU-a", "GPU-b"]
    waiter.wait("GPU-a,GPU-b")
    assert seen == ["GPU-a", "GPU-b"] * 2
    waiter.wait("cpu")
    assert len(seen) == 4


def test_a_sweep_waits_before_each_start_but_the_first_on_a_gpu(bench, monkeypatch):
    waited = []

    class Watched(MemoryWaiter):
        def __init__(self, devices):
            super().__init__(devices, lambda uuid: 1.0)

        def wait(self, device: str) -> None:
            waited.append((device, len(bench.launcher.jobs)))

    monkeypatch.setattr(trial_runner, "MemoryWaiter", Watched)
    device = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-a", memory_gib=22.5)
    bench.run(spec_of(), failing(FailureKind.TIMEOUT), devices=[device])
    # Before every job, but for those of the set-up and the first trial.
    baseline = [job.stage for job in bench.launcher.jobs].index("baseline")
    assert waited == [("GPU-a", count) for count in range(baseline + 1, len(bench.launcher.jobs))]


# -- the driver, kept awake -----------------------------------------------------------------------------

GPU = stub_nvml.Gpu()
OTHER = stub_nvml.Gpu("GPU-22222222-aaaa-4bbb-8ccc-000000000002")


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Gives a machine with GPUs to this process; returns where its scenario lies."""
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = stub_nvml.build(tmp_path)

    def play(*gpus, **how):
        scenario = stub_nvml.write(tmp_path / "scenario", gpus, **how)
        stub_nvml.loaded(monkeypatch, library, scenario)
        return scenario

    return play


def held(scenario) -> Iterator[tuple[str, int]]:
    """Yields each call of a scenario, and how often NVML was open then: the driver sleeps at 0."""
    opens = 0
    for call in stub_nvml.calls(scenario):
        opens += (call == "nvmlInitWithFlags") - (call == "nvmlShutdown")
        yield call, opens


def test_the_driver_stays_awake_from_before_the_first_trial_to_the_end_of_the_sweep(bench, play):
    scenario = play(GPU)
    device = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=GPU.uuid, memory_gib=22.5)
    bench.run(spec_of(), failing(FailureKind.TIMEOUT), devices=[device])
    assert len(bench.launcher.jobs) > 2
    log = list(held(scenario))
    held_from = max(i for i, (call, opens) in enumerate(log) if (call, opens) == ("nvmlInitWithFlags", 1))
    assert all(opens > 0 for _, opens in log[held_from:-1])
    looks = [i for i, (call, _) in enumerate(log) if call.startswith("nvmlDeviceGetMemoryInfo")]
    later = [look for look in looks if look > held_from]
    assert len(later) > 2
    # Its handle was asked for before the first look: that is what opens the GPU itself.
    before = [call for call, opens in log[held_from : later[0]] if opens == 1]
    assert f"nvmlDeviceGetHandleByUUID {GPU.uuid}" in before
    assert log[-1] == ("nvmlShutdown", 0)


def test_without_gpus_nothing_is_kept_awake(play):
    scenario = play(GPU)
    assert uuids_of(["cpu", "auto", "cpu"]) == []
    with awake([]):
        pass
    assert stub_nvml.calls(scenario) == []


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID", "nvmlShutdown"])
def test_whatever_nvml_refuses_the_sweep_goes_on_and_other_gpus_are_kept_awake(play, function):
    uuid = GPU.uuid if function == "nvmlDeviceGetHandleByUUID" else "*"
    scenario = play(GPU, OTHER, errors=[(uuid, function, 999)])
    ran = False
    with awake([GPU.uuid, OTHER.uuid]):
        ran = True
        asked = stub_nvml.calls(scenario, "nvmlDeviceGetHandleByUUID")
    assert ran
    assert (f"nvmlDeviceGetHandleByUUID {OTHER.uuid}" in asked) == (function != "nvmlInitWithFlags")
    assert list(held(scenario))[-1][1] == (1 if function == "nvmlInitWithFlags" else 0)


def test_a_sweep_that_is_broken_off_lets_the_driver_sleep(play):
    scenario = play(GPU)
    with contextlib.suppress(KeyboardInterrupt), awake([GPU.uuid]):
        raise KeyboardInterrupt
    assert list(held(scenario))[-1] == ("nvmlShutdown", 0)
