"""Defines the outcome of a trial: `Outcome = Measurement | Failure`, with units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One timed stretch of steady training; the device is synchronised at its two edges only.

    Attributes:
        start_s: Monotonic clock at its start, shared by all processes of a machine.
        seconds: Wall time.
        steps: Micro-batches processed by the trainer, or steps of a script's optimizer
            (`sweeper.script.inside.observer`); 0 where a script reports none.
        samples: Training samples that earned throughput (steps skipped by a scaler earn none).
        cpu_seconds: Processor time of the trial's whole process tree.
        involuntary_switches: Number of times that the kernel took the processor from one of the trial's
            threads.
        steal_seconds: Time in which the host gave this machine's cores to others, summed over all cores.
        pressure_seconds: Time in which some process of the machine waited for a core (PSI); None
            where the kernel does not report it.
        load: Processes that wanted a core, averaged over a minute, at the window's end.
        canary_ms: Time of a fixed piece of work, the slower of its runs before and after the window.
            It is the same for all trials on a quiet machine; 0 where the trial's own loader ran at the
            same time.
        helper_cpu_seconds: The part of `cpu_seconds` that loader workers took.
        waited_seconds: Time in which threads of the tree wanted a core and had none; None where
            the kernel does not report it.
        foreign_cpu_seconds: Processor time that others took on the cores this trial may use.
        minor_faults: Pages the kernel had to map and clear for the training process.
        disturbances: What disturbed the window (`sweeper.core.contamination`).
    """

    start_s: float
    seconds: float
    steps: int
    samples: int
    cpu_seconds: float = 0.0
    involuntary_switches: int = 0
    steal_seconds: float = 0.0
    pressure_seconds: float | None = None
    load: float = 0.0
    canary_ms: float = 0.0
    helper_cpu_seconds: float = 0.0
    waited_seconds: float | None = None
    foreign_cpu_seconds: float = 0.0
    minor_faults: int = 0
    disturbances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Mean seconds of one step (`Window.steps`) by phase; the sum is the step's wall time.

    Attributes:
        data_s: Waiting for the batch, or gathering it on the device.
        h2d_s: Copying it to the device.
        host_gap_s: Time that no phase accounts for.
        graph_s: A captured step: gather, forward, backward and optimiser as one launch.
    """

    data_s: float = 0.0
    h2d_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    host_gap_s: float = 0.0
    graph_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Wall seconds of one step."""
        return self.data_s + self.h2d_s + self.compute_s + self.host_gap_s

    @property
    def compute_s(self) -> float:
        """Seconds of forward, backward and optimiser, captured or not."""
        return self.forward_s + self.backward_s + self.optimizer_s + self.graph_s

    @property
    def data_fraction(self) -> float:
        """Share of the step spent on the data path: waiting, gathering, copying."""
        return (self.data_s + self.h2d_s) / self.step_s if self.step_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The parts of a step, each measured separately in short runs after the windows.

    A figure is None if it could not be measured; no verdict that needs it is then given.

    Attributes:
        device_samples_s: Samples per second of steps on one batch that is already on the device.
        loader_samples_s: Samples per second that the loader delivers while nothing trains.
        sample_cpu_s: Processor seconds per sample that the loader takes while nothing trains: reading,
            decoding, collating.
        loader_busy: Share of that time in which the loader's processes run rather than wait.
        half_step_s: Seconds of a step on half of a batch that is already on the device (eager steps only).
        full_step_s: Seconds of a step on the whole batch, alternating with steps on the half.
        blocked_s: Seconds of a step's arithmetic in which the process neither ran nor wanted a
            core: it waited for something else (CPU only).
        busy_s: Seconds of device work in a step that is queued ahead (CUDA only).
        issue_s: Seconds that the host needs to launch a step (CUDA only).
        sync_places: Lines of the user's code that wait for the device in every step (CUDA only).
        fits_device: Whether the training data fits on the device.
        native_bf16: Whether the device computes in bf16 natively.
        usable_cpus: Cores that the trial may use.
        preparation_s: Seconds of a step in which a script changes the batch that its loader returned; part
            of the breakdown's `data_s`.
        lines: For each phase of a script's step, the lines of the user's code that take most of it,
            as `file:line`.
        evaluation_share: Share of a script's time that evaluations take.
        outside: What a script does outside its folder, where trials can interfere: files that it writes,
            hosts that it connects to.
    """

    device_samples_s: float | None = None
    loader_samples_s: float | None = None
    sample_cpu_s: float | None = None
    loader_busy: float | None = None
    half_step_s: float | None = None
    full_step_s: float | None = None
    blocked_s: float | None = None
    busy_s: float | None = None
    issue_s: float | None = None
    sync_places: tuple[str, ...] | None = None
    fits_device: bool | None = None
    native_bf16: bool | None = None
    usable_cpus: int = 1
    preparation_s: float | None = None
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    evaluation_share: float | None = None
    outside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a script has done until it was measured; the parts are disjoint, and their sum is the wall time.

    Attributes:
        startup_s: Seconds until its first step has ended: imports, data, the first batch.
        steps_s: Seconds of `num_steps` further steps.
        pass_starts_s: Seconds from the beginning of a pass over its loader to the first batch, in all of the
            `num_passes` passes after the first.
        evaluations_s: Seconds of evaluations.
        checkpoints_s: Seconds in which `torch.save` wrote `num_checkpoints` files.
        pass_batches: Number of batches in a pass; 0 if that is not known.
    """

    startup_s: float
    steps_s: float
    num_steps: int
    pass_starts_s: float = 0.0
    num_passes: int = 0
    evaluations_s: float = 0.0
    checkpoints_s: float = 0.0
    num_checkpoints: int = 0
    pass_batches: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return self.startup_s + self.steps_s + self.pass_starts_s + self.evaluations_s + self.checkpoints_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The loss after exactly `samples` training samples from the trial's seed.

    Attributes:
        key: `TrialConfig.quality_key` and the sample count; equal keys have equal losses.
        constant_loss: Validation loss of the best constant predictor, where the pipeline knows it.
        best_loss: Best reachable validation loss, where the data is synthetic and it is known.
        curve: Pairs (training samples, validation loss) during the pass, ascending; the last one is
            (`samples`, `val_loss`). Empty if an older version ran the pass.
        of: The split of `val_loss`: `validation`, or `training` if a script reports no other loss.
        metrics: Other metrics the pipeline reports for the validation samples, by its own names.
    """

    key: str
    samples: int
    seconds: float
    train_loss: float
    val_loss: float
    constant_loss: float | None = None
    best_loss: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    of: str = "validation"
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """The device that a trial reports. `uuid` is NVML's; memory is in GiB, 0 where unknown.

    Attributes:
        host_memory_gib: Memory of its machine.
    """

    kind: str
    name: str
    uuid: str = ""
    memory_gib: float = 0.0
    capability: str = ""
    host_memory_gib: float = 0.0

    @property
    def room_gib(self) -> float:
        """Memory for resident data: the device's own, or the host's; 0 where unknown."""
        return self.host_memory_gib if self.kind == "cpu" else self.memory_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Summary of a telemetry series, cut to the measuring windows."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of a trial that completed.

    Attributes:
        throughput: Samples per second: all windows' samples over all windows' seconds.
        step_ms: Mean time of a step: all windows' seconds over all windows' steps. A step is a micro-batch in
            the trainer, and a step of the optimizer in a script. 0 where a script reports no steps.
        epoch_seconds: Time of one pass over `train_samples` at that throughput.
        compile_seconds: First step minus a steady one, where a compile mode was set.
        observed: The settings that a script's training used, as torch reports them.
        effective: The settings that actually ran where they differ from the configuration, by field name: as
            `VALUE: why`, or `without effect: why` or `refused by the device: why` if the default ran.
        gpu_mem_peak_gib: Peak reserved by the allocator; None where there is no GPU.
        host_mem_peak_gib: Peak resident set of the training process.
        diagnosis: The parts of a step, measured separately; None if not requested.
        run: What a script has done until it was measured; None where torch does not report it.
        repeated_windows: Windows that were measured again because they were disturbed.
        is_screened: Whether it was ended after a short window as too slow to catch up with the best.
        reported_by: Who reported a script's speed; empty where the trainer measured it.
        exclusions: The parts of a script's run that the windows leave out, in words.
        telemetry: Summaries by series name, units in the names; absent where not supported.
        telemetry_missing: Why a series is absent or ended early, by series name.
        versions: torch, CUDA and driver versions.
        seconds: Duration of its whole process, by the monotonic clock; 0 where that was not stored.
    """

    throughput: float
    step_ms: float
    epoch_seconds: float
    train_samples: int
    windows: tuple[Window, ...]
    breakdown: Breakdown
    device: DeviceInfo
    startup_seconds: float
    first_step_seconds: float
    warmup_seconds: float
    warmup_steps: int
    compile_seconds: float = 0.0
    compile_cache: str = ""
    steady: bool = True
    skipped_steps: int = 0
    cpu_threads: int = 0
    gpu_mem_peak_gib: float | None = None
    host_mem_peak_gib: float | None = None
    quality: Quality | None = None
    diagnosis: Diagnosis | None = None
    run: RunParts | None = None
    repeated_windows: int = 0
    is_screened: bool = False
    reported_by: str = ""
    exclusions: tuple[str, ...] = ()
    effective: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    telemetry: Mapping[str, Stats] = field(default_factory=dict)
    telemetry_missing: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    finished_at: float = 0.0

    @property
    def trains_on_gpu(self) -> bool:
        """Whether it trained on a GPU: as torch was seen to, or else as NVML says."""
        return bool(self.observed.get("device", self.device.kind) == "cuda")

    @property
    def contamination(self) -> tuple[str, ...]:
        """Disturbances of its windows; empty if there were none."""
        return tuple(dict.fromkeys(name for window in self.windows for name in window.disturbances))


