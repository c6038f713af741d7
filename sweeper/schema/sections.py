"""Defines the sections around the space: objectives, measuring, search, confirmation, execution."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sweeper.core.launchers import LOCAL, names_with, traits
from sweeper.core.loaders import why_too_large
from sweeper.core.measurement import DeviceInfo
from sweeper.core.progress import LimitedStage
from sweeper.core.quantities import QUANTITIES
from sweeper.core.samplers import AUTO
from sweeper.schema.cluster import BatchJob, Tls
from sweeper.schema.space import FiniteFloat, Section, SparseSection

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
LATEST, NONE = "auto", "off"
"""Values of `search.warm_start`."""


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", value):
        raise ValueError(
            "must be 1 to 128 letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
        )
    return value


def _module(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value, re.ASCII):
        raise ValueError("must be a module's dotted name such as `pipelines.stocks`")
    return value


def _storage(value: str) -> str:
    server = r"(postgresql(\+psycopg2?)?|mysql(\+pymysql)?)://[^\s/?]*/[^\s/?]+(\?\S*)?"
    if value and not re.fullmatch(rf"{server}|sqlite:///\S+", value):
        raise ValueError(
            "must be a database, such as `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`, without its"
            " password, which is read from PGPASSWORD or ~/.pgpass (MySQL: `?read_default_file=~/.my.cnf`)"
        )
    return value


def _datum(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not all(item is None or isinstance(item, bool | int | float | str) for item in values):
        raise ValueError("must be a single value or a list of values")
    return value


def _quality_samples(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or value < 0):
        raise ValueError("must be `auto` or an integer >= 0")
    return value


def _strings(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of strings")
    return tuple(value)


def _gpus(value: Any) -> Any:
    listed = isinstance(value, list) and value and all(type(item) in (int, str) for item in value)
    if value != "all" and (type(value) is not int or value < 0) and not listed:
        raise ValueError("must be `all`, a number of GPUs, or a list of indices or UUIDs")
    return value


def _variables(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of names of environment variables")
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_*?]*", name):
            raise ValueError("must be names such as `AWS_PROFILE`, or globs such as `MYLAB_*`")
    return tuple(value)


Variables = Annotated[tuple[str, ...], BeforeValidator(_variables)]
SweepName = Annotated[str, AfterValidator(_name)]
ModuleName = Annotated[str, AfterValidator(_module)]
Storage = Annotated[str, AfterValidator(_storage)]
Datum = Annotated[Any, BeforeValidator(_datum)]


class Objective(SparseSection):
    """`{maximize: METRIC}` or `{minimize: METRIC}`."""

    maximize: str | None = None
    minimize: str | None = None

    @model_validator(mode="after")
    def _one_direction(self) -> Objective:
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("needs exactly one of `maximize` and `minimize`")
        return self

    @property
    def metric(self) -> str:
        """The metric's name (`sweeper.core.metrics`)."""
        return self.maximize or self.minimize or ""

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """The direction that is better."""
        return "maximize" if self.maximize is not None else "minimize"


