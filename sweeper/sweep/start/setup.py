"""Prepares a sweep: probes the machine, prepares the data, and restricts the space to both."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sweeper.core.codec import decode, encode
from sweeper.core.config import Scalar
from sweeper.core.job import ANYWHERE, PROBE_RUNNER, Job, MeasurePlan
from sweeper.core.launchers import traits as launcher_traits
from sweeper.core.loaders import RESIDENT, STREAM, traits, why_too_large
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Outcome, Report
from sweeper.core.units import GIB
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.launch.cluster import MAX_WORKERS
from sweeper.schema import CategoricalParameter, SweepSpec
from sweeper.schema.cluster import BatchJob
from sweeper.schema.enough_steps import whole_range
from sweeper.schema.sections import ExecutionOptions
from sweeper.sweep.job_runner import Slot
from sweeper.sweep.start.gpu_memory import uuids_of
from sweeper.system.cpu import cpu_name, usable_cpus
from sweeper.system.cpu_shares import shares
from sweeper.telemetry.gpu_advice import Build, cuda_remedy, first_sentence, gpu_lines, why_unused
from sweeper.telemetry.nvml.devices import awake, cores_near, describe_gpus, full_uuid, gpu_names, gpu_uuids
from sweeper.trainer.timing.conditions import CANARIES, canary_ms

NO_WINDOWS = MeasurePlan(repeats=0)
NO_DATA: Mapping[str, Any] = {"notes": (), "synthetic": False}
"""Report on the data of a script, which loads its data itself."""
COUNT = "device.count"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as the probe found it.

    Attributes:
        usable_cpus: Number of cores that one trial may use: all, or a slot's share.
        slots: One slot per device (or per group of devices for one trial; `execution.slots` on a CPU),
            each with a separate share of the cores.
        lacks: Values that this device cannot take, as `field=value`, with the reason.
        canary_ms: Time of the canary on the machine at its quietest, in milliseconds; 0 if unknown.
        cluster: Name of its cluster; empty for this machine.
        left_out: Names of its GPUs that are not used, since they are of another model.
        notes: Lines about the faults of its GPUs.
    """

    devices: tuple[DeviceInfo, ...]
    usable_cpus: int
    lacks: Mapping[str, str]
    slots: tuple[Slot, ...]
    canary_ms: float = 0.0
    cluster: str = ""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The device in one line."""
        first = self.devices[0]
        memory = f", {first.memory_gib:g} GiB" if first.memory_gib else ""
        slots, cores = len(self.slots), self.usable_cpus
        if self.cluster:
            return f"{first.name}{memory} ({self.cluster})"
        if slots > 1 and first.kind == "cpu":
            return f"{first.name}, in {slots} slots of {cores} core{'s' if cores != 1 else ''} each"
        count = f"{slots} x " if slots > 1 else ""
        return f"{count}{first.name}{memory}"


def device_model(execution: ExecutionOptions) -> str:
    """Returns the model of the device that trials will run on, without importing torch.

    For a cluster it is the launcher's name, since the workers' devices are unknown until the first
    worker starts.
    """
    if execution.is_remote:
        return execution.launcher
    gpus = execution.gpus
    names = gpu_names() if gpus != 0 else []
    first = gpus[0] if isinstance(gpus, list | tuple) else 0
    if isinstance(first, str):
        first = next((i for i, uuid in enumerate(gpu_uuids()) if first in uuid), 0)
    return names[min(first, len(names) - 1)] if names else cpu_name()


def probe_job(spec: SweepSpec) -> Job:
    """Returns the job that probes the devices."""
    device = "cpu" if spec.execution.gpus == 0 else "auto"
    return Job(uid="probe", runner=PROBE_RUNNER, device=device, plan=NO_WINDOWS, timeout_seconds=120)


def values_without_torch(spec: SweepSpec) -> Mapping[str, Any]:
    """Returns what a probe would report, as the driver says it; a script brings its own torch.

    Raises:
        UserError: The sweep trains with sweeper's own torch, which is not installed.
    """
    if spec.traits.uses_own_torch:
        raise UserError(
            "a pipeline needs the whole of sweeper, but only its core is installed."
            " Install it: `pip install sweeper-torch`."
        )
    host_gib = round(psutil.virtual_memory().total / GIB, 2)
    memory = {gpu.uuid: gpu.memory_gib for gpu in describe_gpus()}
    uuids = gpu_uuids() if spec.execution.gpus != 0 else []
    gpus = [
        DeviceInfo(
            kind="cuda", name=name, uuid=uuid, memory_gib=memory.get(uuid, 0.0), host_memory_gib=host_gib
        )
        for name, uuid in zip(gpu_names(), uuids, strict=False)
    ]
    cpu = DeviceInfo(kind="cpu", name=cpu_name(), host_memory_gib=host_gib)
    canary = min(canary_ms() for _ in range(CANARIES))
    devices = encode(gpus or [cpu])
    return {"devices": devices, "usable_cpus": usable_cpus(), "lacks": {}, "canary_ms": canary}


def report_of(
    outcome: Outcome | Report, doing: str, *, elsewhere: bool = False, log: Path | None = None
) -> Mapping[str, Any]:
    """Returns the values that a set-up job reported.

    Args:
        doing: The job's work in words, for the message.
        elsewhere: Whether the job ran on a worker, which may lack what this machine has.
        log: The job's output, which the message names if it has a traceback.

    Raises:
        UserError: The job failed because of the user's data or code; the message is one line.
        EnvironmentStopError: The job failed for another reason.
    """
    if isinstance(outcome, Report):
        return outcome.values
    assert isinstance(outcome, Failure)
    where = f"The full traceback is in {log}." if log is not None and _has_traceback(log) else ""
    if outcome.kind == FailureKind.USER_ERROR:
        remedy = "It ran on a worker, which needs the Python packages and data of this machine."
        rest = " ".join(sentence for sentence in (remedy if elsewhere else "", where) if sentence)
        raise UserError(f"{outcome.message.rstrip('.')}. {rest}" if rest else outcome.message)
    raise EnvironmentStopError(
        f"{doing} failed ({outcome.kind}): {outcome.message}. {where or outcome.last_words}".strip()
    )


def probe_report(outcome: Outcome | Report, *, elsewhere: bool = False) -> Mapping[str, Any]:
    """Returns the values that a probe reported.

    Raises:
        EnvironmentStopError: It failed, such as on a GPU that torch sees and cannot use.
    """
    if isinstance(outcome, Failure) and not elsewhere and re.search("CUDA|NVIDIA", outcome.message):
        driver_cuda = next((gpu.cuda_driver_version for gpu in describe_gpus()), "")
        raise EnvironmentStopError(
            f"torch must be able to use the GPU that it sees, but {first_sentence(outcome.message)}. "
            f"{cuda_remedy(outcome.message, driver_cuda)}; `--device cpu` runs on the CPU."
        )
    return report_of(outcome, "probing the device", elsewhere=elsewhere)


def devices_of(values: Mapping[str, Any]) -> list[DeviceInfo]:
    """Returns the devices that a probe of this machine found, named for CUDA_VISIBLE_DEVICES.

    CUDA does not distinguish a GPU's UUID from a MIG instance's, but NVML does. Without NVML, all count as
    whole GPUs.
    """
    devices = [decode(DeviceInfo, device) for device in values["devices"]]
    with awake([device.uuid for device in devices if device.uuid]):
        return [
            dataclasses.replace(device, uuid=device.uuid and full_uuid(device.uuid)) for device in devices
        ]


def build_of(values: Mapping[str, Any]) -> Build | None:
    """Returns the build of torch that a probe ran with; None if it did not report it."""
    versions = values.get("versions", {})
    return Build(versions["torch"], versions.get("cuda", "")) if "torch" in versions else None


def _has_traceback(log: Path) -> bool:
    return log.exists() and b"Traceback (most recent call last)" in log.read_bytes()


def machine_of(values: Mapping[str, Any], spec: SweepSpec) -> Machine:
    """Returns the machine that the probe reported, with the GPUs that `execution.gpus` picks.

    Raises:
        UserError: The machine lacks the requested GPUs or slots.
    """
    if spec.execution.is_remote:
        return _machine_elsewhere([decode(DeviceInfo, device) for device in values["devices"]], values, spec)
    devices = devices_of(values)
    left_out: list[DeviceInfo] = []
    num_slots, cores = spec.execution.slots, values["usable_cpus"]
    if devices[0].kind == "cuda":
        if num_slots > 1:
            raise UserError(
                f"`execution.slots` is for machines without GPUs, but got {num_slots} where each GPU is a"
                " slot. Leave it out: `execution.gpus` picks the GPUs, and `gpus: 0` runs on the CPU."
            )
        devices, left_out = _of_one_model(_pick(devices, spec.execution.gpus), spec.execution.gpus)
    elif spec.execution.gpus not in ("all", 0):
        why = why_unused(build_of(values))
        raise UserError(
            f"`execution.gpus` needs a GPU, but got {spec.execution.gpus!r} where none can be used"
            f"{f': {why};' if why else '.'} `--device cpu` runs on the CPU."
        )
    elif num_slots > cores:
        raise UserError(
            f"`execution.slots` needs a usable core per slot, but got {num_slots} slots and {cores}"
            f" core{'s' if cores != 1 else ''}. Ask for {cores} at most."
        )
    together = min(devices_of_a_trial(spec), len(devices))
    names = [
        ",".join(device.uuid or "cpu" for device in devices[first : first + together])
        for first in range(0, len(devices) - together + 1, together)
    ] * num_slots
    # A single slot may use all cores.
    uuids, on_gpu = [device.uuid for device in devices], devices[0].kind == "cuda"
    with awake(uuids_of(names)):
        cpus = shares([_nearby_cores(name) for name in names]) if len(names) > 1 else [()]
        # `gpus: 0` says that the CPU is meant.
        lines = gpu_lines(build_of(values), on_gpu=on_gpu, only=uuids) if spec.execution.gpus != 0 else []
    return Machine(
        devices=tuple(devices),
        usable_cpus=len(cpus[0]) or cores,
        lacks=values["lacks"],
        slots=tuple(map(Slot, names, cpus)),
        canary_ms=values.get("canary_ms", 0.0),
        left_out=tuple(device.name for device in left_out),
        notes=tuple(lines),
    )


def _machine_elsewhere(devices: list[DeviceInfo], values: Mapping[str, Any], spec: SweepSpec) -> Machine:
    """Returns a cluster as its first worker reports it; the other workers have the same device."""
    chosen = spec.execution
    row = launcher_traits(chosen.launcher)
    on_gpu = devices[0].kind == "cuda"
    if not on_gpu and chosen.gpus != 0 and (row.is_batch or chosen.gpus != "all"):
        raise UserError(
            f"`execution.gpus` needs a GPU on each worker, but got {chosen.gpus!r} where the first worker"
            " has none. `gpus: 0` with `slots` runs on CPUs."
        )
    return Machine(
        devices=tuple(devices),
        usable_cpus=values["usable_cpus"],
        lacks=values["lacks"],
        slots=(Slot(ANYWHERE if on_gpu else "cpu"),)
        * (chosen.at_once(devices_of_a_trial(spec)) or MAX_WORKERS),
        canary_ms=values.get("canary_ms", 0.0),
        cluster=row.cluster or chosen.launcher,
    )


def unseen_machine(spec: SweepSpec) -> Machine:
    """Returns a cluster about which only the job request is known."""
    chosen = spec.execution
    kind = "cpu" if chosen.gpus == 0 else "cuda"
    # A job asks for the most GPUs that a trial may take.
    together = devices_of_a_trial(spec)
    return Machine(
        devices=(DeviceInfo(kind=kind, name=f"{'CPUs' if kind == 'cpu' else 'GPUs'} not seen yet"),)
        * together,
        usable_cpus=(chosen.job or BatchJob()).cores,
        lacks={},
        slots=(Slot(ANYWHERE),) * (chosen.at_once(together) or 1),
        cluster=launcher_traits(chosen.launcher).cluster or chosen.launcher,
    )


def devices_of_a_trial(spec: SweepSpec) -> int:
    """Returns the most devices that one trial may need, which is the size of a slot or of a cluster's job."""
    counts = [config.device.count for config in spec.references()]
    if COUNT in spec.space:
        counts.append(whole_range(spec.space[COUNT])[1])
    return max([*counts, int(spec.fix.get(COUNT) or 1)])


