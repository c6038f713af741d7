"""Sweeps on real clusters and with real services, disturbed in the middle, and what is wrong at the end.

python benchmarks/scale.py slurm|dask|ray|services     writes benchmarks/results/<device>/scale.json

They need what `make services` installs. Workers are processes of one machine, with simulated GPUs.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import Figure

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "execution")]


def slurm() -> Iterator[Figure]:
    """Forty trials on eight jobs: two cancelled, one requeued, a worker and the supervisor killed."""
    from services.disturbing import on_slurm
    from services.slurm import cluster

    with cluster() as made, tempfile.TemporaryDirectory() as folder:
        survived = on_slurm(made, Path(folder), trials=40, jobs=8)
        yield from _told("SLURM", survived, devices=8)
        yield _exactly("SLURM: jobs left in the queue", len(made.squeue()), "<= 0")


def dask() -> Iterator[Figure]:
    """Forty trials on four workers: one killed, one joined, the supervisor killed."""
    from services.disturbing import on_dask

    with tempfile.TemporaryDirectory() as folder:
        yield from _told("Dask", on_dask(Path(folder), trials=40, workers=4), devices=4)


def ray() -> Iterator[Figure]:
    """Forty trials on two nodes: one killed, one joined, the supervisor killed."""
    from services.disturbing import on_ray

    with tempfile.TemporaryDirectory() as folder:
        yield from _told("Ray", on_ray(Path(folder), trials=40), devices=2)


def services() -> Iterator[Figure]:
    """The MLflow server and its PostgreSQL down for a minute in the middle of a sweep."""
    from services.outage import outage

    report = outage(60)
    away = "MLflow and its database away for 60 s"
    yield _exactly(f"{away}: exit code (0 or 7)", report["exit_code"], "<= 7")
    yield _exactly(f"{away}: trials that ended meanwhile", report["finished_meanwhile"])
    yield _exactly(f"{away}: sync --verify, exit code", report["verified"], "<= 0")
    yield _exactly(f"{away}: runs that lack after sync", report["runs_wanted"] - report["runs"], "<= 0")
    yield _exactly(f"{away}: points, as in a store that never was away", report["points_equal"], ">= 1")


def _told(name: str, survived: object, devices: int) -> Iterator[Figure]:
    from services.disturbing import Survived

    assert isinstance(survived, Survived)
    for fault in survived.faults:
        print(f"{name}: {fault}", file=sys.stderr)
    yield _exactly(f"{name}: faults at the end", len(survived.faults), "<= 0")
    yield _exactly(f"{name}: devices used", survived.devices, f">= {devices}")
    yield _exactly(f"{name}: attempts lost, and run again", survived.retried, ">= 1")
    yield _exactly(f"{name}: most trials at once", survived.at_once)
    yield dataclasses.replace(_exactly(f"{name}: both runs together", survived.seconds), unit="s")


def _exactly(figure: str, value: float, bar: str = "") -> Figure:
    return Figure(figure=figure, value=value, low=value, high=value, bar=bar, repeats=1)
