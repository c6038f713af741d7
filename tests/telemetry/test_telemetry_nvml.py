"""NVML through the real pynvml, answered by a stand-in for the driver's library."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pynvml
import pytest
import stub_nvml
from stub_nvml import A10, Gpu, Mig, calls, environment, loaded, log_of, write

from sweeper.errors import EnvironmentStopError
from sweeper.telemetry.nvml import devices, gpm, pcie
from sweeper.telemetry.nvml.devices import (
    cores_near,
    describe_gpus,
    driver_problem,
    first_gpu,
    full_uuid,
    gpu_names,
    gpu_uuids,
    is_exclusive,
)
from sweeper.telemetry.nvml.probe import NvmlProbe
from sweeper.telemetry.nvml.processes import compute_processes

FIRST = Gpu("GPU-aaaaaaaa-0000-4000-8000-000000000001", "NVIDIA A10")
SECOND = Gpu("GPU-bbbbbbbb-0000-4000-8000-000000000002", "NVIDIA L4")
PART = Mig("MIG-cccc1111-0000-5000-8000-000000000003", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", instance=9)
OTHER_PART = Mig("MIG-cccc2222-0000-5000-8000-000000000004", "NVIDIA A100-SXM4-40GB MIG 2g.10gb", instance=3)
SPLIT = Gpu(
    "GPU-cccccccc-0000-4000-8000-000000000005", "NVIDIA A100-SXM4-40GB", 40960, migs=(PART, OTHER_PART)
).but(util_gpu=None, util_mem=None, temperature_c=[55], mem_used_mib=[9000])
HOPPER = Gpu("GPU-dddddddd-0000-4000-8000-000000000006", "NVIDIA H100 80GB HBM3", 81559).but(
    gpm=[1], gpm_2=[71.5], gpm_3=[33], gpm_5=[48], gpm_10=[22], gpm_20=[12], gpm_21=[340]
)
OUTSIDER, ANOTHER, THIRD = 4100001, 4100002, 4100003
"""Process numbers beyond what Linux gives."""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    return stub_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def play(monkeypatch, tmp_path, library):
    """Gives a scenario to this process; returns where it lies."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    count = 0

    def play(*devices, **how):
        nonlocal count
        count += 1
        scenario = write(tmp_path / f"scenario-{count}", devices, **how)
        loaded(monkeypatch, library, scenario)
        return scenario

    return play


@contextmanager
def opened(uuid: str = FIRST.uuid, pid: int | None = None):
    probe = NvmlProbe()
    probe.open(os.getpid() if pid is None else pid, uuid)
    yield probe
    probe.close()


def balance(scenario) -> tuple[int, int]:
    return len(calls(scenario, "nvmlInitWithFlags")), len(calls(scenario, "nvmlShutdown"))


class Clock:
    def __init__(self, monkeypatch, module):
        self.now = 1000.0
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)


# The device


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_device_is_found_by_its_uuid_wherever_its_index_is(play, monkeypatch, order):
    used = {"GPU-1a": 11, "GPU-2b": 22, "GPU-3c": 33}
    machine = [Gpu(uuid + "0" * 30).but(util_gpu=[percent]) for uuid, percent in used.items()]
    scenario = play(*(machine[i] for i in order))
    # CUDA's order, which NVML knows nothing of.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    for gpu in machine:
        with opened(gpu.uuid) as probe:
            assert [probe.read()["gpu_util_pct"]] == gpu.values["util_gpu"]
    asked = {line.split(" ")[1] for line in calls(scenario) if " " in line}
    assert asked == {gpu.uuid for gpu in machine}
    before = len(calls(scenario))
    with opened(machine[0].uuid) as probe:
        probe.read()
        probe.read_between_windows()
    assert {line.split(" ")[1] for line in calls(scenario)[before:] if " " in line} == {machine[0].uuid}


@pytest.mark.parametrize(
    ("uuid", "gib"),
    [
        (FIRST.uuid, 4.0),
        (FIRST.uuid.removeprefix("GPU-"), 4.0),
        ("GPU-bbbb", 2.0),
        ("GPU-BBBB", 2.0),
        (PART.uuid, 1.0),
        # torch tells a MIG device's digits, and others write GPU- before them.
        (PART.uuid.replace("MIG-", "GPU-"), 1.0),
        (PART.uuid.removeprefix("MIG-"), 1.0),
        ("MIG-cccc2", 0.5),
        ("GPU-cccc2", 0.5),
        ("GPU-ccccc", 9000 / 1024),
    ],
)
def test_a_uuid_may_be_whole_or_short_and_of_an_instance(play, uuid, gib):
    split = replace(SPLIT, migs=(PART, replace(OTHER_PART, values={"mem_used_mib": [512]})))
    scenario = play(FIRST, split, SECOND.but(mem_used_mib=[2048]))
    with opened(uuid) as probe:
        assert probe.read()["gpu_mem_used_gib"] == gib
        assert "gpu" not in probe.missing
    # A whole one wakes up no other GPU.
    assert bool(calls(scenario, "nvmlDeviceGetHandleByIndex_v2")) == (len(uuid) < 36)


