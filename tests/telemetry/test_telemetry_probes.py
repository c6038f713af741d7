"""Probes: the host's readings of a busy child, and a GPU that is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sweeper.core.process import children, tree
from sweeper.telemetry import nvml
from sweeper.telemetry.host import HostProbe
from sweeper.telemetry.nvml import NvmlProbe

BUSY = """
import os, sys, time
block = bytearray(64 * 1024 * 1024)
pid = os.fork()
print("ready", flush=True)
end = time.time() + 60
while time.time() < end: pass
"""


@pytest.fixture
def busy():
    """A process with 64 MiB and a child, both of which compute."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_host_probe_sees_the_whole_tree_of_the_trial(busy):
    probe = HostProbe()
    probe.open(busy.pid, "")
    first = probe.read()
    assert "tree_cpu_pct" not in first
    time.sleep(0.5)
    values = probe.read()
    probe.close()
    assert 5 < values["tree_cpu_pct"] < 100 * (os.cpu_count() or 1) + 50
    assert 0 < values["cpu_util_pct"] <= 100
    assert 0.06 < values["tree_mem_gib"] < 2
    assert values["host_mem_used_gib"] > values["tree_mem_gib"] / 2
    assert values["disk_read_mib_s"] >= 0


def test_tree_is_a_process_and_all_below_it(busy):
    deadline = time.time() + 30
    while len(list(tree(busy.pid))) < 2 and time.time() < deadline:
        time.sleep(0.01)
    assert list(tree(busy.pid)) == [busy.pid, *children(busy.pid)]
    assert busy.pid in tree(os.getpid())


def test_what_has_ended_has_no_children_and_reads_as_nothing():
    process = subprocess.Popen(["true"])
    process.wait()
    assert list(children(process.pid)) == []
    probe = HostProbe()
    probe.open(process.pid, "")
    assert probe.read()["tree_mem_gib"] == 0


def test_without_a_driver_the_gpu_is_absent_with_its_reason(monkeypatch):
    import pynvml

    def no_driver():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    probe = NvmlProbe()
    probe.open(os.getpid(), "GPU-00000000-0000-0000-0000-000000000000")
    assert probe.read() == {}
    assert "Not Found" in probe.missing["gpu"]
    probe.close()
    assert nvml.gpu_names() == []


def test_a_trial_without_a_gpu_asks_nvml_nothing(monkeypatch):
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pytest.fail("asked"))
    probe = NvmlProbe()
    probe.open(os.getpid(), "")
    assert (probe.read(), probe.missing) == ({}, {})
    probe.close()


def test_what_the_device_does_not_support_costs_no_other_reading():
    calls = []

    def unsupported() -> float:
        calls.append(1)
        raise RuntimeError("Not Supported")

    probe = NvmlProbe()
    probe._calls = {"gpu_power_w": unsupported, "gpu_util_pct": lambda: 50.0}
    assert probe.read() == probe.read() == {"gpu_util_pct": 50.0}
    assert len(calls) == 1
    assert probe.missing == {"gpu_power_w": "Not Supported"}
