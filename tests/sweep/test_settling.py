"""Waiting for a GPU's memory: after a failure alone, and not for ever."""

from __future__ import annotations

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


def test_it_does_not_wait_for_ever_nor_where_nothing_is_told(monkeypatch):
    monkeypatch.setattr(under_test, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(under_test, "PATIENCE_SECONDS", 0.05)
    memory = Memory(1.0, 9.0)
    Settling(["GPU-a"], memory).wait("GPU-a")
    assert memory.looks > 2
    for untold in (Memory(None), Memory(1.0, None)):
        Settling(["GPU-a"], untold).wait("GPU-a")
        assert untold.looks <= 2


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


def test_a_sweep_waits_after_a_failure_and_only_then(bench, monkeypatch):
    waited = []

    class Watched(Settling):
        def __init__(self, devices):
            super().__init__(devices, lambda uuid: 1.0)

        def wait(self, device: str) -> None:
            waited.append((device, len(bench.launcher.jobs)))

    monkeypatch.setattr(supervisor, "Settling", Watched)
    device = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-a", memory_gib=22.5)
    bench.run(spec_of(), failing(FailureKind.TIMEOUT), devices=[device])
    (only,) = waited
    assert only[0] == "GPU-a"
    stages = [job.stage for job in bench.launcher.jobs]
    # Between the first searched trial, which failed, and the second.
    assert only[1] == stages.index("search", stages.index("reference") + 1) + 1