def _pick(devices: list[DeviceInfo], wanted: Any) -> list[DeviceInfo]:
    if wanted == "all":
        return devices
    chosen = list(range(wanted)) if isinstance(wanted, int) else wanted
    picks = []
    for gpu in chosen:
        match = [d for i, d in enumerate(devices) if gpu == i or (isinstance(gpu, str) and gpu in d.uuid)]
        if not match:
            raise UserError(
                f"`execution.gpus` must name GPUs of this machine, but got {gpu!r}; it has {len(devices)}."
            )
        if match[0] in picks:
            raise UserError(f"`execution.gpus` must name each GPU once, but {gpu!r} is named before.")
        picks += match[:1]
    return picks or devices[:1]


def _of_one_model(devices: list[DeviceInfo], wanted: Any) -> tuple[list[DeviceInfo], list[DeviceInfo]]:
    """Returns the GPUs of the first one's model, and the others: speeds of two models cannot be compared.

    Raises:
        UserError: The user picked GPUs of several models.
    """
    model = devices[0].name
    others = [device for device in devices if device.name != model]
    if others and wanted != "all":
        raise UserError(
            "`execution.gpus` must name GPUs of one model, since the trials of a sweep are compared, but got"
            f" {', '.join(device.name for device in devices)}. Name those of one model by their indices."
        )
    return [device for device in devices if device.name == model], others


def _nearby_cores(names: str) -> frozenset[int]:
    """Returns the cores near the GPUs of a slot; empty if unknown, and for the CPU."""
    near = [cores_near(name) for name in names.split(",") if name != "cpu"]
    return frozenset().union(*near) if all(near) else frozenset()


def restrict(
    spec: SweepSpec, machine: Machine, data: Mapping[str, Any] | None = None
) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` without what this device cannot do, and a line for each removal.

    Args:
        data: The prepare job's report on the data: its `bytes`, and whether it is a `source`.
    """
    lines = list(machine.notes)
    if machine.left_out:
        lines.append(
            f"execution.gpus: not using {', '.join(machine.left_out)}, since the trials of a sweep need GPUs"
            f" of one model (here {machine.devices[0].name})."
        )
    # The meaning of a script's parameters is unknown.
    lacks = dict(machine.lacks) if spec.traits.names_are_fields else {}
    if why := why_not_resident(data or {}, spec, machine):
        lacks |= {f"loader.kind={kind}": why for kind in _kinds_searched(spec) if traits(kind).is_resident}
        if "loader.kind" not in spec.space and "loader.kind" not in spec.fix:
            spec = spec.model_copy(update={"fix": {**spec.fix, "loader.kind": STREAM}})
            lines.append(f"loader.kind: {STREAM}, unless a trial says otherwise ({why}).")
    spec, removed = _without_choices(spec, lacks)
    lines += removed
    if spec.traits.names_are_fields and (why := _beyond_production(spec, machine)) and _may_be_resident(spec):
        lines.append(f"loader.kind: {RESIDENT} is measured where configured, but cannot win ({why}).")
    spec, clipped = _clip(spec, machine)
    return spec, [*lines, *clipped]


def _without_choices(spec: SweepSpec, lacks: Mapping[str, str]) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` without some choices, and a line for each parameter that loses some, but not all.

    Args:
        lacks: Why a choice is left out, by `name=choice`.
    """
    lines = []
    for name, parameter in spec.space.items():
        choices = parameter.choices if isinstance(parameter, CategoricalParameter) else ()
        gone = [choice for choice in choices if f"{name}={choice}" in lacks]
        if gone and len(gone) < len(choices):
            spec = spec.without({name: gone})
            lines.append(left_line(name, {choice: lacks[f"{name}={choice}"] for choice in gone}))
    return spec, lines


def _clip(spec: SweepSpec, machine: Machine) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` with ranges that end at what the machine has, and a line for each that was longer."""
    lines = []
    gpus = sum(device.kind == "cuda" for device in machine.devices)
    limits = {
        "loader.num_workers": (machine.usable_cpus, "usable cores"),
        "device.cpu_threads": (machine.usable_cpus, "usable cores"),
        COUNT: (gpus, "GPUs"),
    }
    for name, (limit, what) in limits.items():
        if name not in spec.space:
            continue
        low, top = whole_range(spec.space[name])
        high = max(limit, low)
        if top > high:
            spec = spec.clip(name, high)
            lines.append(f"{name}: at most {high} here ({limit} {what}).")
    return spec, lines


def _may_be_resident(spec: SweepSpec) -> bool:
    """Returns whether some trial has its data on the device."""
    kinds = [*_kinds_searched(spec), *(config.loader.kind for config in spec.references()[1:])]
    if "loader.kind" in spec.fix:
        kinds.append(str(spec.fix["loader.kind"]))
    return any(traits(kind).is_resident for kind in kinds)


def _kinds_searched(spec: SweepSpec) -> list[str]:
    kinds = spec.space.get("loader.kind")
    return list(map(str, kinds.choices)) if isinstance(kinds, CategoricalParameter) else []


def why_not_resident(data: Mapping[str, Any], spec: SweepSpec, machine: Machine) -> str:
    """Returns why the data of the sweep or of production does not fit on the device; empty if both do."""
    if data.get("source"):
        return "the pipeline reads its samples from a Source"
    held, room = data.get("bytes", 0) / GIB, min(device.memory_gib for device in machine.devices)
    return why_too_large("the data", held, room) or _beyond_production(spec, machine)


def _beyond_production(spec: SweepSpec, machine: Machine) -> str:
    """Returns why the production data does not fit on one of the devices; empty if it does."""
    if spec.production is None:
        return ""
    return next(filter(None, map(spec.production.why_too_large, machine.devices)), "")


def left_line(name: str, gone: Mapping[Scalar, str], evidence: str = "") -> str:
    """Returns the line about the choices of a parameter that were removed from the space.

    Args:
        gone: The choices, each with its reason.
        evidence: What shows that they fail or have no effect; empty if there is nothing to add.
    """
    why = "; ".join(dict.fromkeys(gone.values()))
    how = f"{evidence}: " if evidence else ""
    return f"{name}: {', '.join(map(yaml_of, gone))} removed from the space ({how}{why})."


def yaml_of(value: object) -> str:
    """Returns a value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
