"""What is said of a machine's GPUs before a training begins: one line for each fault."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stub_nvml
from stub_nvml import Gpu, Mig

from sweeper.errors import EnvironmentStopError
from sweeper.telemetry import gpu_advice
from sweeper.telemetry.gpu_advice import Build, build_of, first_sentence, installed_build, why_unused
from sweeper.telemetry.nvml import devices

CPU, CUDA_13 = Build("2.13.0+cpu"), Build("2.14.1+cu130", "13.0")
A10 = Gpu()
TAKEN = Gpu(processes=[(4100001, 512)])
FULL = Gpu(processes=[(4100001, 22828)]).but(mem_used_mib=[22828])
PART = Mig("MIG-cccc1111-0000-5000-8000-000000000003")
SPLIT = Gpu("GPU-cccccccc-0000-4000-8000-000000000005", migs=(PART,)).but(mem_used_mib=[22828])
CPU_ONLY = "This training can use the CPU only, not the GPU (NVIDIA A10): "
UNNAMED = "This training can use the CPU only, not the GPU: "
MEANT = "; `CUDA_VISIBLE_DEVICES=` says that the CPU is meant."


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    return stub_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: Path) -> Callable[..., Path]:
    """Gives a machine with GPUs to this process; returns where its scenario lies."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def play(*gpus: Gpu, **how: object) -> Path:
        scenario = stub_nvml.write(tmp_path / "scenario", gpus, **{"cuda": 13000, **how})
        stub_nvml.loaded(monkeypatch, library, scenario)
        return scenario

    return play


def lines(build: Build | None = CUDA_13, **how: bool | None) -> list[str]:
    said = gpu_advice.gpu_lines(build, **how)
    assert not [line for line in said if "\n" in line]
    return said


def test_a_gpu_that_torch_can_use_is_no_line(play):
    play(A10)
    assert lines() == lines(on_gpu=True) == lines(None) == []


def test_without_a_gpu_nothing_is_said(play, monkeypatch):
    play(errors=[("*", "nvmlInitWithFlags", 12)])
    monkeypatch.setattr(gpu_advice, "has_gpu", lambda: False)
    assert lines(CPU) == lines(CPU, on_gpu=False) == lines(CUDA_13, on_gpu=False) == []
    assert why_unused(CPU) == ""


@pytest.mark.parametrize("visible", ["", "-1", "-1,0"])
def test_gpus_that_are_hidden_on_purpose_are_no_line_and_not_looked_for(play, monkeypatch, visible):
    scenario = play(A10)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lines(CPU) == lines(CPU, on_gpu=False) == []
    assert why_unused(CPU) == ""
    assert stub_nvml.calls(scenario) == []


def test_a_build_without_cuda_is_said_before_the_cpu_is_used(play):
    play(A10)
    remedy = "`pip uninstall -y torch`, then `pip install torch` from PyTorch's wheel index `cu130`"
    expected = f"{CPU_ONLY}torch must be built for CUDA, but 2.13.0+cpu is not. {remedy}{MEANT}"
    assert lines(CPU) == lines(CPU, on_gpu=False) == [expected]


def test_a_driver_that_is_older_than_the_build(play):
    play(A10, cuda=12040)
    (line,) = lines()
    assert line.startswith(
        f"{CPU_ONLY}torch 2.14.1+cu130 must have a driver for CUDA 13 or newer, but 550.54.15 is for CUDA "
        "12.4. Update the NVIDIA driver, or "
    )
    # A driver runs every CUDA of its own major version.
    assert lines(Build("2.9.1+cu128", "12.8")) == []


@pytest.mark.parametrize("visible", ["GPU-ffffffff", "7", "no gpu", "0,0"])
def test_cuda_visible_devices_that_names_none(play, monkeypatch, visible):
    play(A10)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (line,) = lines()
    assert line == (
        f"{CPU_ONLY}`CUDA_VISIBLE_DEVICES` must name a GPU of this machine, but is {visible!r}. Unset it, or "
        f"name one of {A10.uuid}{MEANT}"
    )