@pytest.mark.parametrize(
    ("uuid", "says"),
    [
        ("MIG-cccc", f"but matches {PART.uuid}, {OTHER_PART.uuid}"),
        ("GPU-ffff", f"but NVML knows {FIRST.uuid}"),
        ("GPU-", "but got `GPU-`"),
    ],
)
def test_a_uuid_of_several_or_none_is_said_and_not_guessed(play, uuid, says):
    scenario = play(FIRST, SPLIT)
    with opened(uuid) as probe:
        assert probe.read() == probe.read_between_windows() == {}
        assert says in probe.missing["gpu"]
        assert not probe.lost
    assert balance(scenario) == (1, 1)


def test_a_gpu_that_is_lost_does_not_hide_the_others(play):
    play(FIRST, SECOND, errors=[(FIRST.uuid, "*", 15), ("*", "nvmlDeviceGetHandleByUUID", 15)])
    with opened(SECOND.uuid) as probe:
        assert probe.read()["gpu_util_pct"] == 87
    with opened(FIRST.uuid) as probe:
        assert probe.read() == {}
        assert probe.lost
    assert gpu_names() == ["NVIDIA L4"]


def test_visible_gpus_are_known_by_their_uuids(play, monkeypatch):
    play(FIRST, SECOND)
    assert gpu_uuids() == [FIRST.uuid, SECOND.uuid]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_uuids() == [SECOND.uuid]


def test_of_a_split_gpu_the_first_instance_is_visible(play, monkeypatch):
    play(FIRST, SPLIT)
    assert gpu_uuids() == [FIRST.uuid, PART.uuid]
    assert gpu_names() == [FIRST.name, PART.name]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_uuids() == [PART.uuid]
    assert full_uuid("1") == PART.uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", OTHER_PART.uuid)
    assert gpu_uuids() == [OTHER_PART.uuid]


# Readings


def test_an_a10_tells_all_but_what_needs_hopper(play):
    play(FIRST)
    with opened() as probe:
        values = probe.read()
        assert values.pop("gpu_clock_pct") == pytest.approx(100 * 1605 / 1695)
        assert {**values, **probe.read()} == {
            "gpu_util_pct": 87,
            "gpu_mem_controller_pct": 41,
            "gpu_mem_used_gib": 4,
            "gpu_power_w": 148.5,
            "gpu_temperature_c": 61,
            "gpu_sm_clock_mhz": 1605,
            "gpu_mem_clock_mhz": 6251,
            "gpu_clock_pct": pytest.approx(100 * 1605 / 1695),
            "gpu_throttled": 0,
            "gpu_power_capped": 0,
            "gpu_energy_j": 0,
            "gpu_pcie_tx_mib_s": 1,
        }
        assert probe.read_between_windows() == {"gpu_foreign_processes": 0, "gpu_foreign_mem_gib": 0}
        assert set(probe.missing) == {
            f"gpu_{what}_pct" for what in ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
        }
        assert "Hopper" in probe.missing["gpu_sm_active_pct"]


@pytest.mark.parametrize(
    ("code", "says"),
    [(3, "GPU (Not Supported)"), (4, "user (Insufficient Perm"), (13, "driver, which is too old")],
)
def test_one_reading_that_is_refused_costs_no_other_and_is_asked_for_once(play, code, says):
    # An A10's vGPU on Azure tells no power.
    scenario = play(FIRST, errors=[(FIRST.uuid, "nvmlDeviceGetPowerUsage", code)])
    with opened() as probe:
        read = [set(probe.read()) for _ in range(4)]
        assert "gpu_power_w" not in set().union(*read)
        assert {"gpu_util_pct", "gpu_energy_j", "gpu_temperature_c"} <= set.intersection(*read)
        assert says in probe.missing["gpu_power_w"]
        assert len(calls(scenario, "nvmlDeviceGetPowerUsage")) == 1
        assert not probe.lost


def test_an_error_that_passes_costs_one_reading(play):
    play(FIRST, errors=[(FIRST.uuid, "nvmlDeviceGetPowerUsage", 999, 2, 3)])
    with opened() as probe:
        told = ["gpu_power_w" in probe.read() for _ in range(4)]
        assert told == [False, False, True, True]
        assert "gpu_power_w" not in probe.missing


def test_errors_with_readings_between_them_end_nothing(play):
    play(FIRST, errors=[(FIRST.uuid, "nvmlDeviceGetPowerUsage", 999, call, call) for call in (2, 4, 6, 8)])
    with opened() as probe:
        told = ["gpu_power_w" in probe.read() for _ in range(9)]
        assert told == [False, True] * 4 + [True]


