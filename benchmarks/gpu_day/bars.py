"""Call 3: the figures that have a bar on a GPU, and how much two runs of the same thing differ."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import telemetry as telemetry_benchmark
import torch
import trainer
from common import Figure, spread
from verdicts import SHORT, Bench

from gpu_day import bottlenecks
from gpu_day.jobs import TOUCH
from gpu_day.steps import Day, FailedError, count_of
from sweeper.analysis.bottleneck import verdict_on
from sweeper.analysis.intervals import interval
from sweeper.analysis.rounds import Round, log_ratios
from sweeper.analysis.trial_card import trial_card
from sweeper.core.job import PROBE_RUNNER, Job, MeasurePlan, write_job
from sweeper.core.measurement import Report
from sweeper.execution.local import LocalLauncher
from sweeper.telemetry.nvml.probe import full_uuid

NO_OPS = 20
SAME_ROUNDS, TF32_ROUNDS = 8, 4
SHORT_PLAN = MeasurePlan(window_seconds=0.5, repeats=1, warmup_cap_seconds=2, diagnose=False)
"""Of trials that are compared round by round: more rounds tell more than longer windows."""
TF32: Mapping[int, Any] = {0: "default", 1: True, 2: False}
KNOWN_RUNS = 3
PAIRS = 25
SAME: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LSTM eager": ("lstm", {"batch_size": 256}),
    "MLP graph": ("pipelines.tabular", {"batch_size": 512, "compile.mode": "graph"}),
}
PARTS = (
    ("until its code runs", "submitted", "entered"),
    ("initialising CUDA", "entered", "initialised"),
    ("the first kernel", "initialised", "used"),
    ("ending, and telling", "used", "told"),
)
"""Of a trial that does nothing: a part's name, and the two moments it lies between."""


def _shorten(day: Day) -> None:
    """Cuts benchmarks/trainer.py to what fits into a call; in a rehearsal, to next to nothing."""
    trainer.ROUNDS, trainer.TRIALS, trainer.COLD = 13, 5, 1
    if day.rehearse:
        trainer.ROUNDS, trainer.TRIALS, trainer.BLOCK_SECONDS = 2, 1, 0.02
        trainer.PLAN = replace(SHORT_PLAN, window_seconds=0.1, warmup_cap_seconds=0.3)


def _of_trainer(part: str, day: Day) -> str:
    """Runs a part of benchmarks/trainer.py."""
    torch.set_num_threads(1)
    _shorten(day)
    figures = getattr(trainer, part)()
    for each in figures:
        day.figure("trainer", each)
    missed = [each.figure for each in figures if each.met is False]
    return f"{len(figures)} figures; missed: {', '.join(missed) or 'none'}"


mlp = functools.partial(_of_trainer, "mlp")
lstm = functools.partial(_of_trainer, "lstm")
rows = functools.partial(_of_trainer, "rows")
hand = functools.partial(_of_trainer, "hand")
buckets = functools.partial(_of_trainer, "buckets")
breakdown = functools.partial(_of_trainer, "breakdown")
caches = functools.partial(_of_trainer, "caches")


def overhead(day: Day) -> str:
    """Times trials that do nothing but use the device once, and says where the time goes."""
    found: dict[str, list[float]] = {name: [] for name in ("in all", *(part[0] for part in PARTS))}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        launcher = LocalLauncher(root)
        with contextlib.closing(launcher):
            probe = _reported(launcher, root / "probe", Job(uid="probe", runner=PROBE_RUNNER, device="auto"))
            uuid = str(probe.values["devices"][0]["uuid"])
            device = full_uuid(uuid) if uuid else "cpu"
            for number in range(4 if day.rehearse else NO_OPS + 1):
                at = {"submitted": time.monotonic()}
                job = Job(uid=str(number), runner=TOUCH, device=device, plan=MeasurePlan(repeats=1))
                at |= _reported(launcher, root / str(number), job).values["at"]
                at["told"] = time.monotonic()
                if number == 0:
                    continue  # The first one warms up the machine's caches.
                found["in all"].append(1e3 * (at["told"] - at["submitted"]))
                for name, begin, end in PARTS:
                    found[name].append(1e3 * (at[end] - at[begin]))
    for name, each in found.items():
        bar = "<= 600" if name == "in all" else ""
        title = f"no-op trial that uses the device, {name}"
        day.figure("overhead", replace(spread(each), figure=title, unit="ms", bar=bar))
    return "; ".join(f"{name} {statistics.median(each):.0f} ms" for name, each in found.items())


def _reported(launcher: LocalLauncher, folder: Path, job: Job) -> Report:
    write_job(folder, job)
    found = launcher.submit(folder).result()
    if not isinstance(found, Report):
        raise FailedError(f"{job.runner}: {found}")
    return found


