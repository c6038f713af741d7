"""Says what keeps a training from the GPUs of this machine, before it begins: one line for each fault.

Imports no torch: which build would run is read from its files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from sweeper.telemetry.nvml.binding import NO_LIBRARY
from sweeper.telemetry.nvml.devices import GpuFacts, awake, describe_gpus, driver_problem, gpu_uuids

VISIBLE = "CUDA_VISIBLE_DEVICES"
LITTLE_GIB = 1.0
"""Free memory below which a GPU is called full: a CUDA context alone takes a third of it."""
PCI = Path("/sys/bus/pci/devices")
DRIVER = Path("/proc/driver/nvidia")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_OLDEST, _OLDEST_CUDA_13, _NEWEST_CUDA_12 = (5, 0), (7, 5), (9, 0)
_CUDA_12 = 12
_ASK = "`sweeper doctor` tells more"


@dataclass(frozen=True, slots=True)
class Build:
    """A build of torch: its version, and the CUDA that it is built for; empty for none."""

    version: str
    cuda: str = ""


def installed_build() -> Build | None:
    """Returns the build of torch that this interpreter would import; None without one."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    named = dict(re.findall(r"^(__version__|cuda)\b.*= '(.+)'$", text, re.MULTILINE))
    return Build(named.get("__version__", ""), named.get("cuda", ""))


def build_of(command: Sequence[str]) -> Build | None:
    """Returns the build of torch that a command trains with; None if it is not of this interpreter."""
    program = shutil.which(command[0])
    is_own = program is not None and Path(program).parent == Path(sys.executable).parent
    return installed_build() if is_own else None


@contextlib.contextmanager
def gpus_for(command: Sequence[str], say: Callable[[str], None]) -> Iterator[Sequence[str]]:
    """Says a line for each fault of the GPUs that a command would use, and keeps them initialised.

    Yields:
        The lines.
    """
    lines = gpu_lines(build_of(command))
    for line in lines:
        say(line)
    # With persistence mode off, every process would wait for the driver to initialise them.
    with awake(gpu_uuids()):
        yield lines


def has_gpu() -> bool:
    """Returns whether the machine has an NVIDIA GPU, usable or not."""
    if DRIVER.exists():
        return True
    for device in PCI.glob("*"):
        try:
            if (device / "vendor").read_text(encoding="ascii").strip() == _NVIDIA and (
                (device / "class").read_text(encoding="ascii").startswith(_DISPLAY)
            ):
                return True
        except OSError:
            continue
    return False


def hides_all(visible: str | None) -> bool:
    """Returns whether a value of CUDA_VISIBLE_DEVICES hides all GPUs on purpose."""
    return visible is not None and visible.partition(",")[0].strip() in ("", "-1")


def gpu_lines(
    build: Build | None, *, on_gpu: bool | None = None, only: Sequence[str] | None = None
) -> list[str]:
    """Returns a line for each fault of the GPUs that a training would use; none if all is well.

    None, too, if there is no GPU, or if CUDA_VISIBLE_DEVICES hides all of them.

    Args:
        build: The build of torch; None if unknown.
        on_gpu: Whether torch uses a GPU; None if that is not known yet.
        only: UUIDs of the GPUs that are used; all visible ones by default.

    Raises:
        EnvironmentStopError: The driver has not answered.
    """
    if hides_all(os.environ.get(VISIBLE)):
        return []
    uuids, gpus = gpu_uuids(), describe_gpus()
    problem = "" if gpus else driver_problem()
    if not on_gpu and (fault := _why_unused(build, gpus, uuids, problem, is_cpu=on_gpu is False)):
        called = f" ({gpus[0].name})" if gpus else ""
        return [
            f"This training can use the CPU only, not the GPU{called}: {fault}; "
            f"`{VISIBLE}=` says that the CPU is meant."
        ]
    if problem and (on_gpu or has_gpu()):
        return [f"What the GPU does is not recorded, nor who else uses it: NVML must answer, but {problem}."]
    wanted = uuids if only is None else only
    return [line for gpu in gpus if gpu.uuid in wanted for line in _faults(gpu)]


def why_unused(build: Build | None) -> str:
    """Returns why torch, which uses none of this machine's GPUs, does not, and what to do.

    Empty if there is no GPU, or if CUDA_VISIBLE_DEVICES hides all of them.
    """
    if hides_all(os.environ.get(VISIBLE)):
        return ""
    gpus = describe_gpus()
    return _why_unused(build, gpus, gpu_uuids(), "" if gpus else driver_problem(), is_cpu=True)


