"""Gives the outcome of a trial as a word and a mark, the same in all tables and charts."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.core.record import TrialRecord
from sweeper.results.formatting import metric

OUTCOMES = {"good": "feasible", "beyond": "beyond a limit", "failed": "failed"}
"""The tones of outcomes and their meaning."""


def tone_of(record: TrialRecord) -> str:
    """Returns `good`, `beyond` or `failed`; empty for an unfinished trial."""
    if record.outcome is None:
        return ""
    if record.failure is not None:
        return "failed"
    return "good" if record.feasible else "beyond"


def outcome_of(record: TrialRecord) -> str:
    """Returns the outcome of a trial in a few words."""
    if record.failure is not None:
        return str(record.failure.kind)
    return "not finished" if record.outcome is None else "feasible" if record.feasible else "beyond a limit"


def why_not(record: TrialRecord) -> str:
    """Returns why a trial could not win; empty if it could."""
    if record.failure is not None:
        return record.failure.message
    over = [
        f"{name} {metric(name, value)} is {amount:.1%} beyond the limit"
        if (value := _value(record, name)) is not None
        else f"{name} is beyond the limit"
        for name, amount in record.violations.items()
        if amount > 0
    ]
    return "; ".join(over)


def _value(record: TrialRecord, name: str) -> float | None:
    return record.metric(name)


def pick_evenly(records: Sequence[TrialRecord], max_records: int) -> Sequence[TrialRecord]:
    """Returns at most `max_records` records, evenly spaced and in order."""
    if len(records) <= max_records:
        return records
    return [records[i * len(records) // max_records] for i in range(max_records)]