def test_an_instance_is_used_as_it_is_and_has_memory_of_its_own(play, monkeypatch):
    play(SPLIT)
    assert lines() == lines(on_gpu=True) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", PART.uuid)
    assert lines() == []


@pytest.mark.parametrize("mode", [1, 3])
def test_an_exclusive_gpu_that_is_taken(play, mode):
    play(TAKEN.but(compute_mode=[mode]))
    (line,) = lines()
    kind = {1: "exclusive thread", 3: "exclusive process"}[mode]
    assert line == (
        f"GPU 0 (NVIDIA A10) must be free, since its compute mode is {kind}, but process 4100001 uses it. "
        "End that, or allow sharing: `sudo nvidia-smi -i 0 -c 0`."
    )
    play(A10.but(compute_mode=[mode]))
    assert lines() == []


def test_a_prohibited_gpu(play):
    play(A10.but(compute_mode=[2]))
    (line,) = lines()
    assert "its compute mode must allow trainings, but is prohibited. `sudo nvidia-smi -i 0 -c 0`" in line


def test_a_gpu_with_200_mib_free(play):
    play(FULL)
    (line,) = lines()
    assert line == (
        "GPU 0 (NVIDIA A10) must have 1 GiB free, but has 0.2 of 22.5 GiB, and process 4100001 uses it. End "
        "what uses it, or use another GPU."
    )
    # Shared, it may be used all the same.
    play(TAKEN)
    assert lines() == []


def test_only_the_gpus_that_are_used_count(play):
    other = Gpu("GPU-22222222-aaaa-4bbb-8ccc-000000000002")
    play(FULL, other)
    assert len(lines()) == 1
    assert gpu_advice.gpu_lines(CUDA_13, on_gpu=True, only=[other.uuid]) == []


def test_persistence_mode_that_is_off_is_no_line_since_the_gpus_are_kept_awake(play):
    play(A10.but(persistence=[0]))
    assert lines() == lines(on_gpu=True) == []


def test_a_container_without_nvml(play, monkeypatch):
    play(errors=[("*", "nvmlInitWithFlags", 12)])
    monkeypatch.setattr(gpu_advice, "has_gpu", lambda: True)
    (line,) = lines()
    assert line.startswith(
        "What the GPU does is not recorded, nor who else uses it: NVML must answer, but libnvidia-ml"
    )
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in line
    assert lines(on_gpu=True) == [line]
    # CUDA does not work either.
    (line,) = lines(on_gpu=False)
    assert line.startswith(f"{UNNAMED}its driver must answer, but libnvidia-ml.so.1 was not found")


@pytest.mark.parametrize(("code", "says"), [(9, "driver is not loaded"), (18, "older kernel module")])
def test_a_driver_that_does_not_work_at_all(play, monkeypatch, code, says):
    play(errors=[("*", "nvmlInitWithFlags", code)])
    monkeypatch.setattr(gpu_advice, "has_gpu", lambda: True)
    (line,) = lines()
    assert line.startswith(f"{UNNAMED}its driver must answer, but the NVIDIA driver")
    assert says in line


def test_a_driver_that_hangs_ends_the_command(play, monkeypatch):
    scenario = play(A10, delays={"nvmlInitWithFlags": 300})
    monkeypatch.setattr(devices, "LIMIT_SECONDS", 0.05)
    with pytest.raises(
        EnvironmentStopError, match=r"^the NVIDIA driver must list .* hangs.*`CUDA_VISIBLE_DEVICES=`"
    ):
        lines()
    # The thread that was left behind ends before the next test plays something else.
    deadline = time.perf_counter() + 10
    while not stub_nvml.calls(scenario, "nvmlShutdown") and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert stub_nvml.calls(scenario, "nvmlShutdown")


