"""`sweeper check --deep` for a pipeline: prepares its data, steps its baseline and its largest trial.

In between it checks the models, on any machine, for code that would fail on a GPU or wait for one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.job import DRY_STEP_RUNNER, GPU_CHECK_RUNNER, Job
from sweeper.core.loaders import BEST_FIRST
from sweeper.core.measurement import Failure, FailureKind, Report
from sweeper.errors import UserError
from sweeper.schema import CategoricalParameter, Parameter, SweepSpec
from sweeper.schema.data_path import on_this_machine
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.start import setup
from sweeper.sweep.start.bootstrap import Launch, launcher_to_try_out, survey
from sweeper.sweep.workloads import workload_of
from sweeper.system.files import writing

LIMIT_SECONDS = 300.0
PATIENCE_SECONDS = 5.0
"""Longest expected step at which the largest configuration is still run."""
FULL = (FailureKind.OOM, FailureKind.HOST_OOM)

STEP = "the training step"
"""The name of a training step in the findings of `sweeper.trainer.gpu_check`."""

BATCH, KIND, AMP = "batch_size", "loader.kind", "precision.amp"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A configuration that was built and took its steps.

    Attributes:
        values: What the job reported (`sweeper.trainer.dry_step`).
    """

    config: TrialConfig
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCheck:
    """The result of checking a pipeline's specification.

    Attributes:
        spec: The specification without what this device cannot do.
        data: What the prepare job reported.
        removed: A line for each removal from the space.
        not_resident: Why the data cannot be kept on the device; empty if it can.
        on_gpu: Whether peaks are those of a GPU's allocator rather than of a CPU process.
        room_gib: Memory of the device, or of the host for a CPU; 0 if unknown.
        baseline: None if it failed.
        checked: The configurations whose code was checked for a GPU.
        findings: The findings (`sweeper.trainer.gpu_check.GpuFinding`), each line once; `unknown` also
            stands for a configuration that could not be checked.
        largest: The largest configuration; None if it is the baseline, or if the baseline failed.
        stepped: Its steps at ascending batch sizes; the last is at its own size if that was run.
        not_run: Why it was not run at its own batch size; empty if it was.
        failure: The failure that ended the check early; None if there was none.
    """

    spec: SweepSpec
    device: str
    data: Mapping[str, Any]
    removed: tuple[str, ...]
    not_resident: str
    on_gpu: bool
    room_gib: float
    baseline: StepResult | None = None
    checked: tuple[TrialConfig, ...] = ()
    findings: tuple[Mapping[str, str], ...] = ()
    largest: TrialConfig | None = None
    stepped: tuple[StepResult, ...] = ()
    not_run: str = ""
    failure: Failure | None = None

    @property
    def fails_here(self) -> bool:
        """Whether the pipeline would fail on this device; on a CPU, findings for a GPU are only notes."""
        refused = any(finding["effect"] == "fails" for finding in self.findings)
        return self.failure is not None or (self.on_gpu and refused)


def build_out(home: Path, spec: SweepSpec, launch: Launch | None = None) -> PipelineCheck:
    """Prepares a pipeline's data and takes two steps of its baseline and largest configuration.

    The data stays in the state folder's cache for the sweep, and so does the log if preparing it
    fails; nothing else is left on disk.

    Raises:
        UserError: The data cannot be used, or the pipeline refuses a configuration.
        EnvironmentStopError: The device cannot be probed, or the state folder cannot be written.
    """
    prepared = workload_of(spec).prepared_folder(spec, home)
    spec = spec.model_copy(update={"data": on_this_machine(spec.data, lambda line: None)})
    with writing(home):
        prepared.parent.mkdir(parents=True, exist_ok=True)
    with launcher_to_try_out(spec, launch) as (launcher, folder):
        machine, data = survey(launcher, folder, spec, prepared)
        here, removed = setup.restrict(spec, machine, data)
        built = PipelineCheck(
            spec=here,
            device=machine.line,
            data=data,
            removed=tuple(removed),
            not_resident=setup.why_not_resident(data, here, machine),
            on_gpu=machine.devices[0].kind == "cuda",
            room_gib=min(device.room_gib for device in machine.devices),
        )
        cache = str(home.resolve() / "cache" / "compile")
        template = dataclasses.replace(
            workload_of(spec).template(spec, home), prepared=str(prepared), cache=cache
        )
        steps = _Steps(JobRunner(launcher, machine.slots, lambda: None), folder, template)
        baseline = steps.take(here.baseline_config())
        if isinstance(baseline, Failure):
            return dataclasses.replace(built, failure=baseline)
        built = dataclasses.replace(built, baseline=baseline)
        return _add_largest(_check_for_gpu(built, baseline.config, steps), baseline, steps)