class FailureKind(StrEnum):
    """The reason why a trial has no measurement."""

    OOM = "oom"
    OOM_EXPECTED = "oom_expected"
    HOST_OOM = "host_oom"
    SHM = "shm"
    FD_LIMIT = "fd_limit"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    COMPILE_ERROR = "compile_error"
    NON_FINITE = "non_finite"
    AMP_UNSTABLE = "amp_unstable"
    LOADER_WORKER_DIED = "loader_worker_died"
    DATA_TOO_SMALL = "data_too_small"
    UNSUPPORTED = "unsupported"
    IMPLAUSIBLE = "implausible"
    DEVICE_LOST = "device_lost"
    DEVICE_BUSY = "device_busy"
    PREEMPTED = "preempted"
    LOST = "lost"
    NO_RESULT = "no_result"
    DIFFERENT = "trains_differently"
    CRASH = "crash"
    USER_ERROR = "user_error"


class Bottleneck(StrEnum):
    """The limit that keeps a trial from being faster."""

    INPUT = "input-bound"
    TRANSFER = "transfer-bound"
    SYNC = "sync-bound"
    CAPACITY = "memory-capacity-limited"
    LAUNCH = "launch-bound"
    BANDWIDTH = "memory-bandwidth-bound"
    COMPUTE = "compute-bound"
    HOST = "host-bound"
    UNCLEAR = "unclear"
    INCONCLUSIVE = "inconclusive"