def _why_unused(
    build: Build | None, gpus: Sequence[GpuFacts], uuids: Sequence[str], problem: str, *, is_cpu: bool
) -> str:
    """Returns why torch cannot use the GPUs, and what to do; empty if no reason is known.

    Args:
        gpus: The GPUs as NVML describes them.
        uuids: Those that CUDA_VISIBLE_DEVICES names.
        problem: Why NVML cannot be used; empty if it can.
        is_cpu: Whether it is known that torch uses none: there is a reason then.
    """
    if not gpus and not has_gpu():
        return ""
    driver_cuda = gpus[0].cuda_driver_version if gpus else ""
    if build is not None and not build.cuda:
        return (
            f"torch must be built for CUDA, but {build.version} is not. {install_remedy(None, driver_cuda)}"
        )
    if not gpus:
        says = f"its driver must answer, but {problem or 'it lists none'}. {_ASK}"
        return says if is_cpu or NO_LIBRARY not in problem else ""
    if not uuids:
        choices = ", ".join(gpu.uuid for gpu in gpus)
        return (
            f"`{VISIBLE}` must name a GPU of this machine, but is {os.environ.get(VISIBLE)!r}. Unset it, or "
            f"name one of {choices}"
        )
    if build is not None and driver_cuda and _major(driver_cuda) < _major(build.cuda):
        return (
            f"torch {build.version} must have a driver for CUDA {_major(build.cuda)} or newer, but "
            f"{gpus[0].driver} is for CUDA {driver_cuda}. {driver_remedy(driver_cuda)}"
        )
    visible = [gpu for gpu in gpus if gpu.uuid in uuids]
    if visible and all(gpu.compute_mode == "prohibited" for gpu in visible):
        allow = f"`sudo nvidia-smi -i {visible[0].index} -c 0` allows it"
        return f"its compute mode must allow trainings, but is prohibited. {allow}"
    return f"torch must see it, but does not. {_ASK}" if is_cpu else ""


def _faults(gpu: GpuFacts) -> Iterator[str]:
    """Yields what will end or slow down a training on a GPU that torch can use."""
    called = f"GPU {gpu.index} ({gpu.name})"
    if gpu.foreign and gpu.compute_mode.startswith("exclusive"):
        yield (
            f"{called} must be free, since its compute mode is {gpu.compute_mode}, but {_users(gpu)}. End "
            f"that, or allow sharing: `sudo nvidia-smi -i {gpu.index} -c 0`."
        )
    elif is_full(gpu):
        yield (
            f"{called} must have {LITTLE_GIB:g} GiB free, but has {memory(gpu)}"
            f"{f', and {_users(gpu)}' if gpu.foreign else ''}. End what uses it, or use another GPU."
        )


def is_full(gpu: GpuFacts) -> bool:
    """Returns whether too little of a GPU's memory is free for any training; an instance has its own."""
    return gpu.free_gib is not None and gpu.free_gib < LITTLE_GIB and not gpu.mig


def memory(gpu: GpuFacts) -> str:
    """Returns how much of a GPU's memory is free."""
    return f"{gpu.free_gib:.2g} of {gpu.memory_gib:.3g} GiB"


def _users(gpu: GpuFacts) -> str:
    pids = ", ".join(map(str, gpu.foreign))
    return f"process {pids} uses it" if len(gpu.foreign) == 1 else f"processes {pids} use it"


def install_remedy(capability: tuple[int, int] | None, driver_cuda: str) -> str:
    """Returns how to install a build of torch that has code for a device and runs on its driver.

    Wheels for CUDA 12.6 have code for 5.0 to 9.0 and are built up to torch 2.14; those for CUDA 13 have
    code for 7.5 and newer, and need driver 580 or newer (PyTorch's RELEASE.md: CUDA support matrix). Every
    CUDA 12 runs on driver 525 or newer (CUDA Compatibility).

    Args:
        capability: None if unknown.
        driver_cuda: Newest CUDA that the driver knows, such as `12.8`; empty if unknown.
    """
    major = _major(driver_cuda) or 13
    if capability is not None and capability < _OLDEST:
        return "torch 2.9 and newer have no code for it: use another GPU, or `--device cpu`"
    command = "`pip uninstall -y torch`, then `pip install {what}` from PyTorch's wheel index `{cuda}`"
    old = capability is not None and capability < _OLDEST_CUDA_13
    if old or (major < 13 and (capability is None or capability <= _NEWEST_CUDA_12)):
        first = "" if major >= _CUDA_12 else "Update the NVIDIA driver to 525 or newer; "
        return first + command.format(what='"torch>=2.9,<2.15"', cuda="cu126")
    first = "" if major >= 13 else "Update the NVIDIA driver to 580 or newer; "
    return first + command.format(what="torch", cuda="cu130")


def driver_remedy(driver_cuda: str) -> str:
    """Returns what to do about a driver that is too old for torch's build."""
    remedy = install_remedy(None, driver_cuda)
    return remedy if remedy.startswith("Update") else f"Update the NVIDIA driver, or {remedy}"


def cuda_remedy(problem: str, driver_cuda: str) -> str:
    """Returns what to do about torch's message that it cannot use CUDA."""
    if "too old" in problem:
        return driver_remedy(driver_cuda)
    if "busy" in problem:
        return "Another process holds the GPU (see `nvidia-smi`): end it, or share it (`nvidia-smi -c 0`)"
    return f"Check that `nvidia-smi` works and {VISIBLE} names a GPU; else reload the driver"


def first_sentence(text: str) -> str:
    """Returns the first sentence of torch's message; those after it say where to download a driver."""
    return re.split(r"(?:,? e\.g)?\.(?: |$)", text, maxsplit=1)[0]


def _major(version: str) -> int:
    return int(version.partition(".")[0] or 0)
