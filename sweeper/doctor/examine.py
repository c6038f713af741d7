"""Runs the whole examination: first what can be read, then what has to be measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sweeper.core.measurement import Report
from sweeper.doctor import gpus as nvidia
from sweeper.doctor import host, software, storage
from sweeper.doctor.finding import Ceiling, Check, Examination, Look, State
from sweeper.doctor.measured import assess, ceilings_of, measure
from sweeper.telemetry.nvml import devices
from sweeper.telemetry.nvml.devices import HANGS, GpuFacts


def examine(
    home: Path,
    *,
    driver_problem: Callable[[], str] = devices.driver_problem,
    describe_gpus: Callable[[], Sequence[GpuFacts]] = devices.describe_gpus,
    measured: Callable[[Path | None, int | None], Report | Check] = measure,
) -> Examination:
    """Examines this machine for sweeps in `home`, which need not exist yet. Imports no torch.

    Args:
        driver_problem: Returns why NVML cannot be used; empty if it can.
        describe_gpus: Returns the GPUs as NVML describes them.
        measured: Runs the ceilings job, given the folder for compiled code, if any, and the number of
            GPUs that the job will see; None if it must ask nothing of them.
    """
    began = time.monotonic()
    # Other load is checked first, before ours adds to it.
    checks = [*_make_checks(host.looks()), *software.look()]
    problem = driver_problem()
    gpus = [] if problem else describe_gpus()
    is_present, visible = nvidia.has_gpu(), os.environ.get("CUDA_VISIBLE_DEVICES")
    stored = list(_make_checks(storage.looks(home)))
    can_write = not any(check.state is State.FAIL and check.name in ("home", "disk") for check in stored)
    cache = home.resolve() / "cache" / "compile" / "doctor" if can_write else None
    # CUDA may work where NVML does not, but not where the driver hangs.
    num_gpus = None if problem == HANGS else nvidia.num_visible(len(gpus) or int(is_present), visible)
    outcome = measured(cache, num_gpus)
    num_seen = len(outcome.values["gpus"]) if isinstance(outcome, Report) else None
    checks += [*nvidia.look(problem, gpus, is_present=is_present, num_seen=num_seen), *stored]
    ceilings: tuple[Ceiling, ...] = ()
    devices: dict[str, str] = {}
    if isinstance(outcome, Check):
        checks.append(outcome)
    else:
        values = outcome.values
        checks += assess(values, gpus, visible)
        ceilings = ceilings_of(values)
        devices = {"cpu": values["cpu"]["name"]}
        devices |= {f"cuda:{index}": gpu["name"] for index, gpu in enumerate(values["gpus"])}
    return Examination(
        checks=tuple(checks),
        ceilings=ceilings,
        devices=devices,
        seconds=time.monotonic() - began,
        gpus=tuple(gpus),
        problem=problem,
        values={} if isinstance(outcome, Check) else outcome.values,
    )


def _make_checks(looks: Sequence[Look]) -> Iterator[Check]:
    """Yields the checks; one that raises becomes a warning, and the others still run."""
    for name, look in looks:
        try:
            yield look()
        except Exception as error:
            yield Check(name, State.WARN, f"cannot be checked here: {error}", "Sweeps work without it")
