"""Holds the whole specification of a sweep and makes the trial configurations that it describes."""

from __future__ import annotations

import graphlib
import math
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from sweeper.core.codec import encode
from sweeper.core.config import OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.script import FOLDER, Script
from sweeper.core.workload import WorkloadTraits, kind_of, traits, usual_kind
from sweeper.errors import UserError
from sweeper.schema import rules
from sweeper.schema.cluster import BatchJob, Tls
from sweeper.schema.mistakes import Mistake, SpecError, first_per_place, from_pydantic, show
from sweeper.schema.secrets import SECRET_REMEDY, secret_in
from sweeper.schema.sections import (
    Command,
    Confirm,
    Constraint,
    Datum,
    ExecutionOptions,
    FileTemplate,
    Measure,
    ModuleName,
    Objective,
    Objectives,
    Production,
    ScriptOptions,
    SearchOptions,
    Storage,
    SweepName,
)
from sweeper.schema.space import (
    AnyScalar,
    Bounds,
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Section,
    holds,
    simplify,
)
from sweeper.system.environment import secrets

References = dict[str, AnyScalar]
"""Values by dotted name of TrialConfig."""


MAX_TEMPLATE_BYTES = 1024 * 1024

CARRIED = (*OPEN_SECTIONS, "optimizer")
"""Sections of the baseline that other trials inherit unless they say otherwise."""


