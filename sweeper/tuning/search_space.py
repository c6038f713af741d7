"""Makes the specification of the search on top of the changes that won: options of the script, its batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.measurement import Measurement
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.scaffold.command_space import Proposal
from sweeper.scaffold.known_options import Dimension
from sweeper.script.changes import BATCH_SIZE
from sweeper.script.changes.batch_size import FACTORS
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
    changes = script.changes_for(values)
    space, baseline, fix = _options_to_search(proposal, changes)
    at_run_time: dict[str, str] = {}
    searches_batch = options.allow_batch_size and BATCH_SIZE.name not in space and not batch_refusal(measured)
    if searches_batch:
        # A number, as elsewhere, so that memory and losses are known to depend on it.
        size = int(measured.observed.get("batch_size") or 0)
        choices = [size, *(size * factor for factor in FACTORS)]
        space[BATCH_SIZE.name] = {"type": "categorical", "choices": choices}
        baseline[BATCH_SIZE.name] = size
        at_run_time[BATCH_SIZE.name] = f"{{{BATCH_SIZE.name}}}/{size}"
    if not space:
        return None
    ranks = int(measured.observed.get("ranks", 1)) if measured.trains_on_gpu else 1
    if ranks > 1:
        fix["device.count"] = ranks
    plan: dict[str, Any] = {
        "name": name,
        "command": _arguments(options, proposal),
        "script": {
            "env": {name: literal(text) for name, text in script.variables(values).items()},
            "changes": {**{name: literal(value) for name, value in changes.items()}, **at_run_time},
        },
        "space": space,
        "fix": fix,
        "baseline": baseline,
        "measure": dict(MEASURE),
        "search": {**SEARCH, "minutes": round(minutes, 2)},
        "confirm": dict(CONFIRM),
    }
    if searches_batch or (proposal is not None and proposal.trains_differently):
        plan["constraints"] = dict(LOSS_LIMIT)
        plan["measure"]["quality_samples"] = max(1, int(LOSS_SECONDS * measured.throughput))
    return plan


def _arguments(options: TuneOptions, proposal: Proposal | None) -> list[str]:
    """Returns the words of the command, with a template where an option is searched."""
    if proposal is None:
        return [literal(word) for word in options.command]
    used = [argument for argument in proposal.arguments if argument.in_use and not argument.instead]
    return [word for argument in used for word in argument.words]


def _options_to_search(
    proposal: Proposal | None, changes: Collection[str]
) -> tuple[dict[str, Any], dict[str, Scalar], dict[str, Scalar]]:
    """Returns the space of the script's own options, their values as they are, and those that stay fixed.

    Args:
        changes: Names of the changes that are made. An option stays as it is if a change does the same.
    """
    if proposal is None:
        return {}, {}, {}
    searched = [dimension for dimension in proposal.searched if dimension.name not in changes]
    changed = [dimension for dimension in proposal.searched if dimension.name in changes]
    return (
        {dimension.name: _dimension(dimension) for dimension in searched},
        {dimension.name: dimension.value for dimension in searched},
        {**proposal.fix, **{dimension.name: dimension.value for dimension in changed}},
    )


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
