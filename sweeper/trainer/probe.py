"""The probe job: finds out what this device supports, so that a search leaves out the rest."""

from __future__ import annotations

import shutil
import sysconfig
import time
from pathlib import Path

import torch

from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import DeviceInfo, Report
from sweeper.core.progress import Progress
from sweeper.system import numa
from sweeper.system.cpu import usable_cpus
from sweeper.trainer import device as devices
from sweeper.trainer.step.fp8 import lacks_fp8
from sweeper.trainer.timing.conditions import canary_ms

CANARIES = 5


def run(job: Job, progress: Progress) -> Report:
    """Returns the devices, the usable cores, and the choices that the first device cannot take.

    `job.device` is a device's name or `auto`, which finds the GPUs visible to this process, or else
    the CPU. `lacks` maps `field=value` to the reason; everything else can be tried. `canary_ms` is
    the best time of the canary.
    """
    progress.stage("probe")
    if job.device == "auto":
        torch_devices = [torch.device("cuda", i) for i in range(devices.num_visible())]
    else:
        torch_devices = [devices.open_device(job.device)]
    infos = [devices.describe(device) for device in torch_devices or [torch.device("cpu")]]
    info = infos[0]
    progress.device(info)
    return Report(
        values={
            "devices": encode(infos),
            "usable_cpus": usable_cpus(),
            "lacks": lacks(info),
            "versions": dict(devices.versions()),
            "canary_ms": min(canary_ms() for _ in range(CANARIES)),
        },
        finished_at=time.time(),
    )


def lacks(info: DeviceInfo) -> dict[str, str]:
    """Returns the choices that this device does not support: `field=value` and the reason."""
    reasons = _lacks_cuda(info.capability) if info.kind == "cuda" else _lacks_cpu()
    if len(numa.nodes()) < 2:
        reasons["device.numa=near"] = "this machine has one memory node"
    if why := lacks_compiler():
        for mode in ("default", "reduce-overhead", "max-autotune"):
            reasons[f"compile.mode={mode}"] = why
    return reasons


def lacks_compiler() -> str:
    """Returns why torch.compile cannot be used here; empty if it can."""
    if not any(map(shutil.which, ("gcc", "clang", "cc"))):
        return "no C compiler was found"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python.h was not found"
    return ""


def _lacks_cuda(capability: str) -> dict[str, str]:
    lacks: dict[str, str] = {}
    if tuple(map(int, capability.split("."))) < (8, 0):
        # is_bf16_supported() is True for emulation, too.
        lacks["precision.amp=bf16"] = f"no native bf16 at compute capability {capability}"
        lacks["precision.tf32=True"] = f"no TF32 at compute capability {capability}"
    if why := lacks_fp8(capability):
        lacks["precision.amp=fp8"] = why
    return lacks


def _lacks_cpu() -> dict[str, str]:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        flags = set(next((line for line in file if line.startswith("flags")), "").split())
    lacks = {
        "precision.tf32=True": "TF32 is an NVIDIA format",
        "loader.pin_memory=True": "pinned memory is for copies to a GPU",
        "compile.cudnn_benchmark=True": "cuDNN is for NVIDIA GPUs",
        "compile.mode=reduce-overhead": "CUDA graphs need a GPU; without one, this is the same as `default`",
        "compile.mode=graph": "CUDA graphs need a GPU",
        "precision.amp=fp8": lacks_fp8(""),
        "device.expandable_segments=True": "expandable segments are for GPU memory",
    }
    if not flags & {"avx512_bf16", "amx_bf16"}:
        lacks["precision.amp=bf16"] = "this CPU has no bf16 arithmetic"
    if not flags & {"avx512_fp16", "amx_fp16"}:
        lacks["precision.amp=fp16"] = "this CPU has no fp16 arithmetic"
    return lacks