class SweepSpec(Section):
    """A sweep's specification. `from_dict` checks every rule, the constructor only the structure.

    Attributes:
        pipeline: Module with `prepare` and `build`; empty if a `command` runs instead.
        command: Program and arguments of a user's script, with templates for searched values.
        workload: The kind of work (`sweeper.core.workload`): `pipeline`, `script`, `changes`, or the import
            string of another kind's traits. Empty for a pipeline or a script.
        script: Options of the script.
        data: Options of `prepare`, or of a `workload`; a `path` replaces any `source`.
        space: The searched parameters by name.
        fix: Values of names that are not searched; every other field keeps its default.
        baseline: The user's starting point, which may lie outside the space.
        also_try: More configurations to measure as they are.
        constraints: Limits by metric.
        storage: A database that the study is copied to at the end, for optuna-dashboard.
    """

    name: SweepName
    pipeline: ModuleName | Literal[""] = ""
    command: Command = ()
    workload: str = ""
    script: ScriptOptions = ScriptOptions()
    data: dict[str, Datum] = Field(default_factory=dict)
    space: dict[str, Parameter]
    fix: References = Field(default_factory=dict)
    baseline: References
    also_try: Annotated[tuple[References, ...], Field(strict=False)] = ()
    objectives: Objectives = (Objective(maximize="throughput"),)
    constraints: dict[str, Constraint] = Field(default_factory=dict)
    production: Production | None = None
    measure: Measure = Measure()
    search: SearchOptions = SearchOptions()
    confirm: Confirm = Confirm()
    execution: ExecutionOptions = ExecutionOptions()
    storage: Storage = ""

    @field_validator("data")
    @classmethod
    def _path_is_the_source(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if key != "source" or not data.get("path")}

    @classmethod
    def from_dict(cls, value: Any, secrets: Collection[str] = (), *, is_stored: bool = False) -> SweepSpec:
        """Returns the specification in a plain tree (from YAML, JSON or `to_dict`).

        Args:
            secrets: Values that must not be in it; none for a stored specification.
            is_stored: Whether it comes from a sweep's folder, which can be shown even if a part that
                it names is gone.

        Raises:
            SpecError: It breaks rules; the message has one line for each mistake.
        """
        if not isinstance(value, Mapping):
            got = "nothing" if value is None else show(value)
            raise SpecError([Mistake((), f"A specification must be a mapping of keys, but got {got}.")])
        mistakes = list(rules.broken_rules(value, secrets))
        if not is_stored:
            mistakes += rules.broken_rules_of_new_sweeps(value)
        defaults = {"workload": usual_kind(has_command="command" in value)}
        try:
            spec = cls.model_validate({**defaults, **value})
        except ValidationError as error:
            mistakes += from_pydantic(error, value, _MODELS)
        if mistakes:
            raise SpecError(first_per_place(mistakes))
        return spec

    def to_dict(self) -> dict[str, Any]:
        """Returns the specification as JSON values, from which `from_dict` reads an equal one."""
        tree: dict[str, Any] = encode(self.model_dump())
        absent = [name for name in ("pipeline", "command") if not tree[name]]
        absent.append("data" if self.command else "script")
        return {key: value for key, value in tree.items() if key not in absent}

    @property
    def traits(self) -> WorkloadTraits:
        """The traits of what is trained."""
        return traits(kind_of(named=self.workload, has_command=bool(self.command)))

    def script_in(self, folder: Path) -> Script | None:
        """Returns the script of a command with its templates read; None for a pipeline.

        Args:
            folder: The folder that its paths are relative to.

        Raises:
            UserError: A template cannot be read, or names and parameters do not match.
        """
        if not self.command:
            return None
        options = self.script
        for path in options.unprotected:
            if not (folder / path).exists():
                raise UserError(
                    f"`script.unprotected` must name files or folders, but {path!r} does not exist."
                )
        script = Script(
            command=self.command,
            files={path: _text(folder, template) for path, template in options.files.items()},
            env=dict(options.env),
            changes=dict(options.changes),
            folder=str(folder),
            workdir=options.workdir,
            unprotected=options.unprotected,
            stop=options.stop,
            keep=options.keep,
            watch=options.watch,
            samples_per_step=str(options.samples_per_step or ""),
            samples_per_epoch=options.samples_per_epoch or 0.0,
            tokens_per_sample=options.tokens_per_sample or 0.0,
            mlflow=options.mlflow,
            patterns=options.patterns,
        )
        used = set(script.names()) - {FOLDER}
        given = {**self.fix, **self.baseline}
        for name in (*self.space, *given, *(name for entry in self.also_try for name in entry)):
            # What is fixed of it is the number of GPUs that a trial gets.
            if name not in used and not (name == "device.count" and name in self.fix):
                raise UserError(rules.unused_message(name, used))
        for name in used - given.keys():
            raise UserError(f"`{name}` in a template needs a value in `baseline` or `fix`.")
        return script

    def varied_names(self) -> tuple[str, ...]:
        """Returns the names in the space."""
        return tuple(self.space)

    def metrics(self) -> list[str]:
        """Returns the metrics of the objectives, then those of the constraints."""
        return list(dict.fromkeys([*(objective.metric for objective in self.objectives), *self.constraints]))

    def size(self) -> int | None:
        """Returns the number of combinations, ignoring `when`; None if it is infinite."""
        sizes = [parameter.size() for parameter in self.space.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def config(self, params: Mapping[str, Scalar]) -> TrialConfig:
        """Returns the canonical configuration for a value of every parameter.

        A parameter whose `when` does not hold, or names a parameter without effect, takes its field's
        default. `model.*`, `data.*` and `optimizer.*` names that are set only in the baseline are taken from
        it, so that a trial trains as the user does. For a script, whose defaults are unknown, all names are.
        """
        graph = {name: tuple(parameter.when) for name, parameter in self.space.items()}
        active: dict[str, Scalar] = {}
        for name in graphlib.TopologicalSorter(graph).static_order():
            when = self.space[name].when
            if all(
                target in active and holds(condition, active[target]) for target, condition in when.items()
            ):
                active[name] = params[name]
        return self._complete({**self._carried_values(), **self.fix, **active}).canonical()

    def baseline_config(self) -> TrialConfig:
        """Returns the baseline as written, on top of `fix` and the defaults."""
        return self._complete({**self._carried_values(), **self.fix, **self._spell_values(self.baseline)})

    def references(self) -> tuple[TrialConfig, ...]:
        """Returns the baseline and then `also_try`, never clipped to the space.

        An entry of `also_try` takes missing `model.*`, `data.*` and `optimizer.*` names from the
        baseline, so that the two differ only in what the entry says.
        """
        shared = {**self.fix, **self._carried_values()}
        others = (self._complete({**shared, **self._spell_values(entry)}) for entry in self.also_try)
        return (self.baseline_config(), *others)

    def params_of(self, config: TrialConfig) -> dict[str, Scalar] | None:
        """Returns parameters for which `self.config` returns `config`; None if there are none."""
        flat = config.canonical().flatten()
        params: dict[str, Scalar] = {}
        for name, parameter in self.space.items():
            value = flat.get(name)
            params[name] = parameter.like(value) if parameter.contains(value) else parameter.first_value()
        return params if self.config(params).key() == config.key() else None

    def without(self, drop: Mapping[str, Collection[Scalar]]) -> SweepSpec:
        """Returns the specification without some choices of categorical parameters.

        Names that are not in the space are ignored. A parameter with one choice left moves into `fix`, and a
        parameter whose `when` can no longer hold leaves the space.

        Raises:
            UserError: A parameter has no choice left.
        """
        changed: dict[str, Parameter] = {}
        for name in drop.keys() & self.space.keys():
            parameter = self.space[name]
            assert isinstance(parameter, CategoricalParameter), name
            kept = tuple(choice for choice in parameter.choices if not holds(tuple(drop[name]), choice))
            if not kept:
                raise UserError(
                    f"`{name}` needs a choice that can be used here, but got only"
                    f" {', '.join(map(str, parameter.choices))}. Add another to `space`."
                )
            changed[name] = parameter.model_copy(update={"choices": kept})
        return self._restrict(changed)

    def clip(self, name: str, high: float) -> SweepSpec:
        """Returns the specification without values of the numeric parameter `name` above `high`.

        Raises:
            UserError: All its values are above `high`.
        """
        parameter = self.space.get(name)
        if parameter is None:
            return self
        if isinstance(parameter, CategoricalParameter):
            return self.without(
                {name: [choice for choice in parameter.choices if not _is_at_most(choice, high)]}
            )
        if parameter.low > high:
            raise UserError(
                f"`{name}` must not exceed {high:g} here, but got low={parameter.low}. Lower it in `space`."
            )
        limit = math.floor(high) if isinstance(parameter, IntParameter) else high
        return self._restrict({name: parameter.model_copy(update={"high": min(parameter.high, limit)})})

    def _restrict(self, changed: Mapping[str, Parameter]) -> SweepSpec:
        space, fix = simplify({**self.space, **changed}, self.fix)
        return self.model_copy(update={"space": space, "fix": fix})

    def _spell_values(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Returns `values` as the space writes them: 0 and a choice of 0.0 are the same trial."""
        return {
            name: self.space[name].like(value)
            if name in self.space and self.space[name].contains(value)
            else value
            for name, value in values.items()
        }

    def _carried_values(self) -> dict[str, Scalar]:
        """Returns the baseline's values that trials inherit unless they say otherwise."""
        written = self._spell_values(self.baseline)
        if not self.traits.names_are_fields:
            return written
        return {name: value for name, value in written.items() if name.partition(".")[0] in CARRIED}

    def _complete(self, values: Mapping[str, Scalar]) -> TrialConfig:
        """Returns the configuration, whose learning rate is meant for the baseline's global batch."""
        if not self.traits.names_are_fields:
            return TrialConfig(args={}).replace(values)
        config = TrialConfig().replace(values)
        if config.optimizer.lr_rule == "none" or config.optimizer.lr_batch_size:
            return config
        baseline = TrialConfig().replace({**self.fix, **self.baseline})
        return config.replace({"optimizer.lr_batch_size": baseline.global_batch})


def _text(folder: Path, given: str | FileTemplate) -> str:
    if isinstance(given, str):
        return given
    path = folder / given.template
    text = _template(path)
    if kind := secret_in(text, secrets(os.environ)):
        raise UserError(f"`script.files` must hold no secret, but {path} has {kind}. {SECRET_REMEDY}")
    return text


def _template(path: Path) -> str:
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_TEMPLATE_BYTES:
            return path.read_text(encoding="utf-8")
        why: str | None = f"it is not a regular file of at most {MAX_TEMPLATE_BYTES} bytes"
    except OSError as error:
        why = error.strerror
    except ValueError:
        why = "it is not UTF-8"
    raise UserError(f"`script.files` needs a template that can be read, but got {path} ({why}).")


def _is_at_most(value: Scalar, high: float) -> bool:
    return holds(Bounds(max=high), value)


_MODELS: Mapping[str, type[BaseModel]] = {
    "": SweepSpec,
    "objectives": Objective,
    "constraints": Constraint,
    "production": Production,
    "script": ScriptOptions,
    "measure": Measure,
    "search": SearchOptions,
    "confirm": Confirm,
    "execution": ExecutionOptions,
    "job": BatchJob,
    "tls": Tls,
    "int": IntParameter,
    "float": FloatParameter,
    "categorical": CategoricalParameter,
    "when": Bounds,
}
