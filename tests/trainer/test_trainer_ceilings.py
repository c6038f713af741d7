"""The ceilings job: what it reports where all goes well, and where a part of it does not."""

from __future__ import annotations

import signal
import time

import pytest
import torch

from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import DeviceInfo
from sweeper.core.progress import SilentProgress
from sweeper.system.process import time_limit
from sweeper.trainer import ceilings, support

UNITS = {"GFLOP/s", "TFLOP/s", "GiB/s", "1/s", "samples/s", "s"}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Short measurements, on two threads where there are two cores; the compiler's part is left out."""
    before = torch.get_num_threads()
    monkeypatch.setattr(ceilings, "SECONDS", 0.02)
    monkeypatch.setattr(ceilings, "usable_cpus", lambda: 2)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(ceilings, "lacks_compiler", lambda: "no C compiler was found")


class Stages(SilentProgress):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def stage(self, name: str) -> None:
        self.all.append(name)


def test_a_report_without_a_gpu(tmp_path, no_compiler, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    progress = Stages()
    values = encode(ceilings.run(Job(uid="c", cache=str(tmp_path / "cache")), progress).values)
    assert progress.all == ["torch", "cpu", "loader", "disk", "compile"]
    assert values["torch"]["version"] == torch.__version__
    assert values["gpus"] == []
    assert values["cpu"]["kind"] == "cpu"
    assert values["compile"]["problem"] == "no C compiler was found"
    assert [values[part]["problem"] for part in ("cpu", "loader", "disk")] == ["", "", ""]
    found = {each["name"]: each["value"] for each in values["ceilings"]}
    lacking = values["cpu"]["lacks"]
    assert {"cpu.matmul_fp32", "cpu.matmul_fp32_one_thread", "cpu.memory_copy", "loader.rows"} <= found.keys()
    assert ("cpu.matmul_bf16" in found) is ("precision.amp=bf16" not in lacking)
    assert ("cpu.matmul_fp16" in found) is ("precision.amp=fp16" not in lacking)
    assert all(value > 0 for value in found.values())
    assert {each["unit"] for each in values["ceilings"]} <= UNITS
    assert torch.get_num_threads() == 2
    # What was written to be read is gone.
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_cache_no_disk_is_read(no_compiler, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    values = ceilings.run(Job(uid="c"), SilentProgress()).values
    assert "disk" not in values
    assert list(tmp_path.iterdir()) == []


def test_what_fails_is_said_and_the_rest_goes_on(no_compiler, monkeypatch, tmp_path):
    def broken(*_):
        yield "loader.rows", 1.0, "samples/s"
        raise RuntimeError("boom\nand more")

    monkeypatch.setattr(ceilings, "_loader", broken)
    (tmp_path / "file").write_text("")
    values = ceilings.run(Job(uid="c", cache=str(tmp_path / "file")), SilentProgress()).values
    assert values["loader"]["problem"] == "RuntimeError: boom"
    assert "Error" in values["disk"]["problem"]
    assert values["cpu"]["problem"] == ""
    assert {"name": "loader.rows", "value": 1.0, "unit": "samples/s"} in values["ceilings"]


def test_a_gpu_that_fails_costs_no_other(no_compiler, monkeypatch):
    infos = [DeviceInfo(kind="cuda", name="A", capability=c) for c in ("7.0", "8.6")]
    describe = ceilings.devices.describe
    monkeypatch.setattr(ceilings, "_num_visible", lambda: 2)
    monkeypatch.setattr(
        ceilings.devices, "describe", lambda d: infos[d.index] if d.type == "cuda" else describe(d)
    )

    def measured(index, lacking):
        if index == 0:
            raise RuntimeError("no kernel image is available")
        yield f"cuda:{index}.matmul_fp32", 20.0, "TFLOP/s"

    def gpu(index, lacking):
        yield from measured(index, lacking)

    monkeypatch.setattr(ceilings, "_gpu", gpu)
    progress = Stages()
    values = ceilings.run(Job(uid="c", device="auto"), progress).values
    assert progress.all == ["torch", "cpu", "cuda:0", "cuda:1", "loader", "compile"]
    first, second = values["gpus"]
    assert first["problem"] == "RuntimeError: no kernel image is available"
    assert "precision.amp=bf16" in first["lacks"]
    assert second["problem"] == ""
    assert {"name": "cuda:1.matmul_fp32", "value": 20.0, "unit": "TFLOP/s"} in values["ceilings"]
    # What the first GPU cannot do is not asked of it again.
    assert values["compile"]["device"] == "cpu"


@pytest.mark.parametrize(("capability", "kinds"), [("7.0", {"fp32", "fp16"}), ("8.6", None)])
def test_the_parts_of_a_gpu(monkeypatch, capability, kinds):
    # The same operations, on the CPU's own tensors.
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**26, 2**30))
    monkeypatch.setattr(ceilings, "_host_tensor", lambda size, pinned: torch.ones(size, dtype=torch.uint8))
    size = []
    matmul = ceilings.matmul
    monkeypatch.setattr(ceilings, "matmul", lambda kind, n, *rest: size.append(n) or matmul(kind, 64, *rest))
    lacking = support.lacks(DeviceInfo(kind="cuda", name="", capability=capability))
    before = torch.get_float32_matmul_precision()
    try:
        found = {name: (value, unit) for name, value, unit in ceilings._gpu_speeds("cpu", lacking)}
    finally:
        torch.set_float32_matmul_precision(before)
    products = {f"matmul_{kind}" for kind in kinds or {"fp32", "tf32", "bf16", "fp16"}}
    others = {"memory_copy", "copy_from_pinned", "copy_from_pageable", "small_kernels"}
    assert found.keys() == products | others
    assert all(value > 0 for value, _ in found.values())
    assert {found[name][1] for name in products} == {"TFLOP/s"}
    assert set(size) == {2048}
    assert waited