class _Steps:
    """Runs the jobs that take steps, each in a fresh process so that their peaks do not mix."""

    def __init__(self, runner: JobRunner, folder: Path, template: Job) -> None:
        self._runner, self._folder, self._template = runner, folder, template
        self._count = 0

    def take(self, config: TrialConfig) -> StepResult | Failure:
        """Takes two steps of `config` on one device.

        Raises:
            UserError: The pipeline refuses the configuration.
        """
        outcome = self._run(DRY_STEP_RUNNER, config)
        if isinstance(outcome, Failure):
            return outcome
        if why := outcome.values.get("refused"):
            raise UserError(why)
        return StepResult(config=config, values=outcome.values)

    def gpu_findings(self, config: TrialConfig) -> list[Mapping[str, str]] | None:
        """Returns findings on code that would fail on a GPU or wait for one; None if `config` is refused."""
        outcome = self._run(GPU_CHECK_RUNNER, config)
        if isinstance(outcome, Failure):
            return [{"effect": "unknown", "part": "", "place": "", "what": outcome.message}]
        return None if "refused" in outcome.values else list(outcome.values["findings"])

    def _run(self, runner: str, config: TrialConfig) -> Report | Failure:
        self._count += 1
        job = dataclasses.replace(
            self._template,
            uid=f"deep-{self._count}",
            runner=runner,
            config=config.replace({"device.count": 1}),
            plan=setup.NO_WINDOWS,
            timeout_seconds=LIMIT_SECONDS,
        )
        outcome = self._runner.run(self._folder / f"steps-{self._count}", job)
        assert isinstance(outcome, Report | Failure)
        return outcome


def _check_for_gpu(built: PipelineCheck, baseline: TrialConfig, steps: _Steps) -> PipelineCheck:
    """Adds GPU findings for the baseline and for each other choice of the space."""
    checked: list[TrialConfig] = []
    findings: dict[tuple[str, str], Mapping[str, str]] = {}
    for config in _kinds(built.spec, baseline):
        config_findings = steps.gpu_findings(config)
        if config_findings is None:
            continue
        if built.on_gpu and config.key() == baseline.key():
            # It has just taken two steps on a GPU.
            config_findings = [
                finding
                for finding in config_findings
                if (finding["effect"], finding["part"]) != ("fails", STEP)
            ]
        checked.append(config)
        for finding in config_findings:
            findings.setdefault((finding["effect"], finding["place"]), finding)
    return dataclasses.replace(built, checked=tuple(checked), findings=tuple(findings.values()))


def _kinds(spec: SweepSpec, baseline: TrialConfig) -> list[TrialConfig]:
    """Returns the baseline, and variants of it that differ in one string or switch of the pipeline.

    Numbers are sizes, which rarely lead to different code.
    """
    configs = {baseline.key(): baseline}
    for name, parameter in spec.space.items():
        if name.partition(".")[0] in OPEN_SECTIONS and isinstance(parameter, CategoricalParameter):
            for value in parameter.choices:
                if isinstance(value, str | bool):
                    config = baseline.replace({name: value})
                    configs.setdefault(config.key(), config)
    return list(configs.values())