def test_torch_that_uses_none_of_the_gpus_for_a_reason_that_is_not_known(play):
    play(A10)
    why = "torch must see it, but does not. `sweeper doctor` tells more"
    assert lines(on_gpu=False) == [f"{CPU_ONLY}{why}{MEANT}"]
    assert why_unused(CUDA_13) == why


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "The driver is too old (found version 12040). Please update",
            "The driver is too old (found version 12040)",
        ),
        ("built for CUDA 13.0", "built for CUDA 13.0"),
        ("No CUDA GPUs are available.", "No CUDA GPUs are available"),
        ("CUDA unknown error, e.g. changing a variable. So", "CUDA unknown error"),
        ("CUDA unknown error, e.g.", "CUDA unknown error"),
    ],
)
def test_of_torchs_messages_the_first_sentence_is_shown(text, sentence):
    assert first_sentence(text) == sentence


# -- the build of torch ---------------------------------------------------------------------------------


def test_the_build_is_read_and_not_imported(tmp_path, monkeypatch):
    build = installed_build()
    assert build is not None
    assert importlib.metadata.version("torch") in (build.version, build.version.partition("+")[0])
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    version = tmp_path / "torch" / "version.py"
    version.write_text("__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_build() == CUDA_13
    version.write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    assert installed_build() == CPU
    version.unlink()
    assert installed_build() is None


def test_only_a_command_of_this_interpreter_has_its_torch(tmp_path, monkeypatch):
    assert build_of([sys.executable, "train.py"]) == installed_build()
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert build_of(["python", "train.py"]) == installed_build()
    other = tmp_path / "python"
    other.write_text("")
    other.chmod(0o755)
    assert build_of([str(other), "train.py"]) is build_of(["no-such-program"]) is None


# -- the machine and its wheels -------------------------------------------------------------------------


def test_an_nvidia_gpu_is_known_by_its_place_on_the_bus(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_advice, "DRIVER", tmp_path / "driver")
    monkeypatch.setattr(gpu_advice, "PCI", tmp_path / "pci")
    assert not gpu_advice.has_gpu()
    for name, vendor, kind in (("a", "0x10de", "0x040300"), ("b", "0x1002", "0x030000"), ("c", "", "")):
        (tmp_path / "pci" / name).mkdir(parents=True)
        (tmp_path / "pci" / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "pci" / name / "class").write_text(f"{kind}\n")
    # The sound of a graphics card, and another maker's card.
    (tmp_path / "pci" / "d").mkdir()
    assert not gpu_advice.has_gpu()
    (tmp_path / "pci" / "a" / "class").write_text("0x030200\n")
    assert gpu_advice.has_gpu()
    (tmp_path / "pci" / "a" / "class").write_text("0x040300\n")
    (tmp_path / "driver").mkdir()
    assert gpu_advice.has_gpu()


@pytest.mark.parametrize(
    ("capability", "driver", "says"),
    [
        ((7, 0), "13.0", 'pip install "torch>=2.9,<2.15"` from PyTorch\'s wheel index `cu126`'),
        ((6, 1), "12.4", "cu126"),
        ((7, 5), "13.0", "pip install torch` from PyTorch's wheel index `cu130`"),
        ((8, 6), "12.8", "cu126"),
        ((9, 0), "12.8", "cu126"),
        ((12, 0), "12.8", "Update the NVIDIA driver to 580 or newer; `pip"),
        ((8, 0), "11.4", "Update the NVIDIA driver to 525 or newer; `pip"),
        ((12, 0), "13.1", "cu130"),
        (None, "12.2", "cu126"),
        (None, "13.0", "cu130"),
        (None, "", "cu130"),
        ((3, 7), "12.2", "--device cpu"),
    ],
)
def test_the_remedy_names_the_wheel(capability, driver, says):
    remedy = gpu_advice.install_remedy(capability, driver)
    assert says in remedy
    assert remedy.count("wheel index") == (0 if "--device" in says else 1)
