"""A finished sweep of many trials, written as a supervisor would leave it; nothing runs."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measurements import GPU, measurement, series
from replays import SPEC

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import CONFIG, OUTCOME, SCHEMA, SERIES, Job, MeasurePlan
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Quality, Report
from sweeper.core.record import SearchResult
from sweeper.race.log import Ended, Started, Turned
from sweeper.race.storage import StoredLog
from sweeper.results.numbers.confirmation import choose_winner, ratios
from sweeper.schema import SweepSpec
from sweeper.search.distributions import distribution, draw_value
from sweeper.sweep.folder.journal import FINAL_RACE, RESULT, SEARCH_RESULT, Journal, sweeps_folder

QUALITY_SAMPLES = 60_000
STARTED = 1_790_000_000.0
FAILURES = {FailureKind.OOM: "CUDA out of memory: tried to allocate 9.4 GiB", FailureKind.TIMEOUT: "600 s"}
CHANGES: Mapping[str, Any] = {
    "space": {
        "batch_size": {"type": "int", "low": 64, "high": 4096, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 16, "when": {"loader.kind": "workers"}},
        "loader.prefetch_factor": {
            "type": "categorical",
            "choices": [2, 4, 8],
            "when": {"loader.num_workers": {"min": 1}},
        },
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]},
        "precision.tf32": {"type": "categorical", "choices": [True, False]},
        "compile.mode": {"type": "categorical", "choices": ["eager", "default", "reduce-overhead", "graph"]},
        "model.hidden_size": {"type": "categorical", "choices": [64, 128, 256]},
    },
    "baseline": {
        "loader.kind": "rows",
        "loader.num_workers": 4,
        "batch_size": 64,
        "model.hidden_size": 64,
        "precision.tf32": False,
    },
    "also_try": [],
    "production": {"samples": 2e9},
}


def write_sweep(
    home: Path,
    name: str = "thousand",
    *,
    trials: int = 1000,
    faster: float = 1.0,
    device: str = "NVIDIA A10, 22.5 GiB",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    with_series: bool = True,
    rounds: int = 8,
) -> Journal:
    """Writes a finished sweep of `trials` trials, the baseline among them.

    Args:
        faster: By what all but the baseline is.
        seed: Of the noise; what is asked for is the same.
        changes: Other keys of the specification; None takes one away.
        rounds: Of confirmation.
    """
    asked, noise = random.Random(0), random.Random(f"noise {seed}")
    tree = {**SPEC, **CHANGES, "name": name, "search": {"trials": max(1, trials - 1)}, **(changes or {})}
    spec = SweepSpec.from_dict({key: value for key, value in tree.items() if value is not None})
    journal = Journal(sweeps_folder(home) / name)
    journal.folder.mkdir(parents=True)
    document = spec.to_dict()
    parts = ("space", "fix", "baseline", "objectives", "constraints", "pipeline", "command", "measure")
    fingerprint = {key: document[key] for key in parts if key in document}
    fingerprint |= {
        "device": device,
        "code": "51d2",
        "torch": "2.9.0",
        "data": {"options": {}, "files": "8f2c"},
    }
    journal.begin(spec, fingerprint, {"device": device, "synthetic": False, "notes": []})
    baseline = spec.baseline_config()
    for i in range(3):
        quality = _quality(baseline, noise)
        _write(journal.setup_folder(f"loss-{i}"), baseline, Report(values=encode(quality)), "setup")
    speeds: dict[int, float] = {}
    configs: dict[int, TrialConfig] = {}
    for number, params in enumerate([{}, *_drawn(spec, asked, trials - 1)]):
        config = spec.config(params) if params else baseline
        true = _speed(config) * (faster if number else 1.0)
        speed = true * noise.gauss(1, 0.01)
        outcome = _outcome(config, speed, number, noise)
        folder = journal.trial_folder(number)
        _write(folder, config, outcome, "search" if number else "baseline", params, number)
        if params:
            measured = isinstance(outcome, Measurement)
            told = SearchResult(
                params=params,
                values=(speed if measured else 50.0,),
                constraints={"ran": 0.0 if measured else 1.0, "val_loss": 0.0 if measured else 1.0},
            )
            (folder / SEARCH_RESULT).write_text(json.dumps(encode(told)))
        if with_series:
            _write_series(folder, noise)
        if isinstance(outcome, Measurement) and config.work_key() == baseline.work_key():
            speeds[number], configs[number] = true, config
    best = sorted(speeds, key=lambda number: -speeds[number])[:3]
    speeds_of = [{n: speeds[n] * noise.gauss(1, 0.02) for n in (0, *best)} for _ in range(rounds)]
    _write_race(journal.race_log(FINAL_RACE), speeds_of)
    raced = journal.rounds(FINAL_RACE)
    decision = choose_winner(raced, configs)
    result = {
        "search_end": f"all {trials - 1} trials are done",
        "winner": decision.winner,
        "ties": list(decision.ties),
        "infeasible": [],
        "ratios": encode(ratios(raced)),
        "race_end": "the intervals are narrow enough",
        "disturbances": {str(n): 0 for n in (0, *best)},
    }
    (journal.folder / RESULT).write_text(json.dumps(result))
    return journal


def _write_race(path: Path, speeds: Sequence[Mapping[int, float]]) -> None:
    """Writes the log of a race whose processes took a turn of a second each."""
    log, life = StoredLog(path), 0
    for number, one in enumerate(speeds):
        for arm, speed in one.items():
            log.append(Started(life, arm, life + 0.5, 0.5, number))
            log.append(Turned(life, life + 1.0, 1.0, 100, speed))
            log.append(Ended(life, life + 1.0))
            life += 1


def _drawn(spec: SweepSpec, rng: random.Random, count: int) -> list[dict[str, Any]]:
    """So many different configurations of the space."""
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        params = {name: draw_value(distribution(parameter), rng) for name, parameter in spec.space.items()}
        found.setdefault(spec.config(params).key(), params)
    return list(found.values())


def _speed(config: TrialConfig) -> float:
    kind = {"rows": 0.1, "workers": 0.5 + 0.05 * config.loader.num_workers, "resident": 1.0}
    amp = {"fp32": 1.0, "bf16": 1.6, "fp16": 1.5}[config.precision.amp]
    mode = {"eager": 1.0, "graph": 1.5}.get(config.compile.mode, 1.2)
    width = int(config.model.get("hidden_size") or 64)
    batch = math.sqrt(config.batch_size / 4096)
    return 1e5 * kind[config.loader.kind] * amp * mode * batch * (64 / width)


def _quality(config: TrialConfig, noise: random.Random) -> Quality:
    value = 0.42 * noise.gauss(1, 0.001)
    return Quality(
        key=f"{config.quality_key()}-{QUALITY_SAMPLES}",
        samples=QUALITY_SAMPLES,
        seconds=1.0,
        train_loss=value,
        val_loss=value,
        constant_loss=0.7,
        metrics={"accuracy": 1 - value},
        curve=tuple((QUALITY_SAMPLES * (i + 1) // 8, value * (2 - (i + 1) / 8)) for i in range(8)),
    )


def _outcome(config: TrialConfig, speed: float, number: int, noise: random.Random) -> Outcome:
    finished_at = STARTED + 6 * number
    if number and noise.random() < 0.06:
        kind = noise.choice(list(FAILURES))
        return Failure(
            kind=kind, message=FAILURES[kind], stage="warmup", seconds=4.5, finished_at=finished_at
        )
    step = config.batch_size / speed
    found = measurement(
        gpu=True,
        data=0.6 if config.loader.kind == "rows" else 0.1,
        memory=0.4,
        idle=0.2,
        issue=0.3,
        fits_device=True,
        telemetry={"gpu_util_pct": 80.0},
    )
    parts = {part.name: getattr(found.breakdown, part.name) for part in dataclasses.fields(found.breakdown)}
    scale = step / found.breakdown.step_s
    return dataclasses.replace(
        found,
        throughput=speed,
        step_ms=1e3 * step,
        epoch_seconds=1e6 / speed,
        train_samples=1_000_000,
        breakdown=dataclasses.replace(found.breakdown, **{k: v * scale for k, v in parts.items()}),
        quality=_quality(config, noise),
        telemetry={name: series(50 + noise.random()) for name in _TELEMETRY},
        versions={"torch": "2.9.0", "cuda": "12.8", "driver": "570.1"},
        device=GPU,
        finished_at=finished_at,
    )


_TELEMETRY = (
    "gpu_util_pct",
    "gpu_sm_active_pct",
    "gpu_power_w",
    "gpu_mem_gib",
    "gpu_clock_mhz",
    "cpu_util_pct",
    "cpu_max_core_pct",
    "tree_cpu_pct",
    "loader_cpu_pct",
    "host_mem_used_gib",
    "shm_free_gib",
    "disk_read_mib_s",
)


def _write(
    folder: Path,
    config: TrialConfig,
    outcome: Outcome | Report,
    stage: str,
    params: Mapping[str, Any] | None = None,
    number: int = 0,
) -> None:
    """As `write_job` and `write_outcome` do, but for waiting for the disk."""
    folder.mkdir(parents=True)
    job = Job(
        uid=f"{folder.parent.parent.name}/{number:04d}",
        pipeline="toy_pipeline",
        config=config,
        plan=MeasurePlan(quality_samples=QUALITY_SAMPLES),
        device="GPU-1",
        stage=stage,
        params=params or {},
        created_at=STARTED + 6 * number - 5,
    )
    kind = type(outcome).__name__.lower()
    (folder / CONFIG).write_text(json.dumps({"schema": SCHEMA, **encode(job)}, indent=1))
    (folder / OUTCOME).write_text(json.dumps({"schema": SCHEMA, "type": kind, **encode(outcome)}, indent=1))


def _write_series(folder: Path, noise: random.Random) -> None:
    (folder / SERIES).mkdir()
    time_s = np.linspace(99.0, 104.0, 21)
    np.save(folder / SERIES / "time_s.npy", time_s)
    for name in ("gpu_util_pct", "gpu_power_w", "cpu_util_pct"):
        np.save(folder / SERIES / f"{name}.npy", 80 + 5 * np.sin(time_s + noise.random()))
