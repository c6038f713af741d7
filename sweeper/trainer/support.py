"""Says what a device does not support, so that a search leaves it out."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from sweeper.core.measurement import DeviceInfo
from sweeper.system import numa
from sweeper.trainer.step.fp8 import lacks_fp8


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
