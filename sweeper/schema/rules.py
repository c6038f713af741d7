"""Checks rules across the sections of a specification: names, values, conditions, goals.

The rules read the plain tree, not the models, so that a broken section does not hide mistakes in another.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar, TrialConfig, field_of, is_known
from sweeper.core.launchers import LAUNCHERS
from sweeper.core.metrics import OBJECTIVES, metric_row
from sweeper.core.probes import PROBES
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
from sweeper.script.changes import CHANGES, FILE_VARIABLE, VARIABLE
from sweeper.script.changes.change import ORIGINAL
from sweeper.script.inside.outside import SUBMITTERS

_PARAMETER: TypeAdapter[Parameter] = TypeAdapter(Parameter)


def broken_rules(tree: Mapping[str, Any], secrets: Collection[str]) -> Iterator[Mistake]:
    """Yields a mistake for each rule that the specification `tree` breaks; it must not contain `secrets`."""
    yield from _subject(tree)
    yield from _space(tree)
    yield from _when(tree)
    own_names = not _traits(tree).names_are_fields
    for section in ("fix", "baseline"):
        yield from _values(_mapping(tree.get(section)), (section,), own_names)
    for index, entry in enumerate(_list(tree.get("also_try"))):
        yield from _values(_mapping(entry), ("also_try", index), own_names)
    if "command" in tree:
        yield from _script(tree)
    elif own_names:
        yield from _without_value(tree)
    for name in _mapping(tree.get("fix")):
        if name in _mapping(tree.get("space")):
            text = f"`{name}` must not be both in `space` and in `fix`. Remove one."
            yield Mistake(("fix", name), text, at_key=True)
    if "ladder" in _mapping(tree.get("confirm")):
        text = "`confirm.ladder` is no longer an option: `sweeper tune` measures each change. Remove it."
        yield Mistake(("confirm", "ladder"), text, at_key=True)
    yield from _goals(tree)
    yield from held_secrets(tree, secrets)


def missing_parts(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each part that cannot be found here, such as a missing loader.

    Also yields one for a command that starts work elsewhere without consent, and for each option of a sweep
    that cannot have an effect. A stored specification is not checked by these rules, so that its sweep can
    still be used.
    """
    words = [word for word in _list(tree.get("command")) if isinstance(word, str)]
    if (reason := leads_elsewhere(words)) and _mapping(tree.get("script")).get("elsewhere") is not True:
        text = (
            f"`command` must train on this machine alone, but {reason}: sweeper could not end it. Add"
            " `script: {elsewhere: true}` if every trial may do that."
        )
        yield Mistake(("command",), text)
    if VARIABLE in _mapping(_mapping(tree.get("script")).get("env")):
        text = f"`script.env.{VARIABLE}` is set by `script.changes`. Write `changes: {{loader: gathered}}`."
        yield Mistake(("script", "env", VARIABLE), text, at_key=True)
    work = _traits(tree)
    subject = "command" if "command" in tree else "workload"
    if not work.names_are_fields and _mapping(tree.get("measure")).get("cold_cache") is True:
        text = f"is for pipelines, but got a `{subject}`, which reads its own data. Remove it."
        yield Mistake(("measure", "cold_cache"), f"`measure.cold_cache: true` {text}")
    yield from _no_effect_on_search(_mapping(tree.get("search")))
    if tree.get("workload") == OF_CHANGES and "command" not in tree:
        text = "`workload: changes` needs a `command`, whose changes `sweeper tune` races. Remove it."
        yield Mistake(("workload",), text)
    if _mapping(tree.get("confirm")).get("to_loss") is True:
        text = ""
        if not work.counts_samples:
            text = f"is for pipelines, but got a `{subject}`, which decides for itself when to stop."
            text += " Remove it."
        elif _mapping(tree.get("measure")).get("quality_samples") == 0:
            text = (
                "needs a quality pass, but `measure.quality_samples: 0` turns it off."
                " Use `auto` or a number of samples."
            )
        if text:
            yield Mistake(("confirm", "to_loss"), f"`confirm.to_loss: true` {text}")
    places: list[tuple[Path, str, Any]] = [
        (("space", name, "choices", i), name, choice)
        for name, parameter in _mapping(tree.get("space")).items()
        for i, choice in enumerate(_list(_mapping(parameter).get("choices")))
    ]
    sections: list[tuple[Path, Any]] = [((key,), tree.get(key)) for key in ("fix", "baseline")]
    sections += [(("also_try", i), entry) for i, entry in enumerate(_list(tree.get("also_try")))]
    for path, section in sections:
        places += [((*path, name), name, value) for name, value in _mapping(section).items()]
    parts: list[tuple[Path, Registry[Any], Any]] = []
    for path, name, value in places:
        if name in FIELDS and (registry := FIELDS[name].registry) is not None:
            parts.append((path, registry, value))
    for section, key, names in (("execution", "launcher", LAUNCHERS), ("search", "sampler", SAMPLERS)):
        if key in _mapping(tree.get(section)):
            parts.append(((section, key), names, tree[section][key]))
    if "workload" in tree:
        parts.append((("workload",), WORKLOADS, tree["workload"]))
    probes = _list(_mapping(tree.get("measure")).get("probes"))
    parts += [(("measure", "probes", i), PROBES, name) for i, name in enumerate(probes)]
    parts += [(path, OBJECTIVES, name) for path, name in _metrics(tree)]
    for path, registry, value in parts:
        try:
            registry.get(value)
        except UserError as error:
            yield Mistake(path, str(error), at_key=path[0] == "constraints")