def test_the_third_error_in_a_row_ends_a_series_with_its_reason(play):
    scenario = play(FIRST, errors=[(FIRST.uuid, "nvmlDeviceGetPowerUsage", 10, 3, 5)])
    with opened() as probe:
        told = ["gpu_power_w" in probe.read() for _ in range(6)]
        assert told == [True, False, False, False, False, False]
        assert probe.missing["gpu_power_w"] == "Timeout, 3 times in a row"
        assert len(calls(scenario, "nvmlDeviceGetPowerUsage")) == 5


def test_a_gpu_that_is_lost_meanwhile_is_asked_nothing_more(play):
    scenario = play(FIRST, errors=[(FIRST.uuid, "nvmlDeviceGetPowerUsage", 15, 3)])
    with opened() as probe:
        assert "gpu_power_w" in probe.read()
        assert not probe.lost
        probe.read()
        assert probe.lost
        assert calls(scenario)[-1] == f"nvmlDeviceGetPowerUsage {FIRST.uuid}"
        assert probe.read() == probe.read_between_windows() == {}
        assert calls(scenario)[-1] == f"nvmlDeviceGetPowerUsage {FIRST.uuid}"
        assert "the GPU was lost (GPU is lost)" in probe.missing["gpu"]
        assert "Xid" in probe.missing["gpu"]
    assert balance(scenario) == (1, 1)


def test_energy_is_the_increase_since_the_probe_was_opened(play):
    play(FIRST.but(energy_mj=[9_000_000_000_500, 9_000_000_001_000, 9_000_000_151_500]))
    with opened() as probe:
        assert [probe.read()["gpu_energy_j"] for _ in range(3)] == [0.5, 151.0, 151.0]


REASONS = [
    ("None", 0, 0, True),
    ("GpuIdle", 0, 0, False),
    ("ApplicationsClocksSetting", 0, 0, True),
    ("SwPowerCap", 0, 1, True),
    ("SyncBoost", 0, 0, True),
    ("HwSlowdown", 1, 0, True),
    ("SwThermalSlowdown", 1, 0, True),
    ("HwThermalSlowdown", 1, 0, True),
    ("HwPowerBrakeSlowdown", 1, 0, True),
]


@pytest.mark.parametrize(("why", "throttled", "capped", "has_share"), REASONS)
def test_heat_and_brakes_throttle_the_power_cap_is_its_own_and_idle_clocks_are_right(
    play, why, throttled, capped, has_share
):
    play(FIRST.but(reasons=[getattr(pynvml, f"nvmlClocksThrottleReason{why}")], clock_sm=[210]))
    with opened() as probe:
        values = probe.read()
        assert (values["gpu_throttled"], values["gpu_power_capped"]) == (throttled, capped)
        assert ("gpu_clock_pct" in values) == has_share
        assert values["gpu_sm_clock_mhz"] == 210


def test_reasons_hold_together_and_change(play):
    play(FIRST.but(reasons=[0, 0x4 | 0x40, 0x1 | 0x4]))
    with opened() as probe:
        first, second = probe.read(), probe.read()
        assert (first["gpu_throttled"], first["gpu_power_capped"]) == (1, 1)
        assert "gpu_clock_pct" in first
        assert (second["gpu_throttled"], second["gpu_power_capped"]) == (0, 1)
        assert "gpu_clock_pct" not in second


def test_older_drivers_are_asked_by_the_older_names(play):
    newer = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3"]
    scenario = play(
        replace(FIRST, processes=[(OUTSIDER, 100), (os.getpid(), 50)]).but(
            reasons=[0x4], default_clock_sm=None
        ),
        errors=[("*", name, 13) for name in newer],
    )
    with opened() as probe:
        values = [probe.read() for _ in range(3)][-1]
        assert values["gpu_power_capped"] == 1
        # Without default clocks, which newer GPUs and drivers do not have, of the highest one.
        assert values["gpu_clock_pct"] == pytest.approx(100 * 1605 / 1710)
        assert probe.read_between_windows()["gpu_foreign_processes"] == 1
        assert len(calls(scenario, newer[0])) == 1


def test_a_newer_driver_without_the_older_temperature_is_asked_by_the_newer(play):
    play(FIRST, errors=[("*", "nvmlDeviceGetTemperature", 13)])
    with opened() as probe:
        assert probe.read()["gpu_temperature_c"] == 61
        assert "gpu_temperature_c" not in probe.missing


def test_without_clock_reasons_the_clock_is_still_told(play):
    play(FIRST.but(reasons=None))
    with opened() as probe:
        assert probe.read()["gpu_clock_pct"] == pytest.approx(100 * 1605 / 1695)
        assert "GPU (Not Supported)" in probe.missing["gpu_throttled"]


# The bus


