"""Says what the marks and titles in a table of trials mean."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.analysis.summary import Row, Summary


def of_one_seed(summary: Summary, name: str) -> str:
    """Returns what the title of a column of metrics says about seeds."""
    yardstick = summary.yardstick
    has_means = yardstick is not None and len(yardstick.losses) > 1
    return " (one seed)" if has_means and name == "val_loss" else ""


def marks(rows: Sequence[Row]) -> list[str]:
    """Returns what the marks in a table of trials mean."""
    notes = ["* confirmed in interleaved rounds"] if any(row.confirmed for row in rows) else []
    notes += ["~ timings stayed disturbed"] if any(row.disturbed for row in rows) else []
    return notes + (["^ loss of one seed"] if any(row.is_one_seed for row in rows) else [])