def _no_effect_on_search(search: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each option of the search that another option turns off."""
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


def _without_value(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each searched name without a value, where names have no defaults."""
    given = {*_mapping(tree.get("baseline")), *_mapping(tree.get("fix"))}
    for name in _mapping(tree.get("space")):
        if name not in given:
            text = f"`{name}` needs a value in `baseline`: the names of a `workload` have no defaults."
            yield Mistake(("space", name), text, at_key=True)


def _script(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each parameter that a script does not use, and for each name without a value."""
    options = _mapping(tree.get("script"))
    templates: list[tuple[Path, Any]] = [
        (("command", index), item) for index, item in enumerate(_list(tree.get("command")))
    ]
    templates += [(("script", "env", name), text) for name, text in _mapping(options.get("env")).items()]
    files = _mapping(options.get("files"))
    templates += [(("script", "files", name), text) for name, text in files.items()]
    changes = _mapping(options.get("changes"))
    if FILE_VARIABLE not in _mapping(options.get("env")):
        yield from _unknown_changes(changes)
    templates += [(("script", "changes", name), text) for name, text in changes.items()]
    templates.append((("script", "samples_per_step"), options.get("samples_per_step")))
    used = {name: path for path, text in templates if isinstance(text, str) for name in names_in(text)}
    base, fixed = _mapping(tree.get("baseline")), _mapping(tree.get("fix"))
    searched = _mapping(tree.get("space"))
    for name, path in used.items():
        if name not in {*base, *fixed, FOLDER}:
            text = (
                f"`{name}` in a template needs a value in `baseline` or `fix`: a script's names have no"
                f" defaults.{did_you_mean(name, {*base, *fixed, *searched})}"
            )
            yield Mistake(path, text)
    if any(isinstance(text, Mapping) for text in files.values()):
        # The names in a template file are known once it is read.
        return
    places: list[tuple[Path, str]] = [(("space", name), name) for name in searched]
    places += [(("fix", name), name) for name in fixed] + [(("baseline", name), name) for name in base]
    for index, entry in enumerate(_list(tree.get("also_try"))):
        places += [(("also_try", index, name), name) for name in _mapping(entry)]
    for path, name in places:
        # What is fixed of it is the number of GPUs that a trial gets.
        if name not in used and path != ("fix", "device.count"):
            yield Mistake(path, unused_message(name, used), at_key=True)


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


def _values(values: Mapping[str, Any], path: Path, own_names: bool) -> Iterator[Mistake]:
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