@pytest.mark.parametrize("field", ["field", "field32"])
def test_counters_of_the_bus_become_rates_and_may_come_round(play, monkeypatch, field):
    clock = Clock(monkeypatch, pcie)
    mib = 2**20
    start = 2**32 - 64 * mib if field == "field32" else 2**40
    received = [(start + step * mib) % (2**32 if field == "field32" else 2**60) for step in (0, 100, 400)]
    scenario = play(FIRST.but(**{f"{field}_198": received, f"{field}_197": [0, 25 * mib, 25 * mib]}))
    with opened() as probe:
        clock.now += 0.25
        values = probe.read()
        assert (values["gpu_pcie_rx_mib_s"], values["gpu_pcie_tx_mib_s"]) == (400, 100)
        clock.now += 0.5
        values = probe.read()
        assert (values["gpu_pcie_rx_mib_s"], values["gpu_pcie_tx_mib_s"]) == (600, 0)
        clock.now += 0.01
        assert "gpu_pcie_rx_mib_s" not in probe.read()
    assert calls(scenario, "nvmlDeviceGetPcieThroughput") == []


def test_a_counter_of_32_bits_is_not_guessed_after_a_long_pause(play, monkeypatch):
    clock = Clock(monkeypatch, pcie)
    play(FIRST.but(field32_198=[0, 2**20, 2**21], field32_197=[0], pcie_rx_kib=None, pcie_tx_kib=None))
    with opened() as probe:
        clock.now += 2
        assert "gpu_pcie_rx_mib_s" not in probe.read()
        clock.now += 0.25
        assert probe.read()["gpu_pcie_rx_mib_s"] == 4
        for _ in range(3):
            clock.now += 2
            probe.read()
        # Read too seldom for good, NVML's own rate is asked for; this driver has none.
        probe.read()
        assert "Not Supported" in probe.missing["gpu_pcie_rx_mib_s"]


def test_the_rate_that_blocks_is_asked_for_once_a_second_and_one_a_reading(play, monkeypatch):
    clock = Clock(monkeypatch, pcie)
    scenario = play(FIRST)
    with opened() as probe:
        told = []
        for _ in range(12):
            clock.now += 0.25
            told.append(tuple(name[9:11] for name in probe.read() if name.startswith("gpu_pcie")))
        assert all(len(names) <= 1 for names in told)
        # The first came with `open`.
        assert told[:5] == [("tx",), (), (), ("rx",), ("tx",)]
        assert len(calls(scenario, "nvmlDeviceGetPcieThroughput")) == 7


# GPM


def test_hopper_tells_how_much_of_it_works(play, monkeypatch):
    clock = Clock(monkeypatch, gpm)
    scenario = play(HOPPER)
    with opened(HOPPER.uuid) as probe:
        # The counters behind are refreshed every 100 ms: readings right after `open` have none of it.
        for _ in range(4):
            assert "gpu_sm_active_pct" not in probe.read()
        clock.now += 0.11
        time.sleep(0.11)
        values = probe.read()
        assert {
            name: values[name] for name in values if "active" in name or "occ" in name or "pcie" in name
        } == {
            "gpu_sm_active_pct": 71.5,
            "gpu_sm_occupancy_pct": 33,
            "gpu_tensor_active_pct": 48,
            "gpu_dram_active_pct": 22,
            "gpu_pcie_tx_mib_s": 12,
            "gpu_pcie_rx_mib_s": 340,
        }
        assert "gpu_sm_active_pct" not in probe.read()
        clock.now += 0.11
        time.sleep(0.11)
        assert probe.read()["gpu_sm_active_pct"] == 71.5
        assert probe.missing == {}
        assert len(calls(scenario, "nvmlGpmSampleFree")) == 0
    assert len(calls(scenario, "nvmlGpmSampleAlloc")) == len(calls(scenario, "nvmlGpmSampleFree")) == 2
    assert calls(scenario)[-1] == "nvmlShutdown"


def test_a_metric_that_is_absent_or_no_number_costs_no_other(play):
    play(HOPPER.but(gpm_3=None, gpm_5=[float("nan"), 48], gpm_21=None, pcie_rx_kib=[7 * 1024]))
    with opened(HOPPER.uuid) as probe:
        time.sleep(0.11)
        values = probe.read()
        assert values["gpu_sm_active_pct"] == 71.5
        assert "gpu_tensor_active_pct" not in values
        # The bus has other sources, of which this driver has the last.
        assert (values["gpu_pcie_tx_mib_s"], values["gpu_pcie_rx_mib_s"]) == (12, 7)
        time.sleep(0.11)
        values = probe.read()
        assert values["gpu_tensor_active_pct"] == 48
        assert values["gpu_pcie_tx_mib_s"] == 12
        assert set(probe.missing) == {"gpu_sm_occupancy_pct"}


@pytest.mark.parametrize("function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet"])
def test_where_gpm_is_refused_the_rest_is_told_and_the_samples_are_freed(play, function):
    scenario = play(HOPPER, errors=[("*", function, 4)])
    with opened(HOPPER.uuid) as probe:
        values = {**probe.read(), **probe.read()}
        assert values["gpu_util_pct"] == 87
        assert "gpu_pcie_tx_mib_s" in values
        assert "user (Insufficient Permissions)" in probe.missing["gpu_sm_active_pct"]
    allocated = 0 if function != "nvmlGpmSampleGet" else 2
    assert len(calls(scenario, "nvmlGpmSampleFree")) == allocated


