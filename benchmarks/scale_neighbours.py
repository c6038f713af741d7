"""How much a neighbour on the other slot of a machine slows a trial, and what a sweep decides then.

python benchmarks/scale.py neighbours            writes benchmarks/results/<device>/scale.json

Two slots stand for two GPUs: each has its share of the cores. In turn, a trial runs alone on the first slot,
and the same trial on both at once, in fresh processes. For contrast, both also run on all cores.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Figure
from verdicts import Bench

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan, read_outcome
from sweeper.core.measurement import Measurement
from sweeper.sweep.job_runner import JobRunner, Slot
from sweeper.sweep.phases.interference import MIN_RATIO, WARMUP_SECONDS, WINDOW_SECONDS, Interference
from sweeper.system.cpu_shares import shares

ROUNDS, MAX_TRIES = 12, 3
OTHERS = "other processes took cores"
PLAN = MeasurePlan(
    window_seconds=WINDOW_SECONDS,
    repeats=1,
    warmup_cap_seconds=WARMUP_SECONDS,
    cap_seconds=1.5 * WINDOW_SECONDS,
    diagnose=False,
)
TRIALS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "compute-bound": ("pipelines.stocks", {"loader.kind": "resident", "batch_size": 256}),
    "loader-heavy": (
        "pipelines.tabular",
        {"loader.kind": "rows", "loader.num_workers": 1, "batch_size": 256},
    ),
}


def run(bench: Bench, job: Job, slots: Sequence[Slot]) -> list[Measurement]:
    """Returns the measurements of the same job on each of `slots` at once."""
    runner = JobRunner(bench.launcher, slots, lambda: None)
    folders = [bench.folder / f"{next(bench.count)}" for _ in slots]
    for place, folder in enumerate(folders):
        runner.start(place, folder, job)
    while runner.running:
        list(runner.wait())
    outcomes = [read_outcome(folder) for folder in folders]
    measurements = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    assert len(measurements) == len(slots), outcomes
    return measurements


def measured(bench: Bench, job: Job, cpus: Sequence[tuple[int, ...]]) -> Interference:
    """Returns the result of rounds of one alone and both at once, with alternating order.

    Rounds in which a third process took cores from a trial are run again: a neighbour has its own cores.
    """
    slots = [Slot("cpu", cores) for cores in cpus]
    rounds: list[tuple[float, ...]] = []
    for index in range(MAX_TRIES * ROUNDS):
        counts = sorted((1, len(slots)), reverse=bool(index % 2))
        by_count = {count: run(bench, job, slots[:count]) for count in counts}
        processes = [*by_count[1], *by_count[len(slots)]]
        if all(cpus) and any(OTHERS in process.contamination for process in processes):
            continue
        rounds.append(tuple(process.throughput for process in processes))
        if len(rounds) == ROUNDS:
            break
    print(f"{len(rounds)} undisturbed rounds of {index + 1}")
    return Interference(slots=len(slots), rounds=tuple(rounds))


def neighbours() -> Iterator[Figure]:
    """Yields throughput with a neighbour over that alone, and whether a sweep lets both run at once."""
    if len(os.sched_getaffinity(0)) < 2:
        print("neighbours: left out, there is one core only")
        return
    split = shares([(), ()])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        plan = dataclasses.replace(PLAN, quiet_canary_ms=bench.canary_ms)
        for name, (pipeline, changes) in TRIALS.items():
            template = bench.prepared(pipeline, {})
            job = dataclasses.replace(template, config=TrialConfig().replace(dict(changes)), plan=plan)
            interference = measured(bench, job, split)
            print(f"{name}: {interference.line}")
            # If they disturb each other, sweeper runs them one at a time, and there is no bar.
            bar = "" if interference.disturbs else f">= {MIN_RATIO}"
            yield _figure(interference, f"trial beside a neighbour / alone, {name}, cores split", bar)
            decided = float(not interference.disturbs)
            yield Figure(
                figure=f"the tool runs both at once, {name}",
                value=decided,
                low=decided,
                high=decided,
                repeats=1,
            )
            if name == "compute-bound":
                yield _figure(measured(bench, job, [(), ()]), f"the same, {name}, both on all cores")
        bench.launcher.close()


def _figure(interference: Interference, name: str, bar: str = "") -> Figure:
    worst = interference.worst
    print(
        f"{name}: half-width {50 * (worst.high - worst.low):.2f} points of {len(interference.rounds)} rounds"
    )
    assert math.isfinite(worst.high)
    return Figure(
        figure=name,
        value=worst.ratio,
        low=worst.low,
        high=worst.high,
        bar=bar,
        unit="x",
        repeats=len(interference.rounds),
    )
