"""Checks the GPUs: the driver, other users, whether torch has code for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.doctor.finding import Check, State
from sweeper.telemetry.gpu_advice import (
    VISIBLE,
    cuda_remedy,
    first_sentence,
    has_gpu,
    hides_all,
    install_remedy,
    is_full,
    memory,
)
from sweeper.telemetry.nvml.devices import HANGS, GpuFacts

__all__ = ["covers", "has_gpu", "look", "num_visible", "torch_build", "torch_device"]

# Chips that share memory with the processor. Their machine code runs on no other chip, and they run no
# other chip's machine code.
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)}


def num_visible(num_gpus: int, visible: str | None) -> int:
    """Returns the largest number of a machine's GPUs that a process can see.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None if not set.
    """
    if visible is None:
        return num_gpus
    # As in CUDA, an entry that names no GPU ends the list.
    names = itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, visible.split(",")))
    return min(num_gpus, len(list(names)))


def look(
    problem: str, gpus: Sequence[GpuFacts], *, is_present: bool, num_seen: int | None = None
) -> Iterator[Check]:
    """Yields a check for each GPU, or one that says there is none.

    Args:
        problem: Why NVML cannot be used; empty if it can.
        is_present: The answer of `has_gpu`.
        num_seen: GPUs that torch sees; None if that could not be found out.
    """
    if problem == HANGS:
        yield Check("gpu", State.FAIL, "the NVIDIA driver hangs, so the GPUs were not queried", problem)
    elif problem and num_seen:
        text = "CUDA works, but NVML does not: neither a GPU's load nor its other users are recorded"
        yield Check("gpu", State.WARN, text, problem)
    elif problem and is_present:
        text = "there is an NVIDIA GPU, but its driver cannot be used here: trials would run on the CPU"
        yield Check("gpu", State.WARN, text, problem)
    elif not gpus and is_present:
        text = "there is an NVIDIA GPU, but its driver lists none: trials would run on the CPU"
        yield Check("gpu", State.WARN, text, "Check what `sudo dmesg | grep -i nvrm` says")
    elif not gpus:
        yield Check("gpu", State.OK, "no GPU: trials run on the CPU")
    for gpu in gpus:
        yield _gpu(gpu)


def _gpu(gpu: GpuFacts) -> Check:
    exclusive = gpu.compute_mode.startswith("exclusive")
    parts = (
        gpu.name or "unnamed",
        f"{gpu.memory_gib:.3g} GiB" if gpu.memory_gib else "",
        f"driver {gpu.driver or 'unknown'} (CUDA {gpu.cuda_driver_version or 'unknown'})",
        "split by MIG: its utilisation cannot be read" if gpu.mig else "",
        f"compute mode {gpu.compute_mode}" if gpu.compute_mode not in ("", "default") else "",
        "persistence mode off" if gpu.persistence is False else "",
        f"only {memory(gpu)} free" if is_full(gpu) else "",
    )
    text, name = ", ".join(filter(None, parts)), f"gpu {gpu.index}"
    if gpu.compute_mode == "prohibited":
        return Check(
            name,
            State.WARN,
            text,
            f"Allow compute on it: `nvidia-smi -i {gpu.index} -c 0`",
        )
    remedies = []
    if gpu.foreign:
        text += f"; other processes use it: {', '.join(map(str, gpu.foreign))}"
        remedies.append(
            f"End them, or allow sharing (`nvidia-smi -i {gpu.index} -c 0`): until then, trials cannot use it"
            if exclusive
            else "End them, or run on another GPU (`--device cuda:N`): they disturb timings"
        )
    elif is_full(gpu):
        remedies.append("End what holds its memory, or run on another GPU (`--device cuda:N`)")
    if gpu.persistence is False:
        remedies.append(
            f"Run `sudo nvidia-smi -i {gpu.index} -pm 1` (outside a container) or nvidia-persistenced: "
            "otherwise a process waits seconds for the driver to initialise an idle GPU"
        )
    return Check(name, State.WARN if remedies else State.OK, text, ". ".join(remedies))


def covers(arch_list: Sequence[str], capability: tuple[int, int]) -> bool:
    """Returns whether a build of torch has code for a device.

    `sm_XY` is machine code: it runs if the major version is equal and the minor at least as high.
    `compute_XY` is PTX, which the driver compiles for any device from X.Y on. (CUDA C++ Programming
    Guide: Binary Compatibility, PTX Compatibility.) `sm_XYa` is for that device alone.

    Args:
        arch_list: As `torch.cuda.get_arch_list()` gives it; empty if unknown.
        capability: Compute capability, major and minor.
    """
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
        if match is None:
            continue
        code = int(match[2]), int(match[3])
        if code == capability:
            return True
        if match[4] == "a" or code > capability:
            continue
        if match[1] == "compute":
            return True
        if code[0] == capability[0] and not {code, capability} & _INTEGRATED:
            return True
    return not arch_list


def torch_build(
    torch: Mapping[str, str], gpus: Sequence[GpuFacts], num_seen: int, visible: str | None
) -> Check:
    """Returns whether torch can use the GPUs that the driver reports.

    Args:
        torch: `version`, `cuda` (empty for a build without CUDA) and `problem`, as the ceilings job reports
            them.
        num_seen: GPUs that torch sees.
        visible: CUDA_VISIBLE_DEVICES; None if not set.
    """
    version, cuda, problem = torch["version"], torch["cuda"], first_sentence(torch["problem"])
    text = f"{version}, built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    if not gpus:
        return Check("torch", State.OK, text)
    if hides_all(visible):
        remedy = f"Unset it to use {'the GPU' if len(gpus) == 1 else f'the {len(gpus)} GPUs'}"
        return Check("torch", State.WARN, f"{text}; CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs", remedy)
    driver = gpus[0].cuda_driver_version
    if not cuda:
        text += f", but there is a GPU ({gpus[0].name}): trials would run on the CPU"
        return Check("torch", State.FAIL, text, install_remedy(None, driver))
    if (problem or not num_seen) and visible is not None and _names_none(visible, gpus):
        text += f", but it sees no GPU: {VISIBLE}={visible!r} names no GPU of this machine"
        return Check("torch", State.FAIL, text, f"Unset it, or name one of {', '.join(g.uuid for g in gpus)}")
    if problem or not num_seen:
        text += f", but it cannot use the GPU: {problem or 'it sees none'}"
        return Check("torch", State.FAIL, text, cuda_remedy(problem, driver))
    seen = f"; it sees {num_seen} of {len(gpus)} GPUs" if num_seen != len(gpus) else ""
    if seen and visible is not None:
        seen += f" (CUDA_VISIBLE_DEVICES={visible})"
    return Check("torch", State.OK, text + seen)


def _names_none(visible: str, gpus: Sequence[GpuFacts]) -> bool:
    """Returns whether a value of CUDA_VISIBLE_DEVICES begins with what is no GPU here."""
    first = visible.partition(",")[0].strip()
    if first.isdecimal():
        return int(first) >= len(gpus)
    # Instances are not among the facts.
    return not first.startswith("MIG-") and not any(gpu.uuid.startswith(first) for gpu in gpus)


def torch_device(index: int, device: Mapping[str, Any], torch: Mapping[str, Any], driver_cuda: str) -> Check:
    """Returns whether torch has code for a GPU that it sees, and could compute on it.

    Args:
        device: The GPU as the ceilings job reports it: `name`, `capability`, `problem`.
    """
    name, text = f"cuda:{index}", f"{device['name']}, capability {device['capability']}"
    major, _, minor = device["capability"].partition(".")
    capability = int(major), int(minor)
    if not covers(torch["arch_list"], capability):
        built = ", ".join(torch["arch_list"])
        text += f": torch {torch['version']} has no code for it (only for {built})"
        return Check(name, State.FAIL, text, install_remedy(capability, driver_cuda))
    if device["problem"]:
        remedy = "Check whether something else uses it (`nvidia-smi`) and what `dmesg | grep -i xid` says"
        return Check(name, State.FAIL, f"{text}: computing on it failed ({device['problem']})", remedy)
    return Check(name, State.OK, f"{text}: torch has code for it")