def _interleaved(
    day: Day, pipeline: str, contenders: Mapping[int, Mapping[str, Any]], rounds: int, end: float
) -> list[Round]:
    """Returns throughputs of fresh processes in turns, round by round in random order.

    Args:
        end: Seconds that are to be left of the step's time: no round begins that could go beyond.
    """
    found: list[Round] = []
    longest = 0.0
    with trainer.trials(pipeline) as run:
        for number in range(rounds):
            if number >= 2 and day.left() - longest < end:
                break
            began = time.monotonic()
            order = random.Random(number).sample(list(contenders), len(contenders))
            found.append({key: run(contenders[key]).throughput for key in order})
            longest = max(longest, time.monotonic() - began)
    return found


def _ratio(found: Sequence[Round], over: int, under: int, title: str) -> Figure:
    mean, low, high = (math.exp(each) for each in interval(log_ratios(found, over, under)))
    return Figure(figure=title, value=mean, low=low, high=high, unit="x", repeats=len(found))


def same_twice(day: Day) -> str:
    """Measures the same configuration twice: what is not 1 is noise, and no difference below it is one."""
    trainer.PLAN = SHORT_PLAN
    _shorten(day)
    said = []
    for place, (title, (pipeline, changes)) in enumerate(SAME.items(), 1):
        if day.rehearse:
            changes = {**changes, "compile.mode": "eager"}
        end = day.left() * (1 - place / len(SAME)) + 5
        rounds = 2 if day.rehearse else SAME_ROUNDS
        found = _ratio(
            _interleaved(day, pipeline, {0: changes, 1: changes}, rounds, end), 1, 0, f"A/A, {title}"
        )
        day.figure("gpu", found)
        said.append(f"{title} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")
    return "; ".join(said)


def tf32(day: Day) -> str:
    """Measures fp32 with TF32 on and off against torch as it comes."""
    trainer.PLAN = SHORT_PLAN
    _shorten(day)
    said = []
    for place, (title, pipeline) in enumerate((("LSTM", "lstm"), ("CNN", "images")), 1):
        contenders = {key: {"batch_size": 256, "precision.tf32": value} for key, value in TF32.items()}
        end = day.left() * (1 - place / 2) + 5
        found = _interleaved(day, pipeline, contenders, 2 if day.rehearse else TF32_ROUNDS, end)
        for key, name in ((1, "on"), (2, "off")):
            figure = _ratio(found, key, 0, f"{title} fp32, TF32 {name} / torch's default")
            day.figure("gpu", figure)
            said.append(f"{title} {name} {figure.value:.3f}")
    return "; ".join(said)


def telemetry(day: Day) -> str:
    """Measures what telemetry costs the training that it watches."""
    telemetry_benchmark.PAIRS = 2 if day.rehearse else PAIRS
    telemetry_benchmark.READINGS = 10 if day.rehearse else 100
    cost = spread(telemetry_benchmark.costs(os.sched_getaffinity(0)))
    title = "telemetry's cost on all cores"
    day.figure("telemetry", replace(cost, figure=title, bar="<= 1", unit="%", noisy=True))
    host = spread(telemetry_benchmark.reading_ms())
    day.figure("telemetry", replace(host, figure="a reading of the host", unit="ms"))
    return f"{cost.value:.2f} % [{cost.low:.2f}, {cost.high:.2f}]"


def verdicts(day: Day) -> str:
    """Runs trainings whose bottleneck is known and counts how often it is named."""
    right = dict.fromkeys(bottlenecks.KINDS, 0)
    runs = 1 if day.rehearse else KNOWN_RUNS
    plan: MeasurePlan = replace(SHORT, warmup_cap_seconds=1.0 if day.rehearse else 3.0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            template = bench.prepared(bottlenecks.__name__, {})
            for kind, (expected, changes) in list(bottlenecks.KINDS.items()) * runs:
                small = {"model.scale": 64, "batch_size": 64} if day.rehearse else {}
                record = bench.trial(template, {**changes, "model.kind": kind, **small}, plan)
                named = verdict.kind if (verdict := verdict_on(record)) else None
                right[kind] += named == expected
                lines = list(trial_card(record)) if record.measurement else [str(record.outcome)]
                day.found(kind="verdict", of=kind, named=named, right=named == expected, card=lines)
                print(kind, *lines, sep="\n  ")
    for kind, count in right.items():
        count_of(day, "verdicts", f"{bottlenecks.KINDS[kind][0]} named, of {runs}", count, f">= {runs}")
    return ", ".join(f"{kind} {count} of {runs}" for kind, count in right.items())
