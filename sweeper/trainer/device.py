"""The device of a trial: opens it, sets it up, describes it, waits for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo
from sweeper.core.units import GIB
from sweeper.script.changes.environment import ALLOCATOR
from sweeper.system import numa
from sweeper.system.cpu import cpu_name, usable_cpus

DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def open_device(name: str, rank: int = 0) -> torch.device:
    """Returns the device called `cpu`, or the visible CUDA device at index `rank`.

    `name` is a value of CUDA_VISIBLE_DEVICES (UUIDs or indices), so call this before any CUDA call.
    """
    if name == "cpu":
        return torch.device("cpu")
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    if rank:
        torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def num_visible() -> int:
    """Returns how many CUDA devices this process can use.

    Until CUDA has started, and in torch 2.9 always, `torch.cuda` asks NVML, which also counts GPUs that CUDA
    leaves out: those split into instances, or not shared by MPS.
    """
    if not torch.cuda.device_count():
        return 0
    torch.cuda.init()
    return torch._C._cuda_getDeviceCount()


_refused: dict[str, str] = {}
"""Settings that this process's device refused, and why."""


def apply(config: TrialConfig, device: torch.device) -> None:
    """Sets the memory node, threads, allocators, TF32 and cuDNN benchmarking from `config`.

    A setting that the device refuses stays unchanged, and `ineffective_settings` reports it.
    """
    _refused.clear()
    if device.type == "cuda":
        # First and separately: an unusable device is not the same as a refused setting.
        torch.cuda.init()
    threads = usable_cpus() // config.device.count
    if config.device.numa == "near":
        _attempt("device.numa", lambda: _stay_near(device))
        # Ranks are bound to their nodes, so each shares cores only with the ranks on its node.
        threads = min(threads, usable_cpus() // _num_near(device, config.device.count))
    torch.set_num_threads(config.device.cpu_threads or max(1, threads))
    if config.device.malloc == "retain":
        retain_memory()
    if device.type != "cuda":
        return
    fraction = config.device.memory_fraction
    if config.precision.tf32 != "default":
        _attempt("precision.tf32", lambda: _set_tf32(config.precision.tf32 is True))
    _attempt("compile.cudnn_benchmark", lambda: _set_cudnn_benchmark(config.compile.cudnn_benchmark))
    _attempt("device.expandable_segments", lambda: _expand_segments(config.device.expandable_segments))
    if fraction:
        _attempt(
            "device.memory_fraction", lambda: torch.cuda.set_per_process_memory_fraction(fraction, device)
        )


def _attempt(name: str, setting: Callable[[], None]) -> None:
    try:
        setting()
    except (RuntimeError, ValueError) as error:
        _refused[name] = f"refused by the device: {str(error).partition(chr(10))[0]}"
    except OSError as error:
        _refused[name] = f"without effect: {error.strerror}"


def _stay_near(device: torch.device) -> None:
    nodes = numa.nodes()
    if len(nodes) < 2:
        raise OSError(0, "this machine has one node")
    node = _node_of(device) if device.type == "cuda" else numa.node_of_process(nodes)
    if node is None:
        raise OSError(0, "the GPU's node is unknown")
    numa.bind(node, nodes)


def _node_of(gpu: torch.device) -> int | None:
    """Returns the memory node that a GPU is attached to; None if unknown."""
    about: Any = torch.cuda.get_device_properties(gpu)
    return numa.node_of_gpu(f"{about.pci_domain_id:08x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0")


def _num_near(device: torch.device, count: int) -> int:
    """Returns how many of a trial's `count` ranks are on the memory node of `device`."""
    if device.type != "cuda":
        return count
    # A check may run on fewer GPUs than the configuration asks for.
    nodes = [_node_of(torch.device("cuda", rank)) for rank in range(min(count, num_visible()))]
    return nodes.count(nodes[device.index])


def _set_tf32(on: bool) -> None:
    """Sets TF32 for matrix products and for cuDNN, consistently for all parts of torch.

    These older calls set the newer `fp32_precision` as well. The other way round, torch raises when
    it reads an older flag (in its compiler, in `cudnn.flags`) that contradicts a newer one.
    """
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def _set_cudnn_benchmark(on: bool) -> None:
    torch.backends.cudnn.benchmark = on


# The older name, which torch 2.9 has, warns in newer versions.
_set_allocator_settings: Callable[[str], None] = getattr(
    torch._C, "_accelerator_setAllocatorSettings", torch.cuda.memory._set_allocator_settings
)
_SEGMENTS = re.compile(r"expandable_segments\s*:\s*(True|False)")


def _expand_segments(expandable: bool) -> None:
    """Lets the allocator's segments grow if `expandable`, unless the user's own variable decides that."""
    variable = next((name for name in ALLOCATOR if name in os.environ), "")
    given = os.environ.get(variable, "")
    if decided := _SEGMENTS.findall(given):
        if (decided[-1] == "True") != expandable:
            _refused["device.expandable_segments"] = f"{decided[-1].lower()}: {variable} sets it"
    elif expandable:
        # torch reads the variable when it is imported. Each later call sets all options anew.
        _set_allocator_settings(",".join(filter(None, [given, "expandable_segments:True"])))


# Names and numbers of mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_RETAIN = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26))
_retaining = False


def retain_memory() -> None:
    """Makes the C library keep freed memory for the next allocation, for the rest of this process.

    By default it returns blocks of a few MiB to the kernel, and each step faults them in again,
    cleared: an LSTM (hidden 128, sequence 30, batch 256) on one core took 8,800 page faults per
    step, a third of its time. Only glibc supports this.
    """
    global _retaining
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    _retaining = mallopt is not None and all([mallopt(name, value) for name, value in _RETAIN])


def ineffective_settings(config: TrialConfig, device: torch.device) -> Mapping[str, str]:
    """Returns the settings that could not be applied here, and what ran instead."""
    settings = {}
    if (config.device.malloc == "retain") != _retaining:
        settings["device.malloc"] = (
            "retain: an earlier trial in this process set it" if _retaining else "default: glibc only"
        )
    if device.type == "cuda":
        return {**settings, **_refused}
    options = {
        "precision.tf32": config.precision.tf32 is True,
        "loader.pin_memory": config.loader.pin_memory,
        "compile.cudnn_benchmark": config.compile.cudnn_benchmark,
        "device.memory_fraction": config.device.memory_fraction,
        "device.expandable_segments": config.device.expandable_segments,
    }
    return {**settings, **_refused, **{name: "without effect: no GPU" for name, on in options.items() if on}}


def describe(device: torch.device) -> DeviceInfo:
    """Describes `device`, with its UUID for CUDA_VISIBLE_DEVICES as far as CUDA reports it."""
    host_gib = round(psutil.virtual_memory().total / GIB, 2)
    if device.type != "cuda":
        return DeviceInfo(kind="cpu", name=cpu_name(), host_memory_gib=host_gib)
    properties = torch.cuda.get_device_properties(device)
    return DeviceInfo(
        kind="cuda",
        name=properties.name,
        uuid=_uuid(str(getattr(properties, "uuid", "")), device.index or 0),
        memory_gib=round(properties.total_memory / GIB, 2),
        capability=f"{properties.major}.{properties.minor}",
        host_memory_gib=host_gib,
    )


def _uuid(named: str, index: int) -> str:
    """Returns the UUID of a visible device with its prefix.

    CUDA reports UUIDs without one. A MIG instance is recognised if it was requested by its UUID;
    otherwise NVML knows (`sweeper.sweep.start.setup.devices_of`).
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[index].strip() if index < len(visible) else ""
    if entry.startswith("MIG-"):
        return entry
    return named if named.startswith(("GPU-", "MIG-")) or not named else f"GPU-{named}"


def synchronize(device: torch.device) -> None:
    """Waits until the device has completed all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Pace:
    """Keeps the host from running far ahead of a GPU, which would extend a window beyond its end.

    A captured step is one launch, and a thousand of them fit into the queue. An event every eighth
    step shows how far the device is; waiting for an old one leaves at least 24 steps in the queue.
    For long steps, two in the queue are enough; more would extend a window far beyond its end.
    """

    EVERY, DEPTH, LONG_SECONDS = 8, 4, 0.01

    def __init__(self, device: torch.device, step_s: float = 0.0) -> None:
        self._on = device.type == "cuda"
        self._every, self._depth = (1, 2) if step_s > self.LONG_SECONDS else (self.EVERY, self.DEPTH)
        self._steps = 0
        self._events: deque[torch.cuda.Event] = deque()

    def step(self) -> None:
        """Counts a launched step, and waits if the host is too far ahead."""
        self._steps += 1
        if self._on and self._steps % self._every == 0:
            event = torch.cuda.Event()
            event.record()
            self._events.append(event)
            if len(self._events) > self._depth:
                self._events.popleft().synchronize()


def free_bytes(device: torch.device, memory_fraction: float = 0.0) -> int:
    """Returns the bytes on a GPU that this process may still allocate.

    Args:
        memory_fraction: Share of the device's memory that the process may use; 0 for all.
    """
    free, total = torch.cuda.mem_get_info(device)
    allowed = int((memory_fraction or 1.0) * total) - torch.cuda.memory_reserved(device)
    return max(0, min(free, allowed))


def peak_memory_gib(device: torch.device) -> float | None:
    """Returns the allocator's peak of reserved memory, or None without a GPU."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_reserved(device) / GIB, 4)


def host_peak_gib() -> float:
    """Returns the peak resident set of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 4)


def versions() -> Mapping[str, str]:
    """Returns the versions that results depend on: torch, CUDA, and the driver if there is one."""
    software = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        software["cuda"] = torch.version.cuda
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
    with contextlib.suppress(OSError):
        if driver := re.search(r" Module .*?(\d+\.[\d.]+)\s", DRIVER_VERSION.read_text(encoding="utf-8")):
            software["driver"] = driver[1]
    return software