class Clock:
    """Stands in for `time`: it goes on only when somebody sleeps, and by as much."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ceilings, "time", clock)
    return clock


def test_the_best_of_many_calls(clock, monkeypatch):
    # The first call is not counted; of the others the fastest is.
    monkeypatch.setattr(ceilings, "SECONDS", 0.15)
    pace = iter([0.001, 0.06, 0.03, *[0.06] * 100])
    assert ceilings.best_seconds(lambda: clock.sleep(next(pace))) == pytest.approx(0.03)


def test_short_calls_are_many_between_two_readings(clock, monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.02)
    calls, waits = [], []

    def call() -> None:
        calls.append(1)
        clock.sleep(1e-6)

    assert ceilings.best_seconds(call, lambda: waits.append(1)) == pytest.approx(1e-6)
    assert len(calls) > 50 * len(waits)


def test_what_is_called_and_not_waited_for_is_not_done(clock):
    done_at = [0.0]

    def launch() -> None:
        done_at[0] = max(done_at[0], clock.now) + 0.002

    def wait() -> None:
        clock.sleep(max(0.0, done_at[0] - clock.now))

    assert ceilings.best_seconds(launch, wait) == pytest.approx(0.002)


def test_a_limit_in_time():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match=r"0\.05 s"), time_limit(0.05):
        time.sleep(10)
    with time_limit(0.05):
        pass
    time.sleep(0.07)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_compiler_that_takes_too_long(monkeypatch, tmp_path):
    monkeypatch.setattr(ceilings, "COMPILE_SECONDS", 0.05)
    monkeypatch.setattr(ceilings, "_compile_step", lambda device: time.sleep(10))
    monkeypatch.setattr(ceilings, "lacks_compiler", lambda: "")
    found = ceilings._compilation(Job(uid="c", cache=str(tmp_path)), torch.device("cpu"))
    assert found["problem"] == "not done within 0.05 s"
    assert 0.05 <= found["seconds"] < 5


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    def broken(device):
        raise RuntimeError("CppCompileError: boom\nmuch more")

    monkeypatch.setattr(ceilings, "_compile_step", broken)
    monkeypatch.setattr(ceilings, "lacks_compiler", lambda: "")
    found = ceilings._compilation(Job(uid="c", cache=str(tmp_path)), torch.device("cpu"))
    assert found["problem"] == "RuntimeError: CppCompileError: boom"


def test_the_age_of_a_process_begins_with_its_start():
    first = ceilings._age_seconds()
    time.sleep(0.1)
    assert 0.05 < ceilings._age_seconds() - first < 5
    assert first > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_gpu(no_compiler):
    values = ceilings.run(Job(uid="c", device="auto"), SilentProgress()).values
    assert values["torch"]["problem"] == ""
    assert [gpu["problem"] for gpu in values["gpus"]] == [""] * torch.cuda.device_count()
    found = {each["name"]: each["value"] for each in values["ceilings"]}
    assert found["cuda:0.matmul_fp16"] > found["cuda:0.matmul_fp32"] > 0.5
    assert found["cuda:0.copy_from_pinned"] > found["cuda:0.copy_from_pageable"] * 0.8
    assert found["cuda:0.memory_copy"] > found["cuda:0.copy_from_pinned"]
