"""The probe says of a recorded GPU what it said there; the recorder keeps all that this needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stub_nvml
from recordings import OF_TIME, UUID, read_recording, recordings, scenario_of
from stub_nvml import Gpu, environment, loaded, write

from sweeper.telemetry.nvml.probe import NvmlProbe

ROOT = Path(__file__).parents[2]
PACE_SECONDS = 0.11
MAX_READS = 15
RECORD = """
import json, sys
from dataclasses import asdict
from gpu_day.recording import record
print(json.dumps(asdict(record("made", sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
"""
MANY = Gpu(
    uuid=UUID,
    name="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    processes=[("self", 512), (4_100_009, 2048)],
    samples=[(4_100_009, 40, 1)],
).but(
    util_gpu=[3, 60, 61, 87],
    power_mw=[90_000, 350_000, 351_500],
    reasons=[1, 0, 4],
    mem_used_mib=[600, 2700],
    gpm=[1],
    gpm_2=[71.5, 60.25, 12.5],
    gpm_20=[12, 13],
    gpm_21=[340],
    temperature_c=None,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    return stub_nvml.build(tmp_path_factory.mktemp("nvml"))


def replay(monkeypatch, library: Path, recording: dict, folder: Path) -> None:
    """Holds what the probe says of a recording against what it said then."""
    loaded(monkeypatch, library, scenario_of(recording, folder / "scenario"))
    probe = NvmlProbe()
    probe.open(os.getpid(), UUID)
    for number, then in enumerate(recording["readings"][:MAX_READS], 1):
        began = time.perf_counter()
        now = probe.read()
        # One that came too soon for a sample of GPM, then or now, has nothing of it.
        both = now.keys() & then.keys() - set(OF_TIME)
        assert {name: now[name] for name in both} == pytest.approx(
            {name: then[name] for name in both}, abs=1e-3
        )
        if number % 10 == 0:
            others = recording["others"][number // 10 - 1]
            assert probe.read_between_windows() == pytest.approx(others, abs=1e-3)
        time.sleep(max(0.0, PACE_SECONDS - (time.perf_counter() - began)))
    assert probe.missing.keys() == recording["missing"].keys()
    probe.close()


def made(library: Path, folder: Path, gpu: Gpu = MANY, num_reads: int = 12, **how: object) -> dict:
    """Records the stand-in's own GPU, in a process of its own."""
    scenario = write(folder / "recorded", [gpu], **how)
    environ = environment(library, scenario) | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    }
    # `self` is the recorder, which is therefore what it watches.
    code = f"import os, sys\nsys.argv = ['', {UUID!r}, str(os.getpid()), {num_reads}]\n{RECORD}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_recording_is_played_back_as_it_was(monkeypatch, tmp_path, library):
    found = made(library, tmp_path)
    replay(monkeypatch, library, found, tmp_path)
    # Enough of it changes for a recorder that mixes up calls to be found out.
    assert [each["gpu_util_pct"] for each in found["readings"][:4]] == [60, 61, 87, 87]
    assert found["readings"][0]["gpu_power_w"] == 351.5 or found["readings"][0]["gpu_power_w"] == 350
    assert found["others"][0] == {"gpu_foreign_processes": 1, "gpu_foreign_mem_gib": 2}
    assert "gpu_temperature_c" in found["missing"]
    assert {name for name, *_ in found["processes"]} == {"self", 4_100_001}


def test_what_the_driver_refuses_is_refused_again(monkeypatch, tmp_path, library):
    found = made(library, tmp_path, num_reads=3, errors=[(UUID, "nvmlDeviceGetPowerUsage", 4)])
    assert found["errors"] == [["nvmlDeviceGetPowerUsage", 4]]
    assert "gpu_power_w" in found["missing"]
    replay(monkeypatch, library, found, tmp_path)


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_a_real_gpu_is_played_back_as_it_was(monkeypatch, tmp_path, library, path):
    replay(monkeypatch, library, read_recording(path), tmp_path)
