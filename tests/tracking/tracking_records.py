"""A handful of trials as a sweep on a stocks pipeline would leave them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.job import Job, write_job, write_outcome
from sweeper.core.measurement import (
    Breakdown,
    DeviceInfo,
    Failure,
    FailureKind,
    Measurement,
    Quality,
    Stats,
    Window,
)
from sweeper.core.record import TrialRecord
from sweeper.tracking import Confirmation, Dataset, RunView, SweepInfo

FINISHED = 1_790_000_000.25
VARIED = (
    "batch_size",
    "loader.kind",
    "loader.num_workers",
    "loader.prefetch_factor",
    "precision.amp",
    "precision.tf32",
    "compile.mode",
    "model.hidden_size",
)
SWEEP = SweepInfo(
    name="stocks-a10",
    device="NVIDIA A10, 22.5 GiB",
    fingerprint="9f2c41d7",
    pipeline="pipelines.stocks",
    data="100 synthetic tables, 1.2 million rows, 64 features",
    synthetic=True,
    varied=VARIED,
    metrics=("throughput", "epoch_seconds", "val_loss", "gpu_util_pct", "gpu_mem_peak_gib", "cpu_util_pct"),
    dataset=Dataset(name="features", digest="0123456789abcdef", source="data/features"),
    provenance={"sweeper.version": "0.1.0", "mlflow.source.git.commit": 40 * "a", "sweeper.driver": ""},
    note="Winner: **trial 7**, 14.1 times the baseline (13.8 to 14.4, 95 %).",
)


def config(**changes: Scalar) -> TrialConfig:
    return TrialConfig(batch_size=64, model={"hidden_size": 64}).replace(
        {name.replace("__", "."): value for name, value in changes.items()}
    )


def measured(
    folder: Path,
    number: int = 7,
    *,
    throughput: float = 13037.587618,
    stage: str = "search",
    val_loss: float | None = 0.68123456,
    violations: Mapping[str, float] | None = None,
    points: int = 25,
    until: float = 509.0,
    series: tuple[str, ...] = ("cpu_util_pct", "gpu_util_pct", "gpu_power_w", "gpu_mem_gib"),
    changes: Mapping[str, Scalar] | None = None,
) -> TrialRecord:
    """A measured trial whose files are on disk; the last point of a series is not a number.

    Args:
        until: Where the series end; the windows end at 509.
    """
    end = FINISHED + 20 * number
    outcome = Measurement(
        throughput=throughput,
        step_ms=4.91,
        epoch_seconds=1.2e6 / throughput,
        train_samples=1_200_000,
        windows=tuple(
            Window(start_s=500.0 + 3 * i, seconds=3.0, steps=600, samples=int(3 * throughput) + i)
            for i in range(3)
        ),
        breakdown=Breakdown(data_s=0.0004, forward_s=0.002, backward_s=0.002, optimizer_s=0.0005),
        device=DeviceInfo(kind="cuda", name="NVIDIA A10", memory_gib=22.5),
        startup_seconds=0.05,
        first_step_seconds=0.8,
        warmup_seconds=1.5,
        warmup_steps=30,
        gpu_mem_peak_gib=1.25,
        host_mem_peak_gib=1.9,
        telemetry={"gpu_util_pct": Stats(mean=93.4, p50=95.0, p95=99.0)},
        finished_at=end,
    )
    record = TrialRecord(
        number=number,
        uid=f"stocks-a10/{number:04d}-5b1c",
        stage=stage,
        config=config(**(changes or {})),
        outcome=outcome,
        quality=val_loss
        and Quality(
            key="q",
            samples=64000,
            seconds=3.0,
            train_loss=0.7,
            val_loss=val_loss,
            metrics={"accuracy": 0.9123456},
        ),
        violations=violations or {},
        folder=str(_files(folder, number, outcome)),
    )
    columns = Path(record.folder) / "series"
    columns.mkdir(exist_ok=True)
    np.save(columns / "time_s.npy", np.linspace(498.0, until, points))
    rng = np.random.default_rng(number)
    for name in series:
        values = 90 + rng.normal(0, 3, points)
        values[-1] = np.nan
        np.save(columns / f"{name}.npy", values)
    return record


def failed(folder: Path, number: int = 8, kind: FailureKind = FailureKind.OOM) -> TrialRecord:
    outcome = Failure(
        kind=kind,
        message="CUDA out of memory: tried to allocate 9.4 GiB.",
        stage="warmup",
        seconds=4.5,
        finished_at=FINISHED + 20 * number,
    )
    return TrialRecord(
        number=number,
        uid=f"stocks-a10/{number:04d}-5b1c",
        stage="search",
        config=config(batch_size=4096, model__hidden_size=256),
        outcome=outcome,
        folder=str(_files(folder, number, outcome)),
    )


def _files(folder: Path, number: int, outcome: Measurement | Failure) -> Path:
    trial = folder / f"{number:04d}"
    write_job(trial, Job(uid=f"{number:04d}"))
    write_outcome(trial, outcome)
    (trial / "worker.log").write_text("epoch 1 of 1\n")
    return trial


def some_trials(folder: Path) -> list[tuple[TrialRecord, RunView]]:
    """A small sweep: baseline, reference, searched trials of every kind, and two confirmed ones."""
    base = 930.2
    workers = {"loader__kind": "workers", "loader__num_workers": 8, "precision__amp": "bf16"}
    resident = {"loader__kind": "resident", "precision__amp": "bf16", "precision__tf32": True}
    rows = {"loader__kind": "rows", "loader__num_workers": 4}
    wide = {"model__hidden_size": 256}

    def view(label: str, throughput: float = 0.0, **more: object) -> RunView:
        return RunView(label=label, speedup=throughput / base or None, **more)  # type: ignore[arg-type]

    def confirmed(throughput: float, ratio: float | None) -> Confirmation:
        spread = 0.02 * (ratio or 0)
        return Confirmation(
            throughput=throughput,
            ratio=ratio,
            ratio_low=ratio and ratio - spread,
            ratio_high=ratio and ratio + spread,
            rounds=tuple(throughput * (1 + 0.01 * i) for i in (-1, 0, 1, 0)),
        )

    def trial(number: int, throughput: float, changes: Mapping[str, Scalar], **more: object) -> TrialRecord:
        return measured(folder, number, throughput=throughput, changes=changes, **more)  # type: ignore[arg-type]

    return [
        (
            trial(0, base, rows, stage="baseline", val_loss=0.6791),
            view(
                "000 baseline",
                base,
                stage="baseline",
                verdict="input-bound",
                confirmation=confirmed(base, None),
            ),
        ),
        (
            trial(1, 811.0, rows | {"loader__num_workers": 40, "batch_size": 256}, stage="reference"),
            view("001 also tried bs256 w40", 811.0, stage="reference", verdict="input-bound"),
        ),
        (
            trial(2, 4120.0, workers | {"batch_size": 512}),
            view("002 bs512 w8 bf16 h64", 4120.0, verdict="transfer-bound"),
        ),
        (
            trial(3, 9120.0, resident | {"batch_size": 1024, "compile__mode": "reduce-overhead"}),
            view("003 bs1024 res bf16 h64 ro", 9120.0, stage="finalist", rank=3, verdict="launch-bound"),
        ),
        (
            trial(4, 12890.0, resident | {"batch_size": 2048} | wide),
            view(
                "004 bs2048 res bf16 h256",
                12890.0,
                stage="confirmed",
                rank=2,
                verdict="compute-bound",
                confirmation=confirmed(12700.0, 13.65),
            ),
        ),
        (
            trial(
                5, 15990.0, resident | {"batch_size": 4096}, violations={"val_loss": 0.03}, val_loss=0.7204
            ),
            view("005 bs4096 res bf16 h64", 15990.0, verdict="compute-bound"),
        ),
        (failed(folder, 6), view("006 bs4096 res fp32 h256")),
        (
            trial(7, 13037.587618, resident | {"batch_size": 2048, "compile__mode": "max-autotune"}),
            view(
                "007 bs2048 res bf16 h64 max",
                13037.587618,
                stage="confirmed",
                rank=1,
                verdict="compute-bound",
                confirmation=confirmed(13115.0, 14.1),
                note="The winner: 14.1 times the baseline.",
            ),
        ),
        (failed(folder, 8, FailureKind.TIMEOUT), view("008 bs64 w16 fp32 h64")),
    ]
