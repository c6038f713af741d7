"""What comes before the first trial: what the device can do, the prepared data, the space cut to both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode
from sweeper.core.errors import EnvironmentStopError, UserError
from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, Job, MeasurePlan
from sweeper.core.machine import cpu_name, too_large
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Outcome, Report
from sweeper.spec import CategoricalParameter, Parameter, SweepSpec
from sweeper.sweep.book import MIN_STEPS_OF_LARGEST
from sweeper.sweep.runner import Slot
from sweeper.telemetry.nvml import gpu_names

NO_WINDOWS = MeasurePlan(repeats=0)
NO_DATA: Mapping[str, Any] = {"notes": (), "synthetic": False}
"""What is known of the data of a script: it sees to that itself."""
COUNT = "device.count"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Machine:
    """What the probe found.

    Attributes:
        slots: One per device (or per as many as one trial may take), each with its own share of the
            cores.
        lacks: `field=value` -> why this device cannot take it.
        canary_ms: Time of the canary on the machine at its quietest; 0 where unknown.
    """

    devices: tuple[DeviceInfo, ...]
    usable_cpus: int
    lacks: Mapping[str, str]
    slots: tuple[Slot, ...]
    canary_ms: float = 0.0

    @property
    def line(self) -> str:
        """The device in one line."""
        first = self.devices[0]
        memory = f", {first.memory_gib:g} GiB" if first.memory_gib else ""
        count = f"{len(self.slots)} x " if len(self.slots) > 1 else ""
        return f"{count}{first.name}{memory}"


def device_model(gpus: Any = "all") -> str:
    """Returns the model of the device trials will run on, known without torch.

    Args:
        gpus: `execution.gpus`; 0 leaves GPUs alone.
    """
    names = gpu_names() if gpus != 0 else []
    first = gpus[0] if isinstance(gpus, list | tuple) and isinstance(gpus[0], int) else 0
    return names[min(first, len(names) - 1)] if names else cpu_name()


def probe_job(spec: SweepSpec) -> Job:
    """Returns the job that asks what the devices can do."""
    device = "cpu" if spec.execution.gpus == 0 else "auto"
    return Job(uid="probe", runner=PROBE_RUNNER, device=device, plan=NO_WINDOWS, timeout_seconds=120)


def prepare_job(spec: SweepSpec, prepared: Path, paths: Sequence[str]) -> Job:
    """Returns the job that prepares the data."""
    return Job(
        uid="prepare",
        runner=PREPARE_RUNNER,
        pipeline=spec.pipeline,
        import_paths=tuple(paths),
        data=spec.to_dict()["data"],
        prepared=str(prepared),
        plan=NO_WINDOWS,
        timeout_seconds=3600,
    )


def report_of(outcome: Outcome | Report, doing: str) -> Mapping[str, Any]:
    """Returns what a set-up job reported.

    Raises:
        UserError: The user's data or code broke it; the message is one line.
        EnvironmentStopError: Something else did.
    """
    if isinstance(outcome, Report):
        return outcome.values
    assert isinstance(outcome, Failure)
    if outcome.kind == FailureKind.USER_ERROR:
        raise UserError(outcome.message)
    raise EnvironmentStopError(
        f"{doing} failed ({outcome.kind}): {outcome.message}. {outcome.last_words}".strip()
    )


def machine_of(values: Mapping[str, Any], spec: SweepSpec) -> Machine:
    """Returns the machine the probe reported, its GPUs picked as `execution.gpus` says.

    Raises:
        UserError: A GPU was asked for that is not there.
    """
    devices = [decode(DeviceInfo, each) for each in values["devices"]]
    if devices[0].kind == "cuda":
        devices = _picked(devices, spec.execution.gpus)
    elif spec.execution.gpus not in ("all", 0):
        raise UserError(
            f"`execution.gpus` needs a GPU, but got {spec.execution.gpus!r} where none can be used. "
            "`--device cpu` runs on the CPU."
        )
    together = min(_asked_together(spec), len(devices))
    names = [
        ",".join(each.uuid or "cpu" for each in devices[first : first + together])
        for first in range(0, len(devices) - together + 1, together)
    ]
    return Machine(
        devices=tuple(devices),
        usable_cpus=values["usable_cpus"],
        lacks=values["lacks"],
        slots=tuple(Slot(n, c) for n, c in zip(names, _shares(len(names)), strict=True)),
        canary_ms=values.get("canary_ms", 0.0),
    )


def _asked_together(spec: SweepSpec) -> int:
    """Returns the most devices that one trial may ask for: the size of a slot."""
    counts = [config.device.count for config in spec.references()]
    if COUNT in spec.space:
        counts.append(_range(spec.space[COUNT])[1])
    return max([*counts, int(spec.fix.get(COUNT) or 1)])


def _picked(devices: list[DeviceInfo], wanted: Any) -> list[DeviceInfo]:
    if wanted == "all":
        return devices
    chosen = list(range(wanted)) if isinstance(wanted, int) else wanted
    found = []
    for each in chosen:
        match = [d for i, d in enumerate(devices) if each == i or (isinstance(each, str) and each in d.uuid)]
        if not match:
            raise UserError(
                f"`execution.gpus` must name GPUs of this machine, but got {each!r}; it has {len(devices)}."
            )
        found += match[:1]
    return found or devices[:1]


def _shares(count: int) -> list[tuple[int, ...]]:
    """Returns the cores of each slot; a single one is not bound."""
    if count == 1:
        return [()]
    cores = sorted(os.sched_getaffinity(0))
    size = max(1, len(cores) // count)
    return [tuple(cores[i * size : (i + 1) * size] or cores[-size:]) for i in range(count)]


def restricted(
    spec: SweepSpec, machine: Machine, data: Mapping[str, Any] | None = None
) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` less what this device cannot do, and a line for each thing that left the space.

    Args:
        data: What the prepare job reported of the data: its `bytes`, and whether it is a `source`.
    """
    lines = []
    # What a script makes of its parameters is its own matter.
    lacks = {} if spec.command else dict(machine.lacks)
    if why := not_resident(data or {}, spec, machine):
        lacks["loader.kind=resident"] = why
        if "loader.kind" not in spec.space and "loader.kind" not in spec.fix:
            spec = spec.model_copy(update={"fix": {**spec.fix, "loader.kind": "stream"}})
            lines.append(f"loader.kind: stream, unless a trial says otherwise ({why}).")
    for name, parameter in spec.space.items():
        if isinstance(parameter, CategoricalParameter):
            gone = [c for c in parameter.choices if f"{name}={c}" in lacks]
            if gone and len(gone) < len(parameter.choices):
                spec = spec.without({name: gone})
                why = "; ".join(dict.fromkeys(lacks[f"{name}={c}"] for c in gone))
                lines.append(f"{name}: {', '.join(map(_shown, gone))} left the space here ({why}).")
    if not spec.command and (why := _beyond_production(spec, machine)) and _may_be_resident(spec):
        lines.append(f"loader.kind: resident is measured where it is written, but cannot win ({why}).")
    gpus = sum(each.kind == "cuda" for each in machine.devices)
    limits = {
        "loader.num_workers": (machine.usable_cpus, "usable cores"),
        "device.cpu_threads": (machine.usable_cpus, "usable cores"),
        COUNT: (gpus, "GPUs"),
    }
    for name, (limit, what) in limits.items():
        if name in spec.space:
            least, most = _range(spec.space[name])
            high = max(limit, least)
            if most > high:
                spec = spec.clipped(name, high)
                lines.append(f"{name}: at most {high} here ({limit} {what}).")
    return spec, lines


def with_enough_steps(spec: SweepSpec, samples: int) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` with no batch so large that `samples` make too few steps, and a line where one was.

    Args:
        samples: Training samples of the quality pass.
    """
    # How long a script trains is its own matter.
    if "batch_size" not in spec.space or spec.command:
        return spec, []
    high = max(samples // MIN_STEPS_OF_LARGEST, _range(spec.space["batch_size"])[0])
    clipped = spec.clipped("batch_size", high)
    if clipped == spec:
        return spec, []
    line = (
        f"batch_size: at most {high} here, so that the loss after {samples:,} samples "
        f"rests on {MIN_STEPS_OF_LARGEST} steps (measure.quality_samples)."
    )
    return clipped, [line]


def _range(parameter: Parameter) -> tuple[int, int]:
    """Returns the least and the largest value of a whole number."""
    if isinstance(parameter, CategoricalParameter):
        numbers = [int(choice) for choice in parameter.choices if choice is not None]
        return min(numbers), max(numbers)
    return int(parameter.low), int(parameter.high)


def _may_be_resident(spec: SweepSpec) -> bool:
    """Returns whether some trial has its data on the device."""
    kinds = spec.space.get("loader.kind")
    searched = isinstance(kinds, CategoricalParameter) and "resident" in kinds.choices
    searched |= spec.fix.get("loader.kind") == "resident"
    return searched or any(config.loader.kind == "resident" for config in spec.references()[1:])


def not_resident(data: Mapping[str, Any], spec: SweepSpec, machine: Machine) -> str:
    """Returns why the data here, or production's, cannot lie on the device; empty where it can."""
    if data.get("source"):
        return "the pipeline reads its samples from a Source"
    held, room = data.get("bytes", 0) / GIB, min(each.memory_gib for each in machine.devices)
    return too_large("the data", held, room) or _beyond_production(spec, machine)


def _beyond_production(spec: SweepSpec, machine: Machine) -> str:
    """Returns why production's data cannot lie on one of the devices; empty where it can."""
    if spec.production is None:
        return ""
    return next(filter(None, map(spec.production.too_large_for, machine.devices)), "")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