# MIG


@pytest.mark.parametrize("has_gpm", [False, True])
def test_an_instance_tells_its_memory_and_the_gpu_its_heat_and_nothing_is_0(play, has_gpm):
    metrics = {f"gpm_{metric}": [metric * 1.5] for metric in (2, 3, 5, 10, 20, 21)} if has_gpm else {}
    part = replace(PART, values={**PART.values, **metrics})
    scenario = play(replace(SPLIT, migs=(OTHER_PART, part)).but(gpm=[1 if has_gpm else 0]))
    with opened(PART.uuid) as probe:
        time.sleep(0.11 if has_gpm else 0)
        values = probe.read()
        missing = probe.missing
        assert (values["gpu_mem_used_gib"], values["gpu_temperature_c"]) == (1, 55)
        assert {"gpu_sm_clock_mhz", "gpu_clock_pct", "gpu_throttled"} <= set(values)
        assert "MIG" in missing["gpu_util_pct"]
        for name in ("gpu_power_w", "gpu_energy_j", "gpu_pcie_rx_mib_s", "gpu_pcie_tx_mib_s"):
            assert "which others share" in missing[name]
        assert not set(values) & set(missing)
        assert values.get("gpu_sm_active_pct") == (3.0 if has_gpm else None)
        assert ("Hopper" in missing.get("gpu_sm_active_pct", "")) is not has_gpm
    assert not calls(scenario, "nvmlDeviceGetPowerUsage")
    asked = {line for line in calls(scenario) if "Temperature" in line or "Clock" in line}
    assert all(line.endswith(SPLIT.uuid) for line in asked)
    assert len(calls(scenario, "nvmlGpmSampleFree")) == (2 if has_gpm else 0)


def test_of_an_instance_every_foreign_process_counts_as_nothing_says_which_is_busy(play):
    part = replace(PART, processes=[(os.getpid(), 10), (OUTSIDER, 512), (ANOTHER, 512)])
    scenario = play(replace(SPLIT, migs=(part,), processes=[(THIRD, 1)], samples=[(OUTSIDER, 9, 1)]))
    with opened(PART.uuid) as probe:
        assert probe.read_between_windows() == {"gpu_foreign_processes": 2, "gpu_foreign_mem_gib": 1}
    assert calls(scenario, "nvmlDeviceGetProcessUtilization") == []


# Other processes


def test_only_a_foreign_process_that_was_busy_since_the_last_look_disturbs(play):
    everyone = [(os.getpid(), 900), (OUTSIDER, 512), (ANOTHER, 1536)]
    # A process of before is not a neighbour, however busy it was.
    samples = [(os.getpid(), 90, 1), (ANOTHER, 99, 0), (OUTSIDER, 7, 2), (OUTSIDER, 0, 3), (ANOTHER, 3, 4)]
    samples += [(OUTSIDER, 5, 4), (0, 50, 4), (THIRD, 4_000_000, 4)]
    play(replace(FIRST, processes=everyone, samples=samples))
    with opened() as probe:
        seen = [probe.read_between_windows() for _ in range(5)]
        assert [values["gpu_foreign_processes"] for values in seen] == [0, 1, 0, 2, 0]
        assert {values["gpu_foreign_mem_gib"] for values in seen} == {2.0}


def test_where_nothing_says_who_is_busy_every_foreign_process_counts(play):
    play(replace(FIRST, processes=[(os.getpid(), 900), (OUTSIDER, 512), (ANOTHER, "-", 2)]))
    with opened() as probe:
        seen = [probe.read_between_windows() for _ in range(2)]
        assert [values["gpu_foreign_processes"] for values in seen] == [1, 2]
        assert seen[1]["gpu_foreign_mem_gib"] == 0.5


def test_the_trials_own_children_are_not_foreign(play):
    child = subprocess.Popen(["sleep", "30"])
    try:
        play(replace(FIRST, processes=[(os.getpid(), 900), (child.pid, 100), (OUTSIDER, "-")]))
        with opened() as probe:
            values = probe.read_between_windows()
            assert values == {"gpu_foreign_processes": 1}
            child.kill()
            child.wait()
            # Its number stays known while the driver still lists it.
            assert probe.read_between_windows()["gpu_foreign_processes"] == 1
    finally:
        child.kill()
        child.wait()


def test_who_was_busy_and_has_ended_did_disturb_and_who_only_draws_is_no_compute_process(play):
    everyone = [(os.getpid(), 900), (OUTSIDER, 512, 1, 1)]
    play(
        replace(FIRST, processes=everyone, samples=[(OUTSIDER, 40, 2), (THIRD, 40, 2), (os.getpid(), 50, 2)])
    )
    with opened() as probe:
        assert [probe.read_between_windows()["gpu_foreign_processes"] for _ in range(3)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("listed", "busy", "expected"),
    [
        # The machine's numbers in the list, and no word of who is busy: one of them is the trial.
        ([OUTSIDER], None, 0),
        ([OUTSIDER, ANOTHER], None, 1),
        ([], None, 0),
        ([OUTSIDER, ANOTHER], [OUTSIDER], 0),
        ([OUTSIDER, ANOTHER], [OUTSIDER, ANOTHER], 1),
        ([OUTSIDER, ANOTHER], [], 0),
        # The container's numbers in the list, and the machine's where it says who is busy.
        (["self"], [OUTSIDER], 0),
        (["self"], [OUTSIDER, ANOTHER], 1),
    ],
)
def test_in_a_container_one_of_the_machines_numbers_is_the_trials(play, listed, busy, expected):
    # Nobody, and nonsense, come with what is told.
    samples = [(0, 50, 1), (THIRD, 4_000_000, 1)] if busy is not None else []
    samples += [(pid, 50, 1) for pid in busy or []]
    play(replace(FIRST, processes=[(pid, 256) for pid in listed], samples=samples))
    with opened() as probe:
        values = probe.read_between_windows()
        assert values["gpu_foreign_processes"] == expected
        # Whose the memory is, cannot be known either.
        assert ("gpu_foreign_mem_gib" in values) == (listed in ([], ["self"]))


def test_without_a_process_list_the_series_is_absent_with_its_reason(play):
    scenario = play(FIRST, errors=[("*", "nvmlDeviceGetComputeRunningProcesses_v3", 4)])
    with opened() as probe:
        assert probe.read_between_windows() == probe.read_between_windows() == {}
        assert "user (Insufficient Permissions)" in probe.missing["gpu_foreign_processes"]
        assert len(calls(scenario, "nvmlDeviceGetComputeRunningProcesses_v3")) == 1
        assert "gpu_util_pct" in probe.read()


def test_nothing_dear_is_called_by_a_reading(play):
    scenario = play(replace(FIRST, processes=[(OUTSIDER, 1)], samples=[(OUTSIDER, 1, 1)]))
    with opened() as probe:
        probe.read()
        assert not [line for line in calls(scenario) if "Process" in line]
        probe.read_between_windows()
        assert [line for line in calls(scenario) if "Process" in line]


# NVML itself


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (18, "older kernel module is still loaded: reboot or reload the driver"),
        (9, "not loaded: `sudo modprobe nvidia`"),
        (4, "this user may not use the NVIDIA driver"),
        (15, "the GPU was lost"),
        (999, "NVML says `Unknown Error`"),
    ],
)
def test_a_driver_that_cannot_be_used_is_said_with_its_remedy(play, code, says):
    scenario = play(FIRST, errors=[("*", "nvmlInitWithFlags", code)])
    with opened() as probe:
        assert probe.read() == probe.read_between_windows() == {}
        assert says in probe.missing["gpu"]
    assert says in driver_problem()
    assert gpu_names() == describe_gpus() == []
    assert balance(scenario) == (4, 0)


def test_without_the_library_the_reason_names_it(play, monkeypatch):
    play(FIRST)

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "CDLL", absent)
    with opened() as probe:
        assert probe.read() == {}
        assert "libnvidia-ml.so.1 was not found" in probe.missing["gpu"]
        assert not probe.lost
    assert "install the NVIDIA driver" in driver_problem()
    assert gpu_names() == []


def test_without_pynvml_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with opened() as probe:
        assert probe.read() == {}
        assert "`pip install nvidia-ml-py`" in probe.missing["gpu"]
    assert gpu_names() == []


def test_whatever_nvml_answers_no_call_of_the_probe_raises(play):
    scenario = play(HOPPER, SPLIT)
    for uuid in (HOPPER.uuid, PART.uuid):
        with opened(uuid) as probe:
            time.sleep(0.11)
            probe.read()
            probe.read_between_windows()
    functions = sorted({line.split(" ")[0] for line in calls(scenario)})
    assert len(functions) > 20
    for function in functions:
        for code in (2, 3, 15, 25, 999, 4242):
            scenario = play(HOPPER, SPLIT, errors=[("*", function, code)])
            for uuid in (HOPPER.uuid, PART.uuid):
                with opened(uuid) as probe:
                    for _ in range(2):
                        probe.read()
                        probe.read_between_windows()
            starts, ends = balance(scenario)
            assert ends == (starts if function != "nvmlInitWithFlags" else 0), function
            assert len(calls(scenario, "nvmlGpmSampleFree")) == (
                len(calls(scenario, "nvmlGpmSampleAlloc")) if function != "nvmlGpmSampleAlloc" else 0
            ), function


def test_every_start_has_its_end_and_no_more(play):
    scenario = play(FIRST)
    probe = NvmlProbe()
    probe.open(os.getpid(), FIRST.uuid)
    assert balance(scenario) == (1, 0)
    probe.close()
    probe.close()
    assert probe.read() == probe.read_between_windows() == {}
    assert balance(scenario) == (1, 1)
    gpu_names()
    describe_gpus()
    driver_problem()
    assert balance(scenario) == (4, 4)
    with opened("GPU-ffff"):
        pass
    assert balance(scenario) == (5, 5)


def test_a_driver_that_is_slow_is_waited_for_and_one_that_hangs_is_said(play, monkeypatch):
    scenario = play(FIRST, delays={"nvmlInitWithFlags": 500})
    began = time.perf_counter()
    assert gpu_names() == ["NVIDIA A10"]
    assert time.perf_counter() - began >= 0.5
    monkeypatch.setattr(devices, "LIMIT_SECONDS", 0.05)
    began = time.perf_counter()
    with pytest.raises(EnvironmentStopError, match=r"within 0\.05 s.* hangs.*`CUDA_VISIBLE_DEVICES=`"):
        gpu_names()
    assert driver_problem() == devices.HANGS
    assert describe_gpus() == []
    assert time.perf_counter() - began < 0.5
    # The threads that were left behind end before the next test plays something else.
    deadline = time.perf_counter() + 10
    while balance(scenario) != (4, 4) and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert balance(scenario) == (4, 4)


def test_a_probe_that_hangs_in_the_driver_holds_up_no_other_thread(play):
    play(FIRST, delays={"nvmlDeviceGetPowerUsage": 400})
    with opened() as probe:
        thread = threading.Thread(target=probe.read)
        thread.start()
        turns = 0
        while thread.is_alive():
            time.sleep(0.01)
            turns += 1
        assert turns > 10


# The machine's GPUs


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, SECOND),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FIRST),
        ({"CUDA_VISIBLE_DEVICES": "0"}, FIRST),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, SECOND),
        ({"CUDA_VISIBLE_DEVICES": f"{FIRST.uuid},{SECOND.uuid}"}, FIRST),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_cuda_starts_with_the_most_capable(play, monkeypatch, environment, first):
    play(FIRST, SECOND)
    capability = {FIRST.uuid: [8, 6], SECOND.uuid: [8, 9]}
    asked = lambda handle: capability[pynvml.nvmlDeviceGetUUID(handle)]  # noqa: E731
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", asked)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert first_gpu() == (first.uuid if first else "")


def test_a_gpu_for_one_process_at_a_time(play):
    play(FIRST.but(compute_mode=[3]), SECOND)
    assert is_exclusive(FIRST.uuid)
    assert not is_exclusive(SECOND.uuid)
    assert not is_exclusive("GPU-ffff")
    assert not is_exclusive("")


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        # Of a GPU that is split, CUDA uses the first instance.
        (None, ["NVIDIA A10", PART.name, "NVIDIA L4"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["NVIDIA L4", "NVIDIA A10"]),
        (" 2 , 0 ", ["NVIDIA L4", "NVIDIA A10"]),
        # As in CUDA, what names none ends the list.
        ("0,-1,2", ["NVIDIA A10"]),
        ("2,7,0", ["NVIDIA L4"]),
        ("2,GPU-ffff,0", ["NVIDIA L4"]),
        ("0,0", []),
        ("GPU-bb,GPU-aaaa", ["NVIDIA L4", "NVIDIA A10"]),
        (SECOND.uuid, ["NVIDIA L4"]),
        (PART.uuid, ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"]),
        ("MIG-cccc2", ["NVIDIA A100-SXM4-40GB MIG 2g.10gb"]),
    ],
)
def test_the_visible_gpus_are_named_in_their_order(play, monkeypatch, visible, names):
    scenario = play(FIRST, SPLIT, SECOND)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names() == names
    starts, ends = balance(scenario)
    assert starts == ends == (0 if visible in ("", "-1", "NoDevFiles", "0,0") else 1)


