"""Makes the specification of the search on top of the changes that won: options of the script, its batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.measurement import Measurement
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.scaffold.command_space import Proposal
from sweeper.scaffold.known_options import Dimension
from sweeper.script.changes import BATCH_SIZE
from sweeper.script.changes.batch import FACTORS
from sweeper.tuning.options import TuneOptions

MEASURE = {"window_seconds": 1, "repeats": 3, "warmup_cap_seconds": 8}
SEARCH = {"trials": 40}
CONFIRM = {"top": 3, "rounds": 4}
LOSS_LIMIT = {"val_loss": {"max_ratio_to_baseline": 1.02}}
"""Limit of the loss after the same samples, for what affects what is learned from them."""
LOSS_SECONDS = 8.0
"""Losses are compared after the samples of this many seconds; a larger batch takes fewer steps for them."""


def search_space(
    options: TuneOptions,
    script: Script,
    values: Mapping[str, Scalar],
    measured: Measurement,
    minutes: float,
    *,
    name: str,
    proposal: Proposal | None = None,
) -> dict[str, Any] | None:
    """Returns the specification of the search, as plain values; None if there is nothing to search.

    Its baseline is the script with the changes that won.

    Args:
        script: The script of the sweep before, with the values of its winner, or of its baseline.
        measured: Measurement of the script.
        name: Name of the search.
        proposal: The script's own options, if they are searched.
    """
    space: dict[str, Any] = {}
    baseline: dict[str, Scalar] = {}
    at_run_time: dict[str, str] = {}
    changes = script.changes_for(values)
    arguments = [literal(word) for word in options.command]
    fix: dict[str, Scalar] = {}
    if proposal is not None:
        arguments = [
            word
            for argument in proposal.arguments
            if argument.in_use and not argument.instead
            for word in argument.words
        ]
        fix.update(proposal.fix)
        for dimension in proposal.searched:
            if dimension.name in changes:
                # Its option stays as it is, since a change does the same.
                fix[dimension.name] = dimension.value
                continue
            space[dimension.name] = _dimension(dimension)
            baseline[dimension.name] = dimension.value
    changes_training = proposal is not None and proposal.trains_differently
    size = int(measured.observed.get("batch_size") or 0)
    if options.allow_batch_size and BATCH_SIZE.name not in space and not batch_refusal(measured):
        # A number, as elsewhere, so that memory and losses are known to depend on it.
        choices = [size, *(size * factor for factor in FACTORS)]
        space[BATCH_SIZE.name] = {"type": "categorical", "choices": choices}
        baseline[BATCH_SIZE.name] = size
        at_run_time[BATCH_SIZE.name] = f"{{{BATCH_SIZE.name}}}/{size}"
        changes_training = True
    if not space:
        return None
    env = {name: literal(text) for name, text in script.variables(values).items()}
    ranks = int(measured.observed.get("ranks", 1)) if measured.trains_on_gpu else 1
    if ranks > 1:
        fix["device.count"] = ranks
    plan: dict[str, Any] = {
        "name": name,
        "command": arguments,
        "script": {
            "env": env,
            "changes": {**{name: literal(value) for name, value in changes.items()}, **at_run_time},
        },
        "space": space,
        "fix": fix,
        "baseline": baseline,
        "measure": dict(MEASURE),
        "search": {**SEARCH, "minutes": round(minutes, 2)},
        "confirm": dict(CONFIRM),
    }
    if changes_training:
        plan["constraints"] = dict(LOSS_LIMIT)
        plan["measure"]["quality_samples"] = max(1, int(LOSS_SECONDS * measured.throughput))
    return plan


def batch_refusal(measured: Measurement) -> str:
    """Returns why the batch size cannot be changed; empty if it can."""
    return BATCH_SIZE.refusal("", measured.observed)


def _dimension(dimension: Dimension) -> dict[str, Any]:
    conditions = {name: {"min": minimum} for name, minimum in dimension.at_least.items()}
    when = {"when": conditions} if conditions else {}
    if dimension.choices:
        return {"type": "categorical", "choices": list(dimension.choices), **when}
    log = {"log": True} if dimension.log else {}
    return {"type": "int", "low": dimension.low, "high": dimension.high, **log, **when}
