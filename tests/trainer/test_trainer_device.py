"""Memory that is kept between steps, settings that cannot be applied here, and the host's pace."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from trainer_cuda import CUDA, FakeCuda

from sweeper.core.config import TrialConfig
from sweeper.trainer import device as devices

CPU = torch.device("cpu")

STEPS = """
import resource, sys
import torch
from sweeper.core.config import TrialConfig
from sweeper.trainer import device
config = TrialConfig().replace({"device.malloc": sys.argv[1], "device.cpu_threads": 1})
cpu = torch.device("cpu")
device.apply(config, cpu)
assert torch.get_num_threads() == 1

def step(i):
    # Each a little larger than any before, which glibc by itself never has at hand.
    torch.full((4 * 2**20 + 2**14 * i,), 1.0)

for i in range(5):
    step(i)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for i in range(5, 30):
    step(i)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults, dict(device.ineffective_settings(config, cpu)))
"""


def page_faults(malloc: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", STEPS, malloc], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    faults, _, found = done.stdout.strip().partition(" ")
    return int(faults), found


@pytest.mark.slow
def test_kept_memory_is_not_faulted_in_again():
    plain, nothing = page_faults("default")
    kept, also_nothing = page_faults("retain")
    assert nothing == also_nothing == "{}"
    assert plain > 25 * 4000
    assert kept < 0.1 * plain


def retaining_by(monkeypatch, mallopt) -> bool:
    library = SimpleNamespace() if mallopt is None else SimpleNamespace(mallopt=mallopt)
    monkeypatch.setattr(devices, "_retaining", False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    devices.retain_memory()
    return devices._retaining


RETAIN, DEFAULT = (TrialConfig().replace({"device.malloc": value}) for value in ("retain", "default"))


@pytest.mark.parametrize("mallopt", [None, lambda name, value: 0], ids=["absent", "refused"])
def test_a_c_library_that_cannot_be_told_is_recorded(monkeypatch, mallopt):
    assert not retaining_by(monkeypatch, mallopt)
    assert devices.ineffective_settings(RETAIN, CPU) == {"device.malloc": "default: glibc only"}
    assert devices.ineffective_settings(DEFAULT, CPU) == {}


def test_what_was_told_holds_for_the_rest_of_the_process(monkeypatch):
    assert retaining_by(monkeypatch, lambda name, value: 1)
    assert devices.ineffective_settings(RETAIN, CPU) == {}
    found = devices.ineffective_settings(DEFAULT, CPU)
    assert found == {"device.malloc": "retain: an earlier trial in this process set it"}
    # A trial that does not ask for it does not take it back.
    monkeypatch.setattr(devices, "retain_memory", lambda: pytest.fail("not asked for"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    devices.apply(DEFAULT, CPU)
    assert devices.ineffective_settings(DEFAULT, CPU) == found


def test_no_more_is_asked_than_every_glibc_grants(monkeypatch):
    """Older ones refuse a threshold above 32 MiB (M_MMAP_THRESHOLD); no mmap at all, none refuses."""
    asked = {}

    def mallopt(name: int, value: int) -> int:
        asked[name] = value
        return int(name != -3 or value <= 32 * 2**20)

    assert retaining_by(monkeypatch, mallopt)
    assert asked[-4] == 0
    assert asked[-1] > 2**30
    assert all(0 <= value < 2**31 for value in asked.values())


def test_settings_of_a_gpu_are_without_effect_on_a_cpu(monkeypatch):
    monkeypatch.setattr(devices, "_retaining", True)
    asked = {
        "precision.tf32": True,
        "loader.pin_memory": True,
        "compile.cudnn_benchmark": True,
        "device.memory_fraction": 0.5,
    }
    for name, value in asked.items():
        found = devices.ineffective_settings(TrialConfig().replace({name: value}), CPU)
        assert found == {name: "without effect: no GPU"}
    assert devices.ineffective_settings(TrialConfig(), CPU) == {}
    assert devices.ineffective_settings(TrialConfig().replace(asked), torch.device("cuda", 0)) == {}
    both = TrialConfig().replace({"device.malloc": "default", "precision.tf32": True})
    assert set(devices.ineffective_settings(both, CPU)) == {"device.malloc", "precision.tf32"}


@pytest.mark.parametrize(
    ("step_s", "least", "most"),
    # Of short steps the device has some to go on with; of long ones few, for they would all be timed.
    [(0.0, 24, 48), (0.01, 24, 48), (0.02, 1, 4)],
)
def test_the_host_keeps_ahead_of_a_gpu_but_not_far(monkeypatch, step_s: float, least: int, most: int):
    cuda = FakeCuda(monkeypatch, 1e-4, 1.0)
    pace = devices.Pace(CUDA, step_s)
    ahead = []
    for _ in range(200):
        cuda.train()
        pace.step()
        ahead.append(cuda.free - cuda.now)
    assert least <= min(ahead[100:])
    assert max(ahead) <= most


def test_on_a_cpu_there_is_nothing_to_keep_ahead_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", pytest.fail)
    pace = devices.Pace(CPU)
    for _ in range(100):
        pace.step()


@pytest.mark.parametrize(
    ("said", "driver"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n",
            "535.183.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n",
            "580.65.06",
        ),
        ("something else\n", None),
        (None, None),
    ],
)
def test_the_driver_is_one_of_the_versions(tmp_path, monkeypatch, said, driver):
    monkeypatch.setattr(devices, "DRIVER_VERSION", tmp_path / "version")
    if said is not None:
        (tmp_path / "version").write_text(said)
    assert devices.versions().get("driver") == driver
    assert devices.versions()["torch"] == str(torch.__version__)


def test_the_machines_memory_is_known():
    info = devices.describe(CPU)
    assert info.memory_gib == 0
    assert info.room_gib == info.host_memory_gib > 0.1