def _objectives(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a list of at least one `{maximize: METRIC}` or `{minimize: METRIC}`")
    return tuple(value)


Objectives = Annotated[tuple[Objective, ...], BeforeValidator(_objectives)]


class Constraint(SparseSection):
    """Limits of one metric, absolute or as a multiple of the baseline's value."""

    max: FiniteFloat | None = None
    min: FiniteFloat | None = None
    max_ratio_to_baseline: Positive | None = None
    min_ratio_to_baseline: Positive | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Constraint:
        if not self.model_dump():
            raise ValueError(f"needs at least one of {', '.join(type(self).model_fields)}")
        return self


def _command(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list: the program, then its arguments, each a string")
    return tuple(value)


def _path_below(value: str) -> str:
    parts = PurePosixPath(value).parts
    if not parts or value.startswith(("/", "~")) or ".." in parts or "\0" in value:
        raise ValueError("must be a path below the script's working directory")
    return value


def _patterns(value: Any) -> Any:
    for text in value if isinstance(value, list | tuple) else [value]:
        try:
            pattern = re.compile(text)
        except (re.error, TypeError) as error:
            raise ValueError(f"must be regular expressions ({error})") from None
        unknown = pattern.groupindex.keys() - QUANTITIES.keys()
        if unknown or not pattern.groupindex:
            raise ValueError(f"must have groups named after {', '.join(QUANTITIES)}")
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _paths(value: Any) -> Any:
    paths = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(path, str) and path for path in paths):
        raise ValueError("must be paths of files or folders")
    return paths


Paths = Annotated[tuple[str, ...], BeforeValidator(_paths)]
Command = Annotated[tuple[str, ...], BeforeValidator(_command)]


class FileTemplate(Section):
    """A template in a separate file."""

    template: Annotated[str, Field(min_length=1)]


class ScriptOptions(Section):
    """Options of the script behind `command`, and of measuring its speed (`sweeper.core.script`).

    Attributes:
        files: Files written before the script starts, by path: a text, or `{template: FILE}`.
        env: Additional environment variables of the script.
        changes: Changes that are made to it at run time (`sweeper.script.changes`), such as
            `loader: gathered`.
        unprotected: Files and folders of the user's that the script may write to.
        elsewhere: Whether the command may start work on other machines, or submit jobs.
        samples_per_step: A number, or factors such as `{bs}*{accum}`; the trial's own batch by default.
    """

    files: dict[Annotated[str, AfterValidator(_path_below)], str | FileTemplate] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    changes: dict[str, str] = Field(default_factory=dict)
    workdir: Literal["link", "copy", "here"] = "link"
    unprotected: Paths = ()
    stop: Literal["when_measured", "at_end"] = "when_measured"
    keep: bool = False
    watch: bool = True
    elsewhere: bool = False
    samples_per_step: int | str | None = None
    samples_per_epoch: Positive | None = None
    tokens_per_sample: Positive | None = None
    mlflow: Literal["off", "steps", "epochs"] = "off"
    patterns: Annotated[tuple[str, ...], BeforeValidator(_patterns)] = ()


class Production(Section):
    """The production run that the winner is for.

    Attributes:
        samples: Training samples of the run, over all its epochs.
        data_gib: Size of its prepared data in GiB; null if it is as large as the sweep's.
        price_per_hour: Price of one hour of a GPU, or of a machine without one, in any currency.
    """

    samples: Positive
    data_gib: Positive | None = None
    price_per_hour: Positive | None = None

    def why_too_large(self, device: DeviceInfo) -> str:
        """Returns why its data does not fit on a device; empty if it does or may."""
        return why_too_large("the production data", self.data_gib or 0.0, device.room_gib)


class Measure(Section):
    """Options for measuring a trial.

    Attributes:
        quality_samples: Training samples of the quality pass; 0 skips it, `auto` derives them
            from the baseline.
        reference_cap_seconds: Measuring time after which a reference trial starts no further
            window.
        trace: Whether the baseline and the winner get a profiler trace of some steps at the end.
        cold_cache: Whether each trial reads its data from the disk, as the first epoch of a training does,
            instead of from the kernel's page cache. For pipelines only.
        probes: Import strings of further probes that sample each trial (`sweeper.core.probes`).
    """

    window_seconds: Positive = 3.0
    repeats: Count = 3
    quality_samples: Annotated[int | Literal["auto"], BeforeValidator(_quality_samples)] = "auto"
    warmup_cap_seconds: Positive = 20.0
    reference_cap_seconds: Positive = 60.0
    trace: bool = True
    cold_cache: bool = False
    probes: Annotated[tuple[str, ...], BeforeValidator(_strings)] = ()


class SearchOptions(Section):
    """Options of the search: how it chooses configurations, and when it ends.

    Attributes:
        sampler: A name in `sweeper.core.samplers`, or the import string of a third party's.
        minutes: Limit for the whole sweep, including confirmation; null for none.
        patience: The search ends after this many trials in a row without a better one.
        regret: The search ends once the best of the untried changes is not expected to gain more than this
            share; null turns this off. Only the samplers `auto` and `climb` estimate it.
        memory_headroom: Share of the memory limit that a prediction must leave free for a
            configuration to run.
        warm_start: The earlier sweep of the same training that the search starts from: the latest
            (`auto`), one by its name or its folder, or none (`off`).
    """

    sampler: str = AUTO
    trials: Count = 40
    minutes: Positive | None = 20.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    patience: Count | None = None
    regret: Annotated[float, Field(gt=0, lt=1)] | None = 0.01
    memory_headroom: Annotated[float, Field(ge=0, lt=1)] = 0.0
    warm_start: Annotated[str, Field(min_length=1)] = LATEST


class Confirm(Section):
    """Options of the race between the best and the baseline; 0 rounds skip it.

    Attributes:
        top: Number of candidates that take part.
        rounds: Processes of each candidate that is not clearly slower; more are added while an interval
            is wider than `precision` and time is left.
        precision: Intended half-width of the interval, as a share of the ratio.
        pick: The winner among the configurations of a Pareto front: the `knee`, or the fastest within
            2% of the `lowest_loss`.
        to_loss: Whether baseline and winner train to the baseline's loss, with several seeds; null does
            so only if there is time.
    """

    top: Count = 3
    rounds: Annotated[int, Field(ge=0)] = 4
    precision: Annotated[float, Field(gt=0, lt=1)] = 0.05
    pick: Literal["knee", "lowest_loss"] = "knee"
    to_loss: bool | None = None


START_SECONDS = 120.0
"""Seconds that a job needs in addition to the trial that must fit into its time."""


def _launchers_with(trait: str) -> str:
    """Returns the launchers that have a trait, such as "`launcher: dask` or `ray`"."""
    first, *others = names_with(trait)
    return " or ".join(f"`{name}`" for name in (f"launcher: {first}", *others))


class ExecutionOptions(Section):
    """The place where trials run, and their time limits.

    Attributes:
        launcher: `local`: on this machine; `inline`: in this process, for breakpoints; `slurm`,
            `pbs`, `lsf`, `sge`: jobs of a batch system; `dask`, `ray`: an existing cluster. Any other is
            the import string of a third party's (`sweeper.core.launchers`).
        address: Address of the scheduler (`tcp://host:8786`) for `dask`, or of the head for `ray`;
            without one, `ray` starts a cluster on this machine.
        same_gpu: Whether only devices of the first one's model are used; otherwise each model gets
            a separate sweep.
        gpus: `all` (of the first one's model), a number, or a list of indices, UUIDs or parts of UUIDs; 0
            runs on the CPU.
        slots: Concurrent trials on a machine without GPUs, each on separate cores; a GPU is one
            slot.
        trial_timeout_minutes: Limit for a whole trial.
        stage_timeout_minutes: Limits for a trial's stages by name; other stages have none.
        stall_seconds: A trial without a step for this long, or for 20 times its usual step if that
            is longer, is ended; its log has the stacks. 0 turns this off.
        pass_env: Environment variables that trials get in addition to the usual ones, by name or glob; a
            variable that looks like a secret must be named in full.
    """

    launcher: str = LOCAL
    address: str = ""
    tls: Tls | None = None
    job: BatchJob | None = None
    same_gpu: bool = True
    gpus: Annotated[int | Literal["all"] | list[int | str], BeforeValidator(_gpus)] = "all"
    slots: Count = 1
    isolation: Literal["fork", "exec"] = "fork"
    trial_timeout_minutes: Positive = 10.0
    stage_timeout_minutes: dict[LimitedStage, Positive] = Field(default_factory=dict)
    stall_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    pass_env: Variables = ()

    @property
    def is_remote(self) -> bool:
        """Whether trials run on the workers of a cluster."""
        return traits(self.launcher).is_remote

    def at_once(self, gpus_each: int = 1) -> int | None:
        """Returns how many jobs or trials run at once on a cluster; None for no limit.

        Args:
            gpus_each: GPUs that one trial may take.
        """
        if self.gpus == 0:
            return self.slots
        return max(1, self.gpus // max(1, gpus_each)) if isinstance(self.gpus, int) else None

    @model_validator(mode="after")
    def _fits_the_launcher(self) -> ExecutionOptions:
        row = traits(self.launcher)
        if not row.factory:
            # An unknown launcher cannot be checked.
            return self
        if self.job is not None and not row.is_batch:
            systems = ", ".join(names_with("is_batch"))
            raise ValueError(f"takes `job` only with a batch system as `launcher` ({systems})")
        if self.address and not row.example_address:
            raise ValueError(f"takes `address` only with {_launchers_with('example_address')}")
        if row.needs_address and not self.address:
            raise ValueError(
                f"needs the scheduler's `address: {row.example_address}` with `launcher: {self.launcher}`"
            )
        if self.address and not re.fullmatch(r"([a-z]+://)?[^\s/]+:\d{1,5}", self.address):
            # Ray's `auto` is the cluster that anybody last started on this machine.
            raise ValueError(f"needs a host and a port in `address`, such as `{row.example_address}`")
        if self.address.startswith("tls://") and self.tls is None and row.takes_tls:
            raise ValueError(
                "needs `tls: {ca_file: ..., cert_file: ..., key_file: ...}` with a `tls://` address"
            )
        if self.tls is not None and not row.takes_tls:
            raise ValueError(f"takes `tls` only with {_launchers_with('takes_tls')}")
        if row.is_remote and isinstance(self.gpus, list):
            raise ValueError("needs a number in `gpus` with a cluster, which picks the GPUs itself")
        if row.is_batch and self.gpus == "all":
            raise ValueError(
                "needs the number of GPUs in `gpus` with a batch system, one job each; "
                "with `gpus: 0`, `slots` is the number of jobs"
            )
        if self.slots > 1 and self.gpus not in ("all", 0):
            raise ValueError("takes `slots` only without GPUs (`gpus: 0`): each GPU is one slot")
        if row.is_batch:
            seconds = (self.job or BatchJob()).time_seconds
            if seconds < self.trial_timeout_minutes * 60 + START_SECONDS:
                raise ValueError(
                    "needs a `job.time` of at least `trial_timeout_minutes` "
                    f"({self.trial_timeout_minutes:g}) plus two minutes"
                )
        return self
