"""Call 4: each guide's before, after and winner on this GPU, and cells of the LSTM surface."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import guides
import surfaces
from recorded.surfaces import CORRECT, processes_of
from verdicts import Bench

from gpu_day.alive import PIPELINES
from gpu_day.steps import Day
from sweeper.core.job import MeasurePlan

SEARCH = {"minutes": 0.75, "patience": 15, "trials": 60, "seed": 0}
MEASURE = {
    "window_seconds": 0.4,
    "repeats": 2,
    "quality_samples": 20_000,
    "warmup_cap_seconds": 3.0,
    "reference_cap_seconds": 3.0,
    "trace": False,
}
MODES = ["eager", "graph"]
"""What torch compiles takes longer than a whole ladder may."""
ROUNDS = 3
PLAN = MeasurePlan(window_seconds=0.5, repeats=2, warmup_cap_seconds=3.0, cap_seconds=5.0)
REHEARSED_PLAN = MeasurePlan(window_seconds=0.1, repeats=1, warmup_cap_seconds=0.5, diagnose=False)
REHEARSED_MEASURE = {
    "window_seconds": 0.1,
    "repeats": 1,
    "quality_samples": 0,
    "warmup_cap_seconds": 0.5,
    "reference_cap_seconds": 1.0,
}
SURFACE = "lstm"
RESERVE_SECONDS = 15.0
"""For the cell that runs when the time is up."""


def _ladder(workload: str, day: Day) -> str:
    """Sweeps a guide's workload at the before's model size, and lets before, after and winner take turns."""
    case = next(guides.cases(workload))
    guides.PLAN, guides.ROUNDS = (REHEARSED_PLAN, 2) if day.rehearse else (PLAN, ROUNDS)
    space = _small(workload, _short(case.space)) if day.rehearse else _short(case.space)
    case = replace(case, space=space)
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        guides.HOME = Path(folder)
        for each in guides.figures_of(case):
            day.figure("guides", each)
            if each.unit == "/s":
                speeds[each.figure.rpartition(": ")[2]] = each.value
    said = [f"{name} {speed:,.0f}/s" for name, speed in speeds.items()]
    return ", ".join(said) or "the sweep found nothing that is faster than before"


def _short(space: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the space for a sweep of a minute, whose winner is what was fastest in the search."""
    modes = {"compile.mode": {"type": "categorical", "choices": MODES}}
    return {
        **space,
        "space": {**space["space"], **modes},
        "measure": {**space["measure"], **MEASURE},
        "search": {**space["search"], **SEARCH},
        "confirm": {"top": 1, "rounds": 0},
    }


def _small(workload: str, space: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the space with little data, two batch sizes and no loader processes."""
    data, common = PIPELINES[workload]
    batch = common["batch_size"]
    return {
        **space,
        "data": {**space["data"], **data},
        "space": {"batch_size": {"type": "categorical", "choices": [batch, 2 * batch]}},
        "fix": {**space["fix"], "loader.kind": "resident"},
        "baseline": {**space["baseline"], "loader.num_workers": 0},
        "also_try": [{**each, "loader.num_workers": 0} for each in space["also_try"][:1]],
        "measure": {**space["measure"], **REHEARSED_MEASURE},
        "search": {**space["search"], "minutes": 1.5, "trials": 1},
        "constraints": {},
    }


kuairand = functools.partial(_ladder, "kuairand")
sequence = functools.partial(_ladder, "sequence")
behaviour = functools.partial(_ladder, "behaviour")
stocks = functools.partial(_ladder, "stocks")
sign_language = functools.partial(_ladder, "sign_language")


def surface(day: Day) -> str:
    """Measures cells of the LSTM surface in a shuffled order until the time is up."""
    surfaces.MINUTES = (10.0 if day.rehearse else day.left() - RESERVE_SECONDS) / 60
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            surfaces.measure(bench, day.out, SURFACE, 1)
    cells = list(processes_of(day.out / f"{SURFACE}.jsonl"))
    measured = sum(cell.invalidity == CORRECT for cell in cells)
    return f"{measured} of {len(cells)} cells were measured"
