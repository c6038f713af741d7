"""What mattered in a sweep: importance and sensitivity as a table, a line and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from sweeper.analysis.sensitivity import Sensitivity, sensitivity, terrain
from sweeper.analysis.summary import Summary
from sweeper.core.codec import encode
from sweeper.core.record import rounded
from sweeper.search.importance import importance
from sweeper.sweep.loading import LoadedSweep
from sweeper.sweep.setup import with_enough_steps

MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Mattered:
    """What decided the speed of a sweep's trials, and what moving the winner costs.

    Attributes:
        importance: Share by parameter, most important first; empty where too little was tried.
        sensitivity: Empty where there is no winner.
    """

    importance: Mapping[str, float]
    sensitivity: tuple[Sensitivity, ...]


def mattered(sweep: LoadedSweep, summary: Summary) -> Mattered:
    """Returns what mattered in a sweep, as its folder has it."""
    spec = sweep.spec
    if sweep.table.quality_samples:
        # What the search could not ask for is no neighbour.
        spec, _ = with_enough_steps(spec, sweep.table.quality_samples)
    beside = sensitivity(summary.winner, summary.records, spec) if summary.winner else ()
    return Mattered(importance(sweep.spec, sweep.table.results), beside)


def matters_json(found: Mattered) -> dict[str, Any]:
    """Returns `importance` (shares by name) and `sensitivity` (name, value, ratio, how)."""
    beside = [{**encode(each), "ratio": rounded(each.ratio, 4)} for each in found.sensitivity]
    shares = {name: rounded(share, 4) for name, share in found.importance.items()}
    return {"importance": shares, "sensitivity": beside}


def matters_line(found: Mattered) -> str:
    """Returns both in a line or two; empty where nothing is known."""
    said = []
    if found.importance:
        first = list(found.importance.items())[:2]
        most = ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in first)
        said.append(f"What mattered most: {most}.")
    said.append(_ground(found))
    return " ".join(filter(None, said))


def _ground(found: Mattered) -> str:
    """Whether the winner is on a plateau or a peak; empty where no number is beside it."""
    ground = terrain(found.sensitivity)
    if ground is None:
        return ""
    worst = ground.costliest
    if ground.word == "plateau":
        # Upwards: it is a bound.
        most = math.ceil(100 * max(0.0, 1 - worst.ratio) - 1e-9)
        return f"The winner is on a plateau: no neighbouring number costs more than {most} %."
    return f"The winner is on a peak: {worst.name} at {worst.value} {_cost(worst)}."


def _cost(each: Sensitivity) -> str:
    if not each.ratio:
        return "does not run or breaks a limit"
    about = "about " if each.how == "predicted" else ""
    lost = round(100 * (1 - each.ratio))
    return f"costs {about}{lost} %" if lost > 0 else "costs nothing"


def matters(found: Mattered) -> list[Table | Text]:
    """Returns a table of parameters, and what the winner stands on; empty where nothing is known."""
    if not found.importance and not found.sensitivity:
        return []
    said = _ground(found)
    return [_table(found), *([Text(said)] if said else [])]


def _table(found: Mattered) -> Table:
    made = Table(title="What matters", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column("")
    made.add_column("importance", justify="right")
    made.add_column("beside the winner's value")
    for name in dict.fromkeys([*found.importance, *(each.name for each in found.sensitivity)]):
        share = found.importance.get(name)
        beside = [each for each in found.sensitivity if each.name == name]
        shown = [f"{_shown(each.value)} {_cost(each)}" for each in beside[:MOST_SHOWN]]
        more = ["..."] if len(beside) > MOST_SHOWN else []
        made.add_row(name, "–" if share is None else f"{100 * share:.0f} %", "; ".join(shown + more) or "–")
    if any(each.how == "predicted" for each in found.sensitivity):
        made.caption, made.caption_justify = "about: predicted from all trials", "left"
    return made


def _shown(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )
