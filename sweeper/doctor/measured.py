"""Measures ceilings in a fresh process and derives checks from them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.job import CEILINGS_RUNNER, LOG, Job, MeasurePlan, read_outcome, write_job
from sweeper.core.measurement import Failure, Report
from sweeper.doctor import gpus as nvidia
from sweeper.doctor.finding import Ceiling, Check, State
from sweeper.launch.local import TRIAL_ENV
from sweeper.system.installed import is_whole
from sweeper.system.process import python_module
from sweeper.telemetry.nvml.devices import GpuFacts

TIMEOUT_SECONDS = 50.0
"""Limit for everything but the GPUs: torch's start, the host, the loader, the disk and the compiler."""
GPU_SECONDS = 20.0
"""Limit for each GPU: a CUDA context and a dozen figures."""
END_SECONDS = 10.0
SPEEDUP, BEHIND = 1.15, 0.8
_PRECISIONS = {"bf16": "precision.amp=bf16", "fp16": "precision.amp=fp16", "TF32": "precision.tf32=True"}
_REMEDIES = {
    "no C compiler was found": "Install one (`apt install build-essential`)",
    "Python.h was not found": "Install Python's headers (`apt install python3-dev`)",
}


def measure(cache: Path | None, num_gpus: int | None = 0, runner: str = CEILINGS_RUNNER) -> Report | Check:
    """Returns the report of the ceilings job, or a failed check; the folder of a failed job is kept.

    Args:
        cache: Folder for compiled code, which is kept; None if nothing can be written.
        num_gpus: GPUs that the job will see and measure; None if it must ask nothing of them.
    """
    if not is_whole():
        return Check("measuring", State.OK, "only the core of sweeper is installed, so nothing is measured")
    try:
        folder = Path(tempfile.mkdtemp(prefix="sweeper-doctor-"))
    except OSError as error:
        text = f"cannot create a temporary folder: {error}"
        return Check("measuring", State.FAIL, text, "Free some space, or set TMPDIR to another folder")
    plan = MeasurePlan(repeats=0)
    kept = str(cache) if cache else ""
    seconds = TIMEOUT_SECONDS + (num_gpus or 0) * GPU_SECONDS
    device = "cpu" if num_gpus is None else "auto"
    job = Job(uid="doctor", runner=runner, device=device, plan=plan, cache=kept, timeout_seconds=seconds)
    write_job(folder, job)
    try:
        output = _run_job(folder, seconds)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    outcome = read_outcome(folder)
    if isinstance(outcome, Report):
        shutil.rmtree(folder, ignore_errors=True)
        return outcome
    line, text = (output.strip().splitlines() or [""])[-1], "the measuring process ended without a result"
    if isinstance(outcome, Failure):
        line, text = outcome.last_words, f"{outcome.message} ({outcome.kind}, in stage `{outcome.stage}`)"
    return Check("measuring", State.FAIL, f"{text}. {line}".strip(), f"Its log is {folder / LOG}")


def _run_job(folder: Path, seconds: float) -> str:
    """Runs the job in `folder` for at most `seconds`; returns its keeper's output."""
    keeper = subprocess.Popen(
        python_module("sweeper.worker", str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env={**TRIAL_ENV, **os.environ},
        start_new_session=True,
    )
    try:
        return keeper.communicate(timeout=seconds + END_SECONDS)[1]
    except subprocess.TimeoutExpired:
        return f"still running {END_SECONDS:g} s after its time limit"
    finally:
        # On SIGTERM, a keeper ends its process tree before itself.
        keeper.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(END_SECONDS)
        keeper.kill()
        keeper.wait()


def ceilings_of(values: Mapping[str, Any]) -> tuple[Ceiling, ...]:
    """Returns the ceilings of a report."""
    return tuple(
        Ceiling(ceiling["name"], ceiling["value"], ceiling["unit"]) for ceiling in values["ceilings"]
    )


def assess(values: Mapping[str, Any], gpus: Sequence[GpuFacts], visible: str | None) -> Iterator[Check]:
    """Yields the checks that follow from a report of the ceilings job.

    Args:
        gpus: The GPUs as NVML reports them.
        visible: CUDA_VISIBLE_DEVICES; None if not set.
    """
    torch, seen = values["torch"], values["gpus"]
    yield nvidia.torch_build(torch, gpus, len(seen), visible)
    driver_cuda = gpus[0].cuda_driver_version if gpus else ""
    for index, device in enumerate(seen):
        yield nvidia.torch_device(index, device, torch, driver_cuda)
    figures = {ceiling.name: ceiling.value for ceiling in ceilings_of(values)}
    yield from _slow_gpus(seen, figures)
    yield _precision((seen or [values["cpu"]])[0]["lacks"])
    yield from _threads(figures)
    yield _compilation(values["compile"])
    for what, state in (("cpu", State.FAIL), ("loader", State.FAIL), ("disk", State.WARN)):
        if problem := values.get(what, {}).get("problem"):
            remedy = "Reinstall torch" if state is State.FAIL else "Check that the home is writable"
            yield Check(what, state, f"measuring it failed: {problem}", remedy)


def _precision(lacks: Mapping[str, str]) -> Check:
    native = ["fp32", *(name for name, choice in _PRECISIONS.items() if choice not in lacks)]
    absent = [f"{name} ({lacks[choice]})" for name, choice in _PRECISIONS.items() if choice in lacks]
    left = f"; left out of searches: {', '.join(absent)}" if absent else ""
    return Check("precision", State.OK, f"{', '.join(native)}{left}")


def _compilation(compilation: Mapping[str, Any]) -> Check:
    if problem := compilation["problem"]:
        late = problem.startswith("not done")
        otherwise = "Run it again (compiled code is kept)" if late else "Fix what the compiler reports"
        remedy = _REMEDIES.get(problem, otherwise)
        text = f"torch.compile cannot be used: {problem}"
        return Check("compile", State.WARN, text, f"{remedy}; until then, set `fix: {{compile.mode: eager}}`")
    cache = f" ({compilation['cache']} cache)" if compilation["cache"] else ""
    return Check(
        "compile", State.OK, f"a small network's step was compiled in {compilation['seconds']:.3g} s{cache}"
    )


def _threads(figures: Mapping[str, float]) -> Iterator[Check]:
    """Yields a warning if several threads compute no faster than one."""
    one, every = figures.get("cpu.matmul_fp32_one_thread"), figures.get("cpu.matmul_fp32")
    if one and every and every < SPEEDUP * one:
        remedy = "Something else uses the cores (see `top`), or fewer are usable: timings will be noisy"
        text = f"all threads together are {every / one:.2g}x as fast as one"
        yield Check("threads", State.WARN, text, remedy)


def _slow_gpus(seen: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> Iterator[Check]:
    """Yields a warning for each GPU that is slower than others of its model."""
    rates = [figures.get(f"cuda:{index}.matmul_fp32") for index in range(len(seen))]
    for index, device in enumerate(seen):
        peers = [r for r, other in zip(rates, seen, strict=True) if r and other["name"] == device["name"]]
        rate = rates[index]
        if rate and rate < BEHIND * max(peers):
            remedy = (
                "Check its clocks and heat (`nvidia-smi -q -d PERFORMANCE`), or exclude it (`execution.gpus`)"
            )
            text = f"runs at {rate / max(peers):.0%} of the speed of the fastest {device['name']} here"
            yield Check(f"cuda:{index}", State.WARN, text, remedy)
