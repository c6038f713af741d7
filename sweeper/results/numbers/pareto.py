"""Finds the Pareto front of several objectives, and picks one trial from it by a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from sweeper.core.record import TrialRecord
from sweeper.schema.sections import Objective

Rule = Literal["knee", "lowest_loss"]

NEAR_LOWEST = 0.02
"""A loss within this share of the lowest counts as equally low."""

RULES: Mapping[Rule, str] = {
    "knee": "the knee: the best balance of all objectives, each scaled from its worst to its best here",
    "lowest_loss": "the fastest of those whose loss is within 2% of the lowest",
}
"""The rules of `confirm.pick` in words."""


def pareto(records: Iterable[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Returns the feasible trials that no other one beats, by number.

    A trial beats another if it is at least as good in every objective and better in one; equal
    trials are all kept. A trial without one of the metrics is left out.

    Args:
        records: Trials of the same work (`TrialConfig.work_key`), so that their speeds are comparable.
    """
    placed = []
    for record in records:
        goodness = _goodness(record, objectives) if record.feasible else None
        if goodness is not None:
            placed.append((record, goodness))
    front = [record for record, mine in placed if not any(_beats(theirs, mine) for _, theirs in placed)]
    return sorted(front, key=lambda record: record.number)


def pick(front: Sequence[TrialRecord], objectives: Sequence[Objective], rule: Rule) -> TrialRecord | None:
    """Returns the trial that a rule of `confirm.pick` takes from a front; on a tie, the first.

    `knee`: each objective is scaled to [0, 1] over the front (1 is best), and the sum is highest. That
    is the point farthest from the line (or plane) through the extremes of the front, the knee of Das
    (1999), "On characterizing the knee of the Pareto curve".

    `lowest_loss`: the highest throughput among those whose val_loss is within 2% of the lowest.

    Returns:
        None if the front is empty or no trial has the metrics that the rule needs.
    """
    scores = _losses(front) if rule == "lowest_loss" else _knees(front, objectives)
    best = max(scores, key=lambda pair: (pair[0], -pair[1].number), default=None)
    return best[1] if best else None


def _goodness(record: TrialRecord, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Returns the objectives' values, signed so that more is better; None if one is absent."""
    values = []
    for objective in objectives:
        value = record.metric(objective.metric)
        if value is None:
            return None
        values.append(value if objective.direction == "maximize" else -value)
    return tuple(values)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def _knees(front: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[tuple[float, TrialRecord]]:
    pairs = [
        (goodness, record) for record in front if (goodness := _goodness(record, objectives)) is not None
    ]
    columns = list(zip(*(goodness for goodness, _ in pairs), strict=True))
    lows, spans = [min(column) for column in columns], [max(column) - min(column) for column in columns]
    scores = []
    for goodness, record in pairs:
        scaled = [(x - low) / (span or 1.0) for x, low, span in zip(goodness, lows, spans, strict=True)]
        # Rounded, so that sums which differ only in their last digits are ties.
        scores.append((round(sum(scaled), 9), record))
    return scores


def _losses(front: Sequence[TrialRecord]) -> list[tuple[float, TrialRecord]]:
    losses = [(loss, record) for record in front if (loss := record.metric("val_loss")) is not None]
    lowest = min((loss for loss, _ in losses), default=0.0)
    limit = lowest + NEAR_LOWEST * abs(lowest)
    return [(record.metric("throughput") or 0.0, record) for loss, record in losses if loss <= limit]