INFEASIBLE = frozenset(
    {
        FailureKind.OOM,
        FailureKind.OOM_EXPECTED,
        FailureKind.HOST_OOM,
        FailureKind.SHM,
        FailureKind.FD_LIMIT,
        FailureKind.TIMEOUT,
        FailureKind.STALLED,
        FailureKind.COMPILE_ERROR,
        FailureKind.NON_FINITE,
        FailureKind.AMP_UNSTABLE,
        FailureKind.LOADER_WORKER_DIED,
        FailureKind.DATA_TOO_SMALL,
        FailureKind.UNSUPPORTED,
        FailureKind.IMPLAUSIBLE,
    }
)
"""Failures that are findings about the configuration: the sampler learns from them; they are not retried.
`core.job.RETRIED` has those that the machine causes; a kind may be in neither, and is not in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A trial without a measurement: a value, not an exception.

    Attributes:
        message: One line: what happened.
        stage: How far it got (`start`, `build`, `warmup`, `window`, `quality`).
        detail: The last lines of the trial's own output.
        log: The file with all of that output.
    """

    kind: FailureKind
    message: str
    stage: str = ""
    detail: str = ""
    log: str = ""
    seconds: float = 0.0
    finished_at: float = 0.0

    @property
    def last_words(self) -> str:
        """The last line of the trial's own output; empty if it printed nothing.

        Python's stack dump after a fatal signal does not count as the trial's output.
        """
        lines = [line for line in self.detail.splitlines() if line.strip()]
        dump = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
        return lines[max(0, dump - 1)].strip() if lines else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a job that is not a trial (preparing data, probing the device)."""

    values: Mapping[str, Any]
    finished_at: float = 0.0


Outcome = Measurement | Failure
