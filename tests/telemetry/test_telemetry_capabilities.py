"""What NVML is found to report of a GPU: series, reasons, limits of its power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stub_nvml
from stub_nvml import A10, Gpu, Mig

from sweeper.telemetry.nvml import capabilities as under_test
from sweeper.telemetry.nvml import devices
from sweeper.telemetry.nvml.capabilities import Capabilities, capabilities

GPU = Gpu()
PART = Mig("MIG-cccc1111-0000-5000-8000-000000000003")
SPLIT = Gpu("GPU-cccccccc-0000-4000-8000-000000000005", migs=(PART,))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    library = stub_nvml.build(tmp_path)

    def play(*gpus: Gpu, **how: object) -> Path:
        scenario = stub_nvml.write(tmp_path / "scenario", gpus, **how)
        stub_nvml.loaded(monkeypatch, library, scenario)
        return scenario

    return play


def test_of_an_a10_all_but_what_needs_hopper(play):
    scenario = play(GPU)
    gpu = capabilities(GPU.uuid)
    assert {"gpu_util_pct", "gpu_power_w", "gpu_energy_j", "gpu_sm_clock_mhz", "gpu_foreign_processes"} <= {
        *gpu.series
    }
    assert {"gpu_pcie_rx_mib_s", "gpu_pcie_tx_mib_s"} <= {*gpu.series}
    assert "GPM needs Hopper" in gpu.missing["gpu_sm_active_pct"]
    assert gpu.missing.keys().isdisjoint(gpu.series)
    assert gpu.power_w == {"enforced": 120, "set": 120, "default": 150, "least": 100, "most": 150}
    inits, ends = (stub_nvml.calls(scenario, name) for name in ("nvmlInitWithFlags", "nvmlShutdown"))
    assert len(inits) == len(ends)


def test_what_is_not_reported_has_its_reason(play):
    play(GPU.but(power_mw=None, power_limit_mw=None, power_least_mw=None))
    gpu = capabilities(GPU.uuid)
    assert "gpu_power_w" not in gpu.series
    assert gpu.missing["gpu_power_w"] == "not reported by this GPU (Not Supported)"
    assert gpu.missing["power limit, least"] == gpu.missing["gpu_power_w"]
    assert gpu.power_w == {"default": 150}


def test_an_instance_has_the_limits_of_its_gpu(play):
    play(SPLIT)
    gpu = capabilities(PART.uuid)
    assert gpu.missing["gpu_power_w"].startswith("not reported for a MIG instance")
    assert gpu.power_w["default"] == A10["power_default_mw"][0] / 1e3


def test_a_driver_that_does_not_work_or_hangs_reports_nothing(play, monkeypatch):
    monkeypatch.setattr(under_test, "PAUSE_SECONDS", 0.0)
    play(GPU, errors=[("*", "nvmlInitWithFlags", 9)])
    gpu = capabilities(GPU.uuid)
    assert (gpu.series, gpu.power_w) == ((), {})
    assert "driver is not loaded" in gpu.missing["gpu"]
    scenario = play(GPU, delays={"nvmlInitWithFlags": 200})
    monkeypatch.setattr(devices, "LIMIT_SECONDS", 0.05)
    assert capabilities(GPU.uuid) == Capabilities()
    # The thread that was left behind ends before the next test plays something else.
    deadline = time.perf_counter() + 10
    while len(stub_nvml.calls(scenario, "nvmlShutdown")) < 2 and time.perf_counter() < deadline:
        time.sleep(0.02)
