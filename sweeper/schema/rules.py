"""Checks rules across the sections of a specification: names, values, conditions, goals.

The rules read the plain tree, not the models, so that a broken section does not hide mistakes in another.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar, TrialConfig, field_of, is_known
from sweeper.core.launchers import LAUNCHERS
from sweeper.core.metrics import OBJECTIVES, metric_row
from sweeper.core.probes import THIRD_PARTY_PROBES
from sweeper.core.registry import Registry
from sweeper.core.samplers import AUTO, CLIMB, SAMPLERS
from sweeper.core.script import FOLDER
from sweeper.core.template import names_in
from sweeper.core.workload import BUILTIN, PIPELINE, SCRIPT, WORKLOADS, WorkloadTraits, kind_of, traits
from sweeper.core.workload import CHANGES as OF_CHANGES
from sweeper.errors import UserError, did_you_mean
from sweeper.schema.mistakes import Mistake, Path, dotted_name, show
from sweeper.schema.secrets import held_secrets
from sweeper.schema.space import Parameter
from sweeper.script.changes import CHANGES, CHANGES_VARIABLE, FILE_VARIABLE
from sweeper.script.changes.change import ORIGINAL
from sweeper.script.inside.outside import SUBMITTERS

_PARAMETER: TypeAdapter[Parameter] = TypeAdapter(Parameter)


def broken_rules(tree: Mapping[str, Any], secrets: Collection[str]) -> Iterator[Mistake]:
    """Yields a mistake for each rule that the specification `tree` breaks; it must not contain `secrets`."""
    for rule in _RULES:
        yield from rule(tree)
    yield from held_secrets(tree, secrets)


def broken_rules_of_new_sweeps(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each rule that `tree` breaks as the specification of a sweep that begins here.

    They are about parts that cannot be found here, options that cannot have an effect, and consent. A stored
    specification need not keep them, so that its sweep can still be used.
    """
    for rule in _RULES_OF_NEW_SWEEPS:
        yield from rule(tree)


