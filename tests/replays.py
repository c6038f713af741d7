"""A small sweep on the replay launcher: its specification, its surface, and someone who watches it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parts.noop import synthetic
from parts.replay import ReplayLauncher

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.record import TrialRecord
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.observer import Status
from sweeper.sweep.run import SweepRun, run_sweep
from sweeper.tracking import NullTracker

PIPELINE = '''\
"""A pipeline nobody runs."""

def prepare(data):
    return {}

def build(config, prepared):
    return None
'''

SPEC: Mapping[str, Any] = {
    "name": "toy",
    "pipeline": "toy_pipeline",
    "space": {
        "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 4, "when": {"loader.kind": "workers"}},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    },
    "baseline": {"loader.kind": "rows", "loader.num_workers": 4, "batch_size": 64},
    "also_try": [{"loader.kind": "rows", "loader.num_workers": 8, "batch_size": 256}],
    "constraints": {"val_loss": {"max_ratio_to_baseline": 1.02}},
    "measure": {"quality_samples": 60_000},
    "search": {"trials": 8, "minutes": None, "regret": None},
    "confirm": {"top": 2, "rounds": 3, "precision": 0.1},
}


def raced(bench: Bench) -> list[dict[int, float]]:
    """Returns the rounds of the race of a sweep's best, as samples per second by trial."""
    return [one.speeds for one in Journal(bench.home / "sweeps" / "toy").rounds("final")]


def spec_of(**changes: Any) -> SweepSpec:
    """SPEC with some of its keys replaced; a mapping replaces only the keys it has."""
    tree = copy.deepcopy(dict(SPEC))
    for key, value in changes.items():
        merge = key in ("measure", "search", "confirm", "execution") and key in tree
        tree[key] = {**tree[key], **value} if merge else value
    return SweepSpec.from_dict(tree)


def throughput(config: TrialConfig) -> float:
    kind = {"rows": 1.0, "workers": 2.0, "resident": 4.0}[config.loader.kind]
    return kind * config.batch_size * (1.1 if config.precision.amp == "bf16" else 1.0)


def surface(config: TrialConfig) -> Measurement | Failure:
    """Resident beats workers beats rows; larger batches are faster; nothing fails."""
    return synthetic(throughput(config))


def failing(*kinds: FailureKind, message: str = "it broke") -> Any:
    """A surface on which the first searched trials (resident or workers) fail, in the order of `kinds`."""
    left = list(kinds)

    def answer(config: TrialConfig) -> Measurement | Failure:
        if left and config.loader.kind != "rows":
            return Failure(kind=left.pop(0), message=message)
        return surface(config)

    return answer


class Watcher:
    """Remembers what a sweep tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.trials: list[int] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        self.trials.append(record.number)

    def status(self, status: Status) -> None:
        pass


class Bench:
    """Runs sweeps in one home, and remembers what the last one said and ran."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.watcher = Watcher()
        self.launcher: ReplayLauncher

    def run(
        self,
        spec: SweepSpec | None = None,
        answer: Any = surface,
        *,
        tracker: Any = None,
        new: bool = False,
        extend: int = 0,
        **about: Any,
    ) -> SweepRun:
        self.watcher = Watcher()
        self.launcher = ReplayLauncher(answer, **about)
        return run_sweep(
            self.home,
            spec or spec_of(),
            tracker or NullTracker(),
            self.watcher,
            new=new,
            extend=extend,
            launch=lambda folder: self.launcher,
        )

    def jobs(self, stage: str) -> list[Any]:
        """The trials of a stage which the last run launched."""
        return [job for job in self.launcher.jobs if job.plan.repeats and job.stage == stage]