def _add_largest(built: PipelineCheck, baseline: StepResult, steps: _Steps) -> PipelineCheck:
    """Adds the largest configuration and its steps, at smaller batches first."""
    config = largest_config(built.spec, baseline.values["train_samples"])
    if config.key() == baseline.config.key():
        return built
    stepped: list[StepResult] = []
    why, failure = "", None
    for size in _sizes(baseline.config.batch_size, config.batch_size):
        if why := _reason_to_stop(stepped, size, built.room_gib):
            break
        outcome = steps.take(config.replace({BATCH: size}))
        if isinstance(outcome, Failure):
            failure = None if outcome.kind in FULL else outcome
            why = f"{outcome.kind} with a batch of {size:,}: {outcome.message}"
            break
        stepped.append(outcome)
    return dataclasses.replace(built, largest=config, stepped=tuple(stepped), not_run=why, failure=failure)


def largest_config(spec: SweepSpec, samples: int) -> TrialConfig:
    """Returns the configuration of the space that is expected to take the most memory.

    It has the largest batch (at most `samples`), the largest numbers of the pipeline (`model.*`,
    `data.*`), full precision and the kind of loader that usually wins; all other values are the
    baseline's, if the space has them.
    """
    params = {name: _largest_value(name, parameter, spec.baseline) for name, parameter in spec.space.items()}
    config = spec.config(params)
    return config.replace({BATCH: min(config.batch_size, samples)})


def _largest_value(name: str, parameter: Parameter, baseline: Mapping[str, Scalar]) -> Scalar:
    if name == BATCH or name.partition(".")[0] in OPEN_SECTIONS:
        if not isinstance(parameter, CategoricalParameter):
            return parameter.high
        numbers = [c for c in parameter.choices if isinstance(c, int | float) and not isinstance(c, bool)]
        if numbers:
            return max(numbers)
    first = {KIND: BEST_FIRST, AMP: ("fp32",)}.get(name, ())
    default = (FIELDS[name].default,) if name in FIELDS else ()
    for value in (*first, baseline.get(name), *default):
        if parameter.contains(value):
            return parameter.like(value)
    return parameter.first_value()


def _sizes(default_size: int, max_size: int) -> list[int]:
    """Returns the batch sizes to run: the usual one, then each four times the last, and finally `max_size`.

    At least two are smaller than `max_size`, if possible, since the estimate needs them.
    """
    sizes = [max(1, min(default_size, max_size // 4))]
    while 4 * sizes[-1] <= max_size // 2:
        sizes.append(4 * sizes[-1])
    if len(sizes) == 1:
        sizes.append(max(1, max_size // 2))
    return sorted({*sizes, max_size})


def _reason_to_stop(stepped: Sequence[StepResult], size: int, room_gib: float) -> str:
    """Returns why a batch of `size` should not run after smaller ones; empty if it should."""
    if not stepped:
        return ""
    last = stepped[-1]
    seconds = last.values["step_seconds"][-1] * size / last.config.batch_size
    if seconds > PATIENCE_SECONDS:
        return f"a step with a batch of {size:,} is expected to take {seconds:.0f} s"
    expected = expected_gib(stepped, size)
    if expected is not None and room_gib and expected > room_gib:
        return f"a batch of {size:,} is not expected to fit"
    return ""


def expected_gib(stepped: Sequence[StepResult], size: int) -> float | None:
    """Returns the expected peak with a batch of `size`, on a line through two smaller ones.

    Returns None if there are fewer than two. The line includes memory that any batch needs, but neither
    the allocator's blocks nor the growing workspaces of libraries.
    """
    points = [(e.config.batch_size, e.values["peak_gib"]) for e in stepped if e.config.batch_size < size]
    if len(points) < 2:
        return None
    (small, low), (middle, high) = points[-2:]
    return float(high + max(0.0, high - low) / (middle - small) * (size - middle))