def _trains_elsewhere(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for a command that starts work elsewhere without consent."""
    words = [word for word in _list(tree.get("command")) if isinstance(word, str)]
    if (reason := leads_elsewhere(words)) and _mapping(tree.get("script")).get("elsewhere") is not True:
        text = (
            f"`command` must train on this machine alone, but {reason}: sweeper could not end it. Add"
            " `script: {elsewhere: true}` if every trial may do that."
        )
        yield Mistake(("command",), text)


def _sets_our_variable(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    if CHANGES_VARIABLE in _mapping(_mapping(tree.get("script")).get("env")):
        rule = f"`script.env.{CHANGES_VARIABLE}` is set by `script.changes`."
        text = f"{rule} Write `changes: {{loader: gathered}}`."
        yield Mistake(("script", "env", CHANGES_VARIABLE), text, at_key=True)


def _cold_cache_without_pipeline(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    if not _traits(tree).names_are_fields and _mapping(tree.get("measure")).get("cold_cache") is True:
        text = f"is for pipelines, but got a `{_key_of_work(tree)}`, which reads its own data. Remove it."
        yield Mistake(("measure", "cold_cache"), f"`measure.cold_cache: true` {text}")


def _changes_without_command(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    if tree.get("workload") == OF_CHANGES and "command" not in tree:
        text = "`workload: changes` needs a `command`, whose changes `sweeper tune` races. Remove it."
        yield Mistake(("workload",), text)


def _to_loss_without_quality(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake if the time to the baseline's loss is to be measured, but cannot be."""
    if _mapping(tree.get("confirm")).get("to_loss") is not True:
        return
    if not _traits(tree).counts_samples:
        text = (
            f"is for pipelines, but got a `{_key_of_work(tree)}`, which decides for itself when to stop."
            " Remove it."
        )
    elif _mapping(tree.get("measure")).get("quality_samples") == 0:
        text = (
            "needs a quality pass, but `measure.quality_samples: 0` turns it off."
            " Use `auto` or a number of samples."
        )
    else:
        return
    yield Mistake(("confirm", "to_loss"), f"`confirm.to_loss: true` {text}")


def _unknown_parts(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each part that cannot be found here, such as a missing loader."""
    for path, registry, value in _parts(tree):
        try:
            registry.get(value)
        except UserError as error:
            yield Mistake(path, str(error), at_key=path[0] == "constraints")


def _parts(tree: Mapping[str, Any]) -> Iterator[tuple[Path, Registry[Any], Any]]:
    """Yields the name of each part that may be a third party's, with its place and its registry."""
    for path, name, value in _given_values(tree):
        registry = FIELDS[name].registry if name in FIELDS else None
        if registry is not None:
            yield path, registry, value
    for section, key, names in (("execution", "launcher", LAUNCHERS), ("search", "sampler", SAMPLERS)):
        if key in _mapping(tree.get(section)):
            yield (section, key), names, tree[section][key]
    if "workload" in tree:
        yield ("workload",), WORKLOADS, tree["workload"]
    for index, name in enumerate(_list(_mapping(tree.get("measure")).get("probes"))):
        yield ("measure", "probes", index), THIRD_PARTY_PROBES, name
    for path, name in _metrics(tree):
        yield path, OBJECTIVES, name


def _given_values(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str, Any]]:
    """Yields the choices of the space and all fixed values, with their places and names."""
    for name, parameter in _mapping(tree.get("space")).items():
        for index, choice in enumerate(_list(_mapping(parameter).get("choices"))):
            yield ("space", name, "choices", index), name, choice
    for path, values in _sections_of_values(tree, "fix", "baseline"):
        for name, value in values.items():
            yield (*path, name), name, value


def _sections_of_values(tree: Mapping[str, Any], *keys: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yields the sections of `keys`, then each entry of `also_try`, with their places."""
    for key in keys:
        yield (key,), _mapping(tree.get(key))
    for index, entry in enumerate(_list(tree.get("also_try"))):
        yield ("also_try", index), _mapping(entry)


def _regret_without_climb(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for an option of the search that another option turns off."""
    search = _mapping(tree.get("search"))
    regret, sampler = search.get("regret"), search.get("sampler")
    if regret is not None and sampler not in (None, AUTO, CLIMB):
        why = f"has no effect with `search.sampler: {sampler}`. Remove one of them."
        text = f"`search.regret: {regret}` {why}"
        yield Mistake(("search", "regret"), text)


def _unknown_changes(changes: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each change that cannot be made at run time."""
    catalog = {name: change for name, change in CHANGES.items() if not change.is_of_environment}
    for name, value in changes.items():
        if name not in catalog:
            text = f"`script.changes` must name a change ({', '.join(catalog)}), but got `{name}`."
            yield Mistake(("script", "changes", name), text + did_you_mean(name, catalog), at_key=True)
        elif (
            catalog[name].choices
            and "{" not in str(value)
            and value not in (ORIGINAL, *catalog[name].choices)
        ):
            choices = ", ".join((ORIGINAL, *catalog[name].choices))
            text = f"`script.changes.{name}` must be one of {choices}, but got {show(value)}."
            yield Mistake(("script", "changes", name), text)


_NODES: Mapping[str, tuple[Collection[str], Collection[str]]] = {
    "torchrun": (("--nnodes",), ("1", "1:1")),
    "torch.distributed.run": (("--nnodes",), ("1", "1:1")),
    "accelerate": (("--num-machines",), ("1",)),
    "deepspeed": (("--num-nodes", "--hostfile", "-H"), ("1",)),
    "torch.distributed.launch": (("--nnodes",), ("1", "1:1")),
    "mpirun": (("--hostfile", "--host", "-H"), ("localhost",)),
    "mpiexec": (("--hostfile", "--host", "-H"), ("localhost",)),
}
"""By launcher: its options for several machines, and the values that mean this machine alone."""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _subject(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake unless there is either a pipeline or a script."""
    named = tree.get("workload")
    if not {"pipeline", "command"} & tree.keys() and (named is None or named in BUILTIN):
        text = "`pipeline` (a module) or `command` (a script) is required, but both are missing."
        yield Mistake(("pipeline",), text, at_key=True)
    for kind, key, other in ((PIPELINE, "pipeline", "command"), (SCRIPT, "command", "pipeline")):
        if named == kind and other in tree:
            text = f"`workload: {kind}` needs a `{key}`, but got a `{other}`. Remove `workload`."
            yield Mistake(("workload",), text)
    if "command" not in tree:
        if "script" in tree:
            text = "`script` needs a `command`, but got none. Add `command: [python, train.py, ...]`."
            yield Mistake(("script",), text, at_key=True)
        return
    for section in ("pipeline", "data"):
        if section in tree:
            text = f"`{section}` belongs to a pipeline and cannot be combined with `command`. Remove one."
            yield Mistake((section,), text, at_key=True)


def _traits(tree: Mapping[str, Any]) -> WorkloadTraits:
    """Returns the traits of what is trained."""
    return traits(kind_of(named=tree.get("workload"), has_command="command" in tree))


def _key_of_work(tree: Mapping[str, Any]) -> str:
    return "command" if "command" in tree else "workload"


def _without_value(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each searched name without a value, where names have no defaults."""
    if "command" in tree or _traits(tree).names_are_fields:
        return
    given = {*_mapping(tree.get("baseline")), *_mapping(tree.get("fix"))}
    for name in _mapping(tree.get("space")):
        if name not in given:
            text = f"`{name}` needs a value in `baseline`: the names of a `workload` have no defaults."
            yield Mistake(("space", name), text, at_key=True)


def _script(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each parameter that a script does not use, and for each name without a value."""
    if "command" not in tree:
        return
    options = _mapping(tree.get("script"))
    if FILE_VARIABLE not in _mapping(options.get("env")):
        yield from _unknown_changes(_mapping(options.get("changes")))
    used = {
        name: path
        for path, text in _templates(tree, options)
        if isinstance(text, str)
        for name in names_in(text)
    }
    yield from _templates_without_value(tree, used)
    if not any(isinstance(text, Mapping) for text in _mapping(options.get("files")).values()):
        # The names in a template file are known once it is read.
        yield from _unused_names(tree, used)


def _templates(tree: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yields the texts of a script in which `{name}` stands for a value, with their places."""
    for index, word in enumerate(_list(tree.get("command"))):
        yield ("command", index), word
    for section in ("env", "files", "changes"):
        for name, text in _mapping(options.get(section)).items():
            yield ("script", section, name), text
    yield ("script", "samples_per_step"), options.get("samples_per_step")


def _templates_without_value(tree: Mapping[str, Any], used: Mapping[str, Path]) -> Iterator[Mistake]:
    given = {*_mapping(tree.get("baseline")), *_mapping(tree.get("fix"))}
    for name, path in used.items():
        if name not in {*given, FOLDER}:
            remedy = did_you_mean(name, {*given, *_mapping(tree.get("space"))})
            text = (
                f"`{name}` in a template needs a value in `baseline` or `fix`: a script's names have no"
                f" defaults.{remedy}"
            )
            yield Mistake(path, text)


def _unused_names(tree: Mapping[str, Any], used: Collection[str]) -> Iterator[Mistake]:
    for path, values in _sections_of_values(tree, "space", "fix", "baseline"):
        for name in values:
            # What is fixed of it is the number of GPUs that a trial gets.
            if name not in used and (*path, name) != ("fix", "device.count"):
                yield Mistake((*path, name), unused_message(name, used), at_key=True)


def leads_elsewhere(words: Sequence[str]) -> str:
    """Returns how a command starts work on other machines or submits it; empty if it does neither."""
    # In a shell's command line (`bash -c`), each word may be a program.
    programs = [*words[:1]] + [
        w for i, word in enumerate(words) if words[i - 1] == "-c" for w in word.split()
    ]
    name = next((base for base in map(_base, programs) if base in SUBMITTERS), "")
    if name:
        return f"`{name}` starts it elsewhere"
    for launcher, (options, alone) in _NODES.items():
        if not any(_base(word) == launcher for word in words[:3]):
            continue
        before = itertools.takewhile(lambda word: not word.endswith(".py"), words)
        for option, value in itertools.pairwise([part for word in before for part in word.split("=", 1)]):
            # A host of mpirun may have a number of slots after it.
            hosts = {host.partition(":")[0] for host in value.split(",")}
            is_alone = value in alone or ("localhost" in alone and hosts == {"localhost"})
            if option.replace("_", "-") in options and not is_alone:
                return f"`{option} {value}` is for several machines"
    return ""


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def unused_message(name: str, used: Collection[str]) -> str:
    """Returns the message for a parameter that has no effect on the script."""
    remedy = did_you_mean(name, used) or f" Write `{{{name}}}` where its value belongs."
    return f"`{name}` is not used: it must appear in the command, its files or its environment.{remedy}"


def _space(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    for name, parameter in _mapping(tree.get("space")).items():
        path: Path = ("space", name)
        if not _traits(tree).names_are_fields and not is_known(name):
            continue
        try:
            field = field_of(name)
        except UserError as error:
            yield Mistake(path, str(error), at_key=True)
            continue
        given = _mapping(parameter)
        if given.get("type") == "float" and field is not None and field.type is int:
            text = f"`{name}` is an integer, but got type 'float'. Use `type: int`."
            yield Mistake((*path, "type"), text)
            continue
        values = [((*path, key), given[key]) for key in ("low", "high") if key in given]
        values += [((*path, "choices", i), choice) for i, choice in enumerate(_list(given.get("choices")))]
        for place, value in values:
            yield from _value(name, value, place)


def _values(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each fixed value that its field refuses, and for each name that is no field."""
    own_names = not _traits(tree).names_are_fields
    for path, values in _sections_of_values(tree, "fix", "baseline"):
        for name, value in values.items():
            if own_names and not is_known(name):
                continue
            try:
                field_of(name)
            except UserError as error:
                yield Mistake((*path, name), str(error), at_key=True)
            else:
                yield from _value(name, value, (*path, name))


def _value(name: str, value: Any, path: Path) -> Iterator[Mistake]:
    if not isinstance(value, Scalar):
        return
    try:
        TrialConfig().replace({name: value})
    except UserError as error:
        yield Mistake(path, str(error))


def _searched_and_fixed(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    for name in _mapping(tree.get("fix")):
        if name in _mapping(tree.get("space")):
            text = f"`{name}` must not be both in `space` and in `fix`. Remove one."
            yield Mistake(("fix", name), text, at_key=True)


def _options_of_earlier_versions(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    if "ladder" in _mapping(tree.get("confirm")):
        text = "`confirm.ladder` is no longer an option: `sweeper tune` measures each change. Remove it."
        yield Mistake(("confirm", "ladder"), text, at_key=True)


def _when(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    space = _mapping(tree.get("space"))
    graph: dict[str, tuple[str, ...]] = {}
    for name, parameter in space.items():
        conditions = _mapping(_mapping(parameter).get("when"))
        graph[name] = tuple(target for target in conditions if target in space)
        for target, condition in conditions.items():
            path: Path = ("space", name, "when", target)
            if target not in space:
                text = f"`{dotted_name(path[:3])}` must name a parameter of the space, but got `{target}`."
                yield Mistake(path, text + did_you_mean(target, space), at_key=True)
            else:
                yield from _condition(condition, space[target], target, path)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1]
        text = f"`when` conditions must not form a cycle, but got {' -> '.join(cycle)}."
        yield Mistake(("space", cycle[1], "when", cycle[0]), text, at_key=True)


def _condition(condition: Any, target: Any, name: str, path: Path) -> Iterator[Mistake]:
    try:
        parameter = _PARAMETER.validate_python(target)
    except ValidationError:
        return
    for value in condition if isinstance(condition, list) else [condition]:
        if isinstance(value, Scalar) and not parameter.contains(value):
            choices = [str(choice) for choice in getattr(parameter, "choices", ())]
            text = f"`{name}` can never be {show(value)}, so this condition never holds."
            yield Mistake(path, text + did_you_mean(str(value), choices))


def _goals(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    named = list(_metrics(tree))
    for path, metric in named:
        if text := _missing_input(metric, tree):
            yield Mistake(path, text, at_key=path[0] == "constraints")
    on_loss = any(metric_row(metric).rests_on_loss for _, metric in named)
    work = [name for name in _mapping(tree.get("space")) if name.partition(".")[0] in OPEN_SECTIONS]
    if work and not on_loss:
        text = (
            "A space with `model.*` or `data.*` needs a constraint or an objective on val_loss, but got"
            f" {work[0]} without one. Add `constraints: {{val_loss: {{max_ratio_to_baseline: 1.02}}}}`."
        )
        yield Mistake(("space", work[0], "val_loss"), text, at_key=True)
    rule = _mapping(tree.get("confirm")).get("pick")
    several = len(_list(tree.get("objectives"))) > 1
    if rule == "lowest_loss" and several and not on_loss:
        text = (
            "`confirm.pick: lowest_loss` needs an objective or a constraint on val_loss, but got none."
            " Add one, or use `pick: knee`."
        )
        yield Mistake(("confirm", "pick"), text)


def _metrics(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yields the metrics of constraints and objectives with their places."""
    for name in _mapping(tree.get("constraints")):
        if isinstance(name, str):
            yield ("constraints", name), name
    for index, entry in enumerate(_list(tree.get("objectives"))):
        for key, metric in _mapping(entry).items():
            if isinstance(metric, str) and key in ("maximize", "minimize"):
                yield ("objectives", index, key), metric


def _missing_input(metric: str, tree: Mapping[str, Any]) -> str:
    """Returns the message if `metric` lacks an input that it is computed from; empty if not."""
    if metric == "projected_hours" and not tree.get("production"):
        return (
            "`projected_hours` needs the training samples of the production run, but got no `production`."
            " Add `production: {samples: 2.0e9}`."
        )
    if metric == "cost_per_run" and not _mapping(tree.get("production")).get("price_per_hour"):
        return (
            "`cost_per_run` needs the price of an hour, but got no `production.price_per_hour`."
            " Add it, or pass `--price 1.2`; `production.samples` says how long the run is."
        )
    if metric == "time_to_loss_s" and _mapping(tree.get("measure")).get("quality_samples") == 0:
        return (
            "`time_to_loss_s` needs a quality pass, but `measure.quality_samples: 0` turns it off."
            " Use `auto` or a number of samples."
        )
    return ""


Rule = Callable[[Mapping[str, Any]], Iterator[Mistake]]

# In this order, since of two mistakes at one place only the first is shown.
_RULES: tuple[Rule, ...] = (
    _subject,
    _space,
    _when,
    _values,
    _script,
    _without_value,
    _searched_and_fixed,
    _options_of_earlier_versions,
    _goals,
)
_RULES_OF_NEW_SWEEPS: tuple[Rule, ...] = (
    _trains_elsewhere,
    _sets_our_variable,
    _cold_cache_without_pipeline,
    _regret_without_climb,
    _changes_without_command,
    _to_loss_without_quality,
    _unknown_parts,
)
