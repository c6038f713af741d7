"""The device of a trial: choosing it, setting it up, describing it, waiting for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

import torch

from sweeper.core.config import TrialConfig
from sweeper.core.machine import cpu_name, usable_cpus
from sweeper.core.measurement import DeviceInfo

GIB = 1024**3


def open_device(name: str) -> torch.device:
    """Returns the device called `cpu`, or the only CUDA device left visible.

    `name` is what CUDA_VISIBLE_DEVICES takes (a UUID or an index), so this comes before any CUDA call.
    """
    if name == "cpu":
        return torch.device("cpu")
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    return torch.device("cuda", 0)


def apply(config: TrialConfig, device: torch.device) -> None:
    """Sets threads, TF32, cuDNN search and the memory limit as `config` says."""
    torch.set_num_threads(config.device.cpu_threads or usable_cpus())
    if device.type != "cuda":
        return
    precision = "tf32" if config.precision.tf32 else "ieee"
    # The per-backend names (torch >= 2.9) must not be mixed with the older allow_tf32 flags.
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]
    else:
        torch.backends.cuda.matmul.allow_tf32 = config.precision.tf32
        torch.backends.cudnn.allow_tf32 = config.precision.tf32
    torch.backends.cudnn.benchmark = config.compile.cudnn_benchmark
    if config.device.memory_fraction:
        torch.cuda.set_per_process_memory_fraction(config.device.memory_fraction, device)


def without_effect(config: TrialConfig, device: torch.device) -> Mapping[str, str]:
    """Returns the settings which ask for what only a GPU has, and what ran in their place."""
    asked = {
        "precision.tf32": config.precision.tf32,
        "loader.pin_memory": config.loader.pin_memory,
        "compile.cudnn_benchmark": config.compile.cudnn_benchmark,
        "device.memory_fraction": config.device.memory_fraction,
    }
    return {} if device.type == "cuda" else {n: "without effect: no GPU" for n, on in asked.items() if on}


def describe(device: torch.device) -> DeviceInfo:
    """Returns what `device` is, with the UUID that NVML knows it by."""
    if device.type != "cuda":
        return DeviceInfo(kind="cpu", name=cpu_name())
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    return DeviceInfo(
        kind="cuda",
        name=properties.name,
        uuid=uuid if uuid.startswith(("GPU-", "MIG-")) or not uuid else f"GPU-{uuid}",
        memory_gib=round(properties.total_memory / GIB, 2),
        capability=f"{properties.major}.{properties.minor}",
    )


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gib(device: torch.device) -> float | None:
    """Returns the allocator's peak of reserved memory, or None where there is no GPU."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_reserved(device) / GIB, 4)


def host_peak_gib() -> float:
    """Returns the peak resident set of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 4)


def versions() -> Mapping[str, str]:
    """Returns the versions a result depends on."""
    found = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
