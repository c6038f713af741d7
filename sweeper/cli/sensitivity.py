"""Prints the cost of moving the winner: as a table, one line or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from sweeper.core.codec import encode
from sweeper.core.metrics import round_to
from sweeper.results import words
from sweeper.results.numbers.sensitivity import Sensitivity, by_parameter, terrain

MAX_NAMED = 2


def sensitivity_json(sensitivities: Sequence[Sensitivity]) -> list[dict[str, Any]]:
    """Returns `name`, `value`, `ratio` and `how` of each neighbour of the winner."""
    return [{**encode(neighbour), "ratio": round_to(neighbour.ratio, 4)} for neighbour in sensitivities]


def sensitivity_line(sensitivities: Sequence[Sensitivity]) -> str:
    """Returns what mattered most and whether the winner is on a plateau; empty if unknown."""
    ran = by_parameter([neighbour for neighbour in sensitivities if neighbour.ratio])
    expensive = [min(near, key=lambda neighbour: neighbour.ratio) for near in ran.values()]
    costly = (one for one in expensive if round(100 * (1 - one.ratio)) > 0)
    named = [f"{one.name} ({_value_text(one.value)} {words.cost(one)})" for one in costly]
    first = f"What mattered most: {', '.join(named[:MAX_NAMED])}." if named else ""
    return " ".join(filter(None, [first, _ground(sensitivities)]))


def _ground(sensitivities: Sequence[Sensitivity]) -> str:
    """Returns whether the winner is on a plateau or a peak; empty without numeric neighbours."""
    ground = terrain(sensitivities)
    if ground is None:
        return ""
    worst = ground.costliest
    if ground.word == "plateau":
        # Rounded up, because it is a bound.
        max_percent = math.ceil(100 * max(0.0, 1 - worst.ratio) - 1e-9)
        return f"The winner is on a plateau: no neighbouring number costs more than {max_percent}%."
    return f"The winner is on a peak: {worst.name} at {worst.value} {words.cost(worst)}."


def sensitivity_table(sensitivities: Sequence[Sensitivity]) -> list[Table | str]:
    """Returns a table of parameters and a line on plateau or peak; empty if unknown."""
    if not sensitivities:
        return []
    table = Table(title="What matters", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("vs the winner's value")
    for name, near in by_parameter(sensitivities).items():
        table.add_row(name, words.costs(near, _value_text))
    if any(neighbour.how == "predicted" for neighbour in sensitivities):
        table.caption, table.caption_justify = "about: predicted from all trials", "left"
    line = _ground(sensitivities)
    return [table, *([line] if line else [])]


def _value_text(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )
