"""Builds the search space of a tune: each proved change is a choice, as is the script's own value."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis.bottleneck import verdict_of
from sweeper.core.measurement import Bottleneck, Measurement
from sweeper.core.template import literal
from sweeper.core.workload import CHANGES as OF_CHANGES
from sweeper.interventions import BATCH_SIZE, CHANGES, FILE_VARIABLE, is_exact
from sweeper.scaffold.command_space import Proposal
from sweeper.scaffold.known_options import Dimension
from sweeper.script.watch import NO_PARAMETERS
from sweeper.search.halves import most_changes, num_trials
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue, ceiling_of

MEASURE = {"window_seconds": 1, "repeats": 3, "warmup_cap_seconds": 8}
CONFIRM = {"top": 1, "rounds": 4}
LOSS_LIMIT = {"val_loss": {"max_ratio_to_baseline": 1.02}}
"""Limit of the loss after the same samples, for changes that may affect what is learned from them."""
TRIALS = 5
"""Trials in addition to two for each parameter: alone, and with the others."""
BATCH_TRIALS = 6
WINDOWS_SECONDS = 4.0
"""Seconds of a trial for its windows and its end."""
SEARCH_SHARE = 0.55
"""Share of the time that the rounds leave for the search."""
UNKNOWN_CEILING = 1.05
"""Largest speedup that is assumed of a change which could save a part of anything, such as memory calls."""
QUALITY_SECONDS = 8.0
"""Losses are compared after the samples of this many seconds; a larger batch takes fewer steps for them."""


def space(
    command: Sequence[str],
    changes: Sequence[ChangeValue],
    name: str,
    minutes: float,
    *,
    env: Mapping[str, str],
    samples_per_s: float = 0.0,
    proposal: Proposal | None = None,
    file: str = "",
    num_gpus: int = 1,
) -> dict[str, Any]:
    """Returns the specification of the sweep underneath a tune, as plain values.

    Args:
        env: The script's own additional environment variables.
        samples_per_s: Training speed of the runs that measure the loss.
        proposal: Options of the script to search, too.
        file: File with the user's own changes.
        num_gpus: GPUs that a trial needs: as many as ranks were seen to train.
    """
    variables = {key: literal(text) for key, text in env.items()}
    dimensions: dict[str, Any] = {}
    baseline: dict[str, Any] = {}
    at_run_time: dict[str, str] = {}
    for change in changes:
        # The batch size is a number, as elsewhere, so that memory and losses are known to depend on it.
        is_number = change.name == BATCH_SIZE.name
        value, own = (int(each) if is_number else each for each in (change.value, change.original))
        if change.name not in dimensions:
            dimensions[change.name] = {"type": "categorical", "choices": [own]}
            baseline[change.name] = own
            if not change.is_of_environment:
                at_run_time[change.name] = dataclasses.replace(change, value=f"{{{change.name}}}").stored
        dimensions[change.name]["choices"].append(value)
        variables.update(change.env)
    if at_run_time and file:
        variables[FILE_VARIABLE] = literal(file)
    arguments = [literal(word) for word in command]
    fix: dict[str, Any] = {}
    if proposal is not None:
        arguments = [w for e in proposal.arguments if e.in_use and not e.instead for w in e.words]
        fix = dict(proposal.fix)
        for each in proposal.searched:
            if each.name not in dimensions and not (
                each.name in CHANGES and CHANGES[each.name].is_of_environment
            ):
                dimensions[each.name] = _dimension(each)
                baseline[each.name] = each.value
    found: dict[str, Any] = {
        "name": name,
        "command": arguments,
        "workload": OF_CHANGES,
        "script": {"env": variables, "changes": at_run_time},
        "space": dimensions,
        "fix": fix,
        "baseline": baseline,
        "measure": dict(MEASURE),
        "search": {"trials": TRIALS + 2 * len(dimensions), "minutes": round(minutes, 2)},
        "confirm": dict(CONFIRM),
    }
    if num_gpus > 1:
        fix["device.count"] = num_gpus
    if any(each.changes_training for each in changes):
        found["constraints"] = dict(LOSS_LIMIT)
        found["measure"]["quality_samples"] = max(1, int(QUALITY_SECONDS * samples_per_s))
        found["search"]["trials"] += BATCH_TRIALS
    return found


def worth_their_time(
    changes: Sequence[ChangeValue], found: Measurement, minutes: float, spent: float = 0.0
) -> tuple[ChangeValue, ...]:
    """Returns the changes; if the time is too short, those of the lowest ceilings are refused.

    Of those with the same ceiling, the ones for the script's verdict come first. The exact changes share the
    first trial, so none of them is refused.

    Args:
        found: Measurement of the unchanged script.
        minutes: Minutes left for search and confirmation.
        spent: Minutes that watching and comparing took.
    """
    one = found.startup_seconds + min(found.warmup_seconds, MEASURE["warmup_cap_seconds"]) + WINDOWS_SECONDS
    # The baseline is a trial, too.
    trials = SEARCH_SHARE * 60 * minutes / one - 1
    candidates = [change for change in changes if not change.refused]
    exact = {change.name for change in candidates if is_exact(change.name)}
    others = {change.name: _highest(change, found) for change in candidates if change.name not in exact}
    verdict = verdict_of(found, NO_PARAMETERS).kind
    ranked = sorted(others, key=lambda name: (-others[name], not _helps(name, verdict)))
    most = max(most_changes(trials) - len(exact), 1 if trials >= 2 or not exact else 0)
    kept = exact.union(ranked[: int(most)] if most < len(ranked) else ranked)
    needed = math.ceil(spent + (num_trials(len(exact) + len(ranked)) + 1) * one / (60 * SEARCH_SHARE))
    why = f"{TOO_LITTLE_TIME} to measure its effect; --minutes {needed} would do"
    return tuple(
        each if each.refused or each.name in kept else dataclasses.replace(each, refused=why)
        for each in changes
    )


def _highest(change: ChangeValue, found: Measurement) -> float:
    """Returns the largest speedup of a change; infinite for a user's own, whose effect is asked for."""
    if change.name not in CHANGES:
        return math.inf
    ceiling = ceiling_of(CHANGES[change.name], change.value, found)
    return UNKNOWN_CEILING if ceiling is None else ceiling.ratio


def _helps(name: str, verdict: Bottleneck) -> bool:
    return name not in CHANGES or verdict in CHANGES[name].helps


def name_of(script: str) -> str:
    """Returns the name of a script's tune."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", script.rpartition("/")[2].removesuffix(".py")).strip("._-")
    return f"tune-{stem[:90] or 'script'}"


def _dimension(found: Dimension) -> dict[str, Any]:
    if found.choices:
        return {"type": "categorical", "choices": list(found.choices)}
    return {"type": "int", "low": found.low, "high": found.high, **({"log": True} if found.log else {})}
