"""Translates what sweeper 0.1 and 0.2 stored, schema 1, so that it can be shown, exported and trained from.

Each function takes the content of a file and returns what this version would have written. The content of a
file that has the number of its schema is returned as it is if this version has written it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sweeper.core.template import names_in
from sweeper.script.changes import CHANGES_VARIABLE, is_original
from sweeper.script.changes.change import ORIGINAL

FILES: Mapping[str, str] = {
    "search_result.json": "told.json",
    "interim_result.json": "stopped.json",
    "extension.json": "budget.json",
}
"""By today's name: the earlier one."""
RACES: Mapping[str, str] = {"final": "confirm", "interim": "stopped"}
"""By the name of a race: the folder of its processes, which are below `races` now."""

CHANGES: Mapping[str, str] = {
    "pictures": "images",
    "readers": "augmentation_workers",
    "pinned": "pin_memory",
    "cudnn": "cudnn_benchmark",
    "spinning": "spin_wait",
    "pages": "huge_pages",
}
"""By the earlier name of a change: today's."""

_OWN = "own"
_CHANGE = re.compile(r"[\w.]+=\S+")
_JOB = {"asked_at": "created_at", "source": "reporter", "turns": "turns_folder"}
_MEASUREMENT = {"told_by": "reported_by", "left_out": "exclusions", "screened_out": "is_screened"}
_WINDOW = {"flags": "disturbances", "others_cpu_seconds": "foreign_cpu_seconds"}
_PLACE = {"beside": "num_neighbours"}
_RESULT = {
    "reason": "search_end",
    "rounds_ended": "race_end",
    "tied": "ties",
    "unfit": "infeasible",
    "disturbed": "disturbances",
    "to_loss": "time_to_loss",
    "missed_loss": "unreached_loss",
}
_RATIO = {
    "number": "trial",
    "now_low": "sitting_low",
    "now_high": "sitting_high",
    "speed_low": "throughput_low",
    "speed_high": "throughput_high",
}
_EXPORT = {"measured": "measurement", "holds_for": "conditions", "proved": "verification"}


def is_of(tree: Mapping[str, Any]) -> bool:
    """Returns whether a file that holds the number of its schema is an earlier one."""
    return bool(tree.get("schema", 1) == 1)


def sweep(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `sweep.yaml`."""
    about, spec = dict(document["about"]), dict(document["spec"])
    if "model" in about:
        about["device_model"] = about.pop("model")
    confirm = dict(spec.get("confirm") or {})
    if confirm.pop("ladder", False):
        spec["workload"] = "changes"
    spec["confirm"] = confirm
    if "script" in spec:
        spec["script"] = script = _script(spec["script"])
        names = _parameters(script)
        spec["space"] = {
            n: _choices(parameter) if n in names else parameter for n, parameter in spec["space"].items()
        }
        spec |= {key: _values(spec[key], names) for key in ("baseline", "fix") if key in spec}
    kind = spec.setdefault("workload", "script" if "command" in spec else "pipeline")
    fingerprint = {"workload": kind, **document["fingerprint"]}
    return {**document, "about": about, "spec": spec, "fingerprint": fingerprint}


def job(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of `config.json`."""
    if not is_of(tree):
        return tree
    translated = _rename(tree, _JOB)
    if translated.get("script"):
        translated["script"] = script = _script(translated["script"])
        names = _parameters(script)
        if names:
            config = translated["config"]
            translated["config"] = {**config, "args": _values(config.get("args") or {}, names)}
            translated["params"] = _values(translated.get("params") or {}, names)
    return translated


def outcome(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of `outcome.json`."""
    if not is_of(tree):
        return tree
    translated = _rename(tree, _MEASUREMENT)
    if "windows" in translated:
        translated["windows"] = [_rename(window, _WINDOW) for window in translated["windows"]]
    return translated


def place(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of `place.json`."""
    return _rename(tree, _PLACE)


def result(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of `result.json`, or of `interim_result.json`."""
    translated = _rename(tree, _RESULT)
    translated["ratios"] = [_rename(ratio, _RATIO) for ratio in tree.get("ratios", ())]
    return translated


def speeds(tree: Mapping[str, Any]) -> Sequence[Mapping[int, float]]:
    """Returns the rounds in a result, as samples per second by trial, which are in the races' logs now."""
    rounds = tree.get("rounds", ())
    return [{int(number): speed for number, speed in together.items()} for together in rounds]


def verification(tree: Mapping[str, Any], trial: int) -> Mapping[str, Any] | None:
    """Returns the content of `verification.json` of a trial, from that of a sweep's `proof.json`."""
    if tree["trial"] != trial:
        return None
    return {
        "kind": tree["kind"],
        "changes": [
            {
                "name": CHANGES.get(change["name"], change["name"]),
                "value": change["value"],
                "original": _value(change["own"]),
                "why": change["why"],
            }
            for change in tree.get("made", ())
        ],
        "is_nondeterministic": tree.get("races", False),
        "difference": tree["fault"],
        "extent": tree["covers"],
        "code": tree["code"],
    }


def export(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of an export (schema 1 or 2)."""
    translated = _rename(tree, _EXPORT)
    measurement = translated.get("measurement")
    if isinstance(measurement, Mapping):
        translated["measurement"] = _rename(measurement, {"x_baseline": "speedup"})
    verified = translated.get("verification")
    if isinstance(verified, Mapping):
        translated["verification"] = _rename(verified, {"covers": "extent"})
    if isinstance(translated.get("env"), Mapping):
        # Parameters have the earlier names of the changes.
        names = {name for name, _ in _words(translated["env"])}
        translated["params"] = _values(translated.get("params") or {}, names)
        script = _script({"env": translated["env"]})
        changes = {name: _value(value) for name, value in script.get("changes", {}).items()}
        translated["changes"] = {n: value for n, value in changes.items() if not is_original(n, value)}
        translated["env"] = script["env"]
    return translated


def _script(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a script whose changes have a key of their own."""
    env = tree.get("env") or {}
    changes = {CHANGES.get(name, name): value for name, value in _words(env)}
    if not changes:
        return dict(tree)
    others = {name: text for name, text in env.items() if name != CHANGES_VARIABLE}
    return {**tree, "env": others, "changes": changes}


def _words(env: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns names and values of the changes in an environment, with their earlier names."""
    words = str(env.get(CHANGES_VARIABLE, "")).split()
    if not all(map(_CHANGE.fullmatch, words)):
        return []
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


def _parameters(script: Mapping[str, Any]) -> set[str]:
    """Returns the parameters whose values are those of a script's changes."""
    return {name for template in script.get("changes", {}).values() for name in names_in(template)}


def _choices(parameter: Mapping[str, Any]) -> Mapping[str, Any]:
    if "choices" not in parameter:
        return parameter
    return {**parameter, "choices": [_value(choice) for choice in parameter["choices"]]}


def _values(tree: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: _value(value) if name in names else value for name, value in tree.items()}


def _value(value: Any) -> Any:
    return ORIGINAL if value == _OWN else value


def _rename(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in tree.items()}
