"""Lists the kinds of work that a sweep trains, and their traits. Imports no implementation.

A specification names its kind as `workload`; without it, it is a pipeline or a script. A new kind is one file
with its implementation (`sweeper.sweep.workloads`) and one row; a third party's kind is the import string of
a row (`workload: module:TRAITS`). All other modules ask the traits. What a record shows of its kind is asked
of its configuration (`TrialConfig.names_are_fields`) and of the functions below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sweeper.core.job import Job
from sweeper.core.measurement import Measurement
from sweeper.core.registry import Registry
from sweeper.core.script import Script

PIPELINE, SCRIPT, CHANGES = "pipeline", "script", "changes"


class SpecLike(Protocol):
    """What the traits ask of a specification (`sweeper.schema.SweepSpec`)."""

    @property
    def pipeline(self) -> str:
        """The module of a pipeline."""

    @property
    def command(self) -> tuple[str, ...]:
        """The words of a script's command line."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The options of what is trained."""

    @property
    def space(self) -> Mapping[str, Any]:
        """The searched parameters."""


def _command_words(spec: SpecLike) -> Sequence[str]:
    """Returns the command line of a script."""
    return spec.command


def _module(spec: SpecLike) -> Sequence[str]:
    return (spec.pipeline,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTraits:
    """One kind of work. The defaults hold for work of which nothing is known but its parameters.

    Attributes:
        implementation: Import string of a `sweeper.sweep.workloads.Workload`; empty for a kind that is
            unknown here.
        exported: Import string of a function `(spec, record) -> OfPipeline | OfScript`
            (`sweeper.exports.document`), which an export of a trial is of; empty if there is none.
        check: Import string of a function `(spec, home, as_json) -> exit code` behind `check --deep`; empty
            if there is nothing more to check.
        words: Function that returns what is trained, for a table: a module, or the words of a command line.
        names_are_fields: Its parameters are the fields of a trial, whose meaning is known: values that its
            reports say were refused leave the space. Otherwise they are the user's own names, and have no
            defaults; values that made no difference leave.
        counts_samples: It trains on as many samples as it is asked to, so that it can train to a loss. A
            script decides for itself when to stop.
        uses_own_torch: It trains with sweeper's own PyTorch; a script brings its own. Its baseline and its
            winner get a profiler trace.
        sees_environment: On this machine, a trial sees the whole environment, as the user's own run does.
        rests: Where the processes of a confirmation can rest while others run: `never`, `between windows`, as
            sweeper's trainer does, or `between steps`, so that they take turns.
        taken_apart: The trials whose steps are taken apart: `all`, only the `references`, whose verdicts are
            worth the seconds, or `none`.
        is_of_changes: Its parameters are changes to a script, which a tune races. Of two equally fast trials,
            that with the fewest is the simpler one; else that with the plainer configuration.
        no_breakdown: Sentence where a breakdown of the step is missing.
    """

    implementation: str
    exported: str = ""
    check: str = ""
    words: Callable[[SpecLike], Sequence[str]] = _command_words
    names_are_fields: bool = False
    counts_samples: bool = False
    uses_own_torch: bool = False
    sees_environment: bool = False
    rests: Literal["never", "between windows", "between steps"] = "never"
    taken_apart: Literal["all", "references", "none"] = "none"
    is_of_changes: bool = False
    no_breakdown: str = "No breakdown of a step is available."

    @property
    def takes_turns(self) -> bool:
        """Whether its processes take turns of some steps."""
        return self.rests == "between steps"

    def takes_apart(self, *, searching: bool) -> bool:
        """Returns whether the steps of a trial are taken apart.

        Args:
            searching: Whether the search asked for it; otherwise it is a reference.
        """
        return self.taken_apart == "all" or (self.taken_apart == "references" and not searching)


_PIPELINE = WorkloadTraits(
    implementation="sweeper.sweep.workloads.pipeline:PIPELINE",
    exported="sweeper.exports.document:of_pipeline",
    check="sweeper.cli.check_pipeline:check_pipeline_deep",
    words=_module,
    names_are_fields=True,
    counts_samples=True,
    uses_own_torch=True,
    rests="between windows",
    taken_apart="all",
)
_SCRIPT = WorkloadTraits(
    implementation="sweeper.sweep.workloads.script:SCRIPT",
    exported="sweeper.exports.document:of_script",
    check="sweeper.cli.check_script:check_script_deep",
    sees_environment=True,
    rests="between steps",
    taken_apart="references",
    no_breakdown="A script's steps are not broken down.",
)
_CHANGES = dataclasses.replace(_SCRIPT, is_of_changes=True)
BUILTIN: Mapping[str, WorkloadTraits] = {PIPELINE: _PIPELINE, SCRIPT: _SCRIPT, CHANGES: _CHANGES}
WORKLOADS: Registry[WorkloadTraits] = Registry("`workload`", WorkloadTraits, BUILTIN)
"""What `workload` can name."""


def usual_kind(*, has_command: bool) -> str:
    """Returns the kind of a specification that names none as its `workload`."""
    return SCRIPT if has_command else PIPELINE


def kind_of(*, named: object, has_command: bool) -> str:
    """Returns the kind of a specification, a key of `BUILTIN` or an import string."""
    if named == CHANGES and not has_command:
        # An earlier version had changes of a pipeline.
        return PIPELINE
    return str(named or usual_kind(has_command=has_command))


def traits(kind: str) -> WorkloadTraits:
    """Returns the traits of a kind of work; neutral ones if it is unknown here."""
    return BUILTIN.get(kind) or WORKLOADS.look_up(kind) or WorkloadTraits(implementation="")


def script_of(job: Job) -> Script:
    """Returns the script of a job that runs one."""
    assert job.script is not None
    return job.script


def needs_prepared_data(job: Job) -> bool:
    """Returns whether a job trains on prepared data, with code that travels along: that of a pipeline."""
    return bool(job.pipeline)


def is_reported(measured: Measurement | None) -> bool:
    """Returns whether a speed was reported by what ran, and not timed by sweeper's trainer.

    What was reported is timed and taken apart in different runs, and its settings have names of the user's
    own.
    """
    return measured is not None and bool(measured.reported_by)