def test_an_instance_without_a_name_has_its_gpus(play, monkeypatch):
    play(SPLIT, errors=[(PART.uuid, "nvmlDeviceGetName", 3)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", PART.uuid)
    assert gpu_names() == ["NVIDIA A100-SXM4-40GB"]


def test_the_facts_of_the_gpus_are_told_each_on_its_own(play):
    busy = replace(FIRST, processes=[(OUTSIDER, 512), ("self", 10)]).but(compute_mode=[3], persistence=[0])
    play(busy, SPLIT.but(persistence=None), driver="570.1.2", cuda=12080)
    first, split = describe_gpus()
    assert (first.index, first.name, first.uuid) == (0, "NVIDIA A10", FIRST.uuid)
    assert (first.memory_gib, first.driver, first.cuda_driver_version) == (23028 / 1024, "570.1.2", "12.8")
    assert (first.persistence, first.compute_mode, first.mig) == (False, "exclusive process", False)
    assert first.foreign == (OUTSIDER,)
    assert (split.index, split.mig, split.persistence, split.foreign) == (1, True, None, ())
    assert driver_problem() == ""


def test_the_cores_near_a_gpu_are_told_of_its_instances_as_well(play, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 130)
    scenario = play(FIRST.but(cpus_0=[0b1011], cpus_2=[1]), SPLIT.but(cpus_1=[2**63]), SECOND)
    assert cores_near(FIRST.uuid) == {0, 1, 3, 128}
    assert cores_near(SPLIT.uuid) == cores_near(PART.uuid) == {127}
    assert cores_near(SECOND.uuid) == cores_near("GPU-ffff") == cores_near("cpu") == frozenset()
    starts, ends = balance(scenario)
    assert starts == ends
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    assert cores_near(FIRST.uuid) == {0, 1, 3}


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("0", FIRST.uuid), ("2", SECOND.uuid), ("GPU-bb", SECOND.uuid), (PART.uuid, PART.uuid)]
    + [(name, name) for name in ("3", "GPU-", "GPU-ffff", "auto", "")],
)
def test_a_gpu_is_known_by_one_name_whatever_it_is_called(play, name, uuid):
    play(FIRST, SPLIT, SECOND)
    assert full_uuid(name) == uuid


# Processes


def run(code: str, *flags: str, env=None) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_warn_of_nothing_and_pynvml_waits_until_there_is_a_gpu():
    assert importlib.metadata.packages_distributions()["pynvml"] == ["nvidia-ml-py"]
    code = """
import sys
import sweeper.telemetry.nvml.probe as nvml
probe = nvml.NvmlProbe()
probe.open(1, "")
assert (probe.read(), probe.read_between_windows(), probe.missing) == ({}, {}, {})
probe.close()
assert not {"pynvml", "torch", "numpy"} & set(sys.modules), "not light"
import pynvml
"""
    run(code, "-W", "error")


def test_a_process_and_what_it_starts_see_the_stub_by_the_librarys_name(tmp_path, library):
    scenario = write(tmp_path / "scenario", [replace(FIRST, processes=[("child", 512), (OUTSIDER, 256)])])
    code = """
import subprocess, sys
from sweeper.telemetry.nvml.devices import gpu_names
from sweeper.telemetry.nvml.probe import NvmlProbe
inner = "from sweeper.telemetry.nvml.devices import gpu_names; print(gpu_names())"
subprocess.run([sys.executable, "-c", inner], check=True)
trial = subprocess.Popen(["sleep", "60"])
probe = NvmlProbe()
probe.open(trial.pid, sys.argv[1] if sys.argv[1:] else "GPU-aaaa")
print(probe.read()["gpu_util_pct"], probe.read_between_windows())
trial.kill()
trial.wait()
probe.close()
"""
    env = {**environment(library, scenario), "CUDA_VISIBLE_DEVICES": "0"}
    said = run(code, env=env).splitlines()
    assert said == ["['NVIDIA A10']", "87.0 {'gpu_foreign_processes': 1.0, 'gpu_foreign_mem_gib': 0.25}"]
    assert balance(scenario) == (2, 2)
    assert log_of(scenario).stat().st_size > 0


def test_the_stub_without_a_scenario_is_a_machine_without_a_driver(tmp_path, library):
    env = environment(library, tmp_path / "none")
    said = run("from sweeper.telemetry.nvml.devices import driver_problem; print(driver_problem())", env=env)
    assert "not loaded" in said
    assert A10["util_gpu"] == [87]


def test_an_error_of_nvml_is_told_by_an_nvidia_ml_py_that_knows_no_mismatch():
    def refuse(handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    older = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=refuse)  # 12.535
    with pytest.raises(pynvml.NVMLError):
        compute_processes(older, None)
    newer = SimpleNamespace(
        NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
        nvmlDeviceGetComputeRunningProcesses=mock.Mock(side_effect=pynvml.NVMLLibraryMismatchError),
        nvmlDeviceGetComputeRunningProcesses_v2=lambda handle: [SimpleNamespace(pid=5, usedGpuMemory=7)],
    )
    assert compute_processes(newer, None) == {5: 7}


def test_clients_of_mps_are_listed_in_place_of_its_server():
    program = "import sys; open('/proc/self/comm', 'w').write('nvidia-cuda-mps'); print(); sys.stdin.read()"
    server = subprocess.Popen([sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        nvml = SimpleNamespace(
            nvmlDeviceGetComputeRunningProcesses=lambda handle: [
                SimpleNamespace(pid=server.pid, usedGpuMemory=3),
                SimpleNamespace(pid=5, usedGpuMemory=7),
            ],
            nvmlDeviceGetMPSComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=6, usedGpuMemory=8)],
        )
        assert compute_processes(nvml, None) == {5: 7, 6: 8}
    finally:
        server.communicate()
