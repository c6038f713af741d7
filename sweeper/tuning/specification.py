"""Makes the specification of the sweep underneath a tune: each change is a parameter with its values."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from sweeper.core.template import cases, literal
from sweeper.core.workload import CHANGES as OF_CHANGES
from sweeper.script.changes import CHANGES, FILE_VARIABLE
from sweeper.script.changes.change import CHANGES_TRAINING, DRAWS, Change
from sweeper.tuning.changes import ChangeValue, known_changes
from sweeper.tuning.options import TuneOptions

MEASURE = {"window_seconds": 3, "repeats": 3, "warmup_cap_seconds": 8}
CONFIRM = {"top": 3, "rounds": 4}
DIGEST_VARIABLE = "SWEEPER_CHANGES_DIGEST"
"""Environment variable that makes a tune with another file of changes another tune."""


def specification(options: TuneOptions, minutes: float) -> dict[str, Any]:
    """Returns the specification of the sweep underneath a tune, as plain values.

    All changes are in it. Which of them are tried is known only once the script runs.

    Args:
        minutes: The time limit.
    """
    file = options.changes
    changes = [
        change
        for change in known_changes(file).values()
        if change.kind != CHANGES_TRAINING and (change.kind != DRAWS or options.allow_other_draws)
    ]
    variables = {}
    if file:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        variables = {FILE_VARIABLE: literal(str(file.resolve())), DIGEST_VARIABLE: digest}
    for change in changes:
        variables.update(_variables(change))
    return {
        "name": options.name,
        "command": [literal(word) for word in options.command],
        "workload": OF_CHANGES,
        "script": {
            "env": variables,
            "changes": {
                change.name: f"{{{change.name}}}" for change in changes if not change.is_of_environment
            },
        },
        "space": {
            change.name: {"type": "categorical", "choices": [change.original, *change.choices]}
            for change in changes
        },
        "baseline": {change.name: change.original for change in changes},
        "measure": dict(MEASURE),
        "search": {"minutes": round(minutes, 2)},
        "confirm": dict(CONFIRM),
    }


def _variables(change: Change) -> Mapping[str, str]:
    """Returns templates of the environment variables that make a change."""
    words: dict[str, dict[str, str]] = {}
    for value in change.choices:
        for name, text in change.environment(value, _facts()).items():
            words.setdefault(name, {})[value] = text
    return {name: cases(change.name, by_value) for name, by_value in words.items()}


def is_made_otherwise(change: ChangeValue, facts: Mapping[str, Any]) -> bool:
    """Returns whether the specification makes a change of the environment unlike the script needs it.

    Args:
        facts: What the training uses (`sweeper.script.changes.facts`).
    """
    known_change = CHANGES.get(change.name)
    if known_change is None or not known_change.is_of_environment:
        return False
    return known_change.environment(change.value, _facts()) != known_change.environment(change.value, facts)


def _facts() -> Mapping[str, Any]:
    """Returns what is assumed of a script before it runs."""
    return {"threads": len(os.sched_getaffinity(0))}
