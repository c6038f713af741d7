"""Sweeps on clusters as a person runs them, disturbed in the middle, and what must hold at their end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.processes import wait_for
from sweeper.core.job import MAX_ATTEMPTS

REPOSITORY = Path(__file__).parents[2]
NAME = "afar"
ENDING_SECONDS = 0.5
"""Between the stamp of a trial and the end of its processes, up to which its seconds are counted."""
PIPELINE = '''\
"""A small model whose building takes a while, so that something can go wrong meanwhile."""

import time

import torch

from afar_rows import rows
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples


def prepare(data):
    x, y = rows()
    return Prepared(arrays={"x": x, "y": y}, meta={}, synthetic=True)


def build(config, prepared):
    time.sleep(float(config.model.get("seconds", 0)))
    tensors = {name: torch.from_numpy(prepared.arrays[name]) for name in ("x", "y")}
    samples = Samples(tensors=tensors, length=len(tensors["x"]))
    return Pipeline(
        model=torch.nn.Linear(8, 1),
        train=samples,
        val=samples,
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]),
    )
'''
ROWS = '''\
"""Numbers; a module of its own, which has to travel with the pipeline."""

import numpy as np


def rows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(4096, 8)).astype("float32")
    return x, x.sum(1, keepdims=True)
'''
SPACE = """\
name: {name}
pipeline: afar_pipeline
space:
  batch_size: {{type: int, low: 16, high: 1024, log: true}}
  loader.kind: {{type: categorical, choices: [resident, stream]}}
fix: {{model.seconds: {seconds}}}
baseline: {{batch_size: 64, loader.kind: resident}}
search: {{trials: {trials}, minutes: null, sampler: random}}
confirm: {{rounds: 0}}
measure: {{window_seconds: 0.2, repeats: 1, warmup_cap_seconds: 0.5, quality_samples: 0, trace: false}}
"""


@dataclass
class Sweep:
    """A sweep in a folder of its own.

    Attributes:
        settings: `--set` for all of its runs: where it runs.
        trials: The baseline and those searched.
        env: For its supervisor, beside the test's own.
    """

    folder: Path
    settings: Sequence[str]
    trials: int = 40
    seconds: float = 1.0
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "afar_pipeline.py").write_text(PIPELINE)
        (self.folder / "afar_rows.py").write_text(ROWS)
        space = SPACE.format(name=NAME, trials=self.trials - 1, seconds=self.seconds)
        (self.folder / "space.yaml").write_text(space)

    @property
    def home(self) -> Path:
        """Its sweep's folder."""
        return self.folder / "mlruns" / "sweeps" / NAME

    def start(self) -> subprocess.Popen[str]:
        """Starts `sweeper run`."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        return subprocess.Popen(
            [sys.executable, "-m", "sweeper", "run", "space.yaml", *settings],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, supervisor: subprocess.Popen[str], seconds: float) -> str:
        """Waits until a supervisor has ended well; returns what it printed."""
        try:
            said, _ = supervisor.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            said, _ = supervisor.communicate()
            raise AssertionError(
                f"not at its end after {seconds:g} s, with {self.done()} trials:\n{said}"
            ) from None
        assert supervisor.returncode == 0, said
        return said

    def done(self) -> int:
        """Counts the trials that have an outcome."""
        return len(list(self.home.glob("trials/*/outcome.json")))

    def wait_for(self, done: int, seconds: float, supervisor: subprocess.Popen[str]) -> None:
        """Returns once so many trials have an outcome."""

        def there() -> bool:
            assert supervisor.poll() is None, supervisor.communicate()[0]
            return self.done() >= done

        def seen() -> str:
            """Ends the supervisor, so that its output can be read."""
            workers = self.workers()
            supervisor.kill()
            return f"{self.done()} trials are done; {workers}\n{supervisor.communicate()[0]}"

        wait_for(there, seconds, seen)

    def workers(self) -> list[dict[str, Any]]:
        """Returns the workers it has, as `sweeper list` reads them."""
        try:
            return list(json.loads((self.home / "jobs.json").read_text())["workers"])
        except FileNotFoundError:
            return []

    def kill(self, supervisor: subprocess.Popen[str]) -> None:
        """Kills a supervisor as a lost machine would."""
        supervisor.send_signal(signal.SIGKILL)
        supervisor.communicate(timeout=10)

    def faults(self) -> list[str]:
        """Returns what is wrong with the sweep at its end; an empty list where nothing is."""
        return [*self._numbers(), *self._devices(), *self._study(), *self._mlflow()]

    def spans(self) -> list[tuple[float, float, str, str]]:
        """Returns from when to when each trial ran, on which host and GPU."""
        found = []
        for folder in sorted(self.home.glob("trials/*")):
            outcome = json.loads((folder / "outcome.json").read_text())
            if outcome["type"] != "measurement":
                # A trial that was lost has no place.
                continue
            place = json.loads((folder / "place.json").read_text())
            ended = outcome["finished_at"]
            # Nodes of Ray's on one machine have all of its devices: their workers tell them apart.
            device = place["gpu"] or place["worker"]
            found.append((ended - outcome["seconds"], ended, place["host"], device))
        return found

    def retried(self) -> int:
        """Counts the attempts that were lost and run again."""
        return sum(json.loads(path.read_text())["attempt"] for path in self.home.glob("trials/*/config.json"))

    def has_last_attempts(self) -> bool:
        """Returns whether a trial runs that would fail if it were lost once more."""
        return any(
            json.loads(path.read_text())["attempt"] + 1 >= MAX_ATTEMPTS
            for path in self.home.glob("trials/*/config.json")
            if not (path.parent / "outcome.json").exists()
        )

    def _numbers(self) -> Iterator[str]:
        numbers = sorted(int(path.name) for path in self.home.glob("trials/[0-9]*"))
        if numbers != list(range(self.trials)):
            yield f"the trials are {numbers}"
        for folder in sorted(self.home.glob("trials/*")):
            if not (folder / "outcome.json").exists():
                yield f"trial {folder.name} has no outcome"
            elif json.loads((folder / "outcome.json").read_text())["type"] != "measurement":
                yield f"trial {folder.name} failed: {(folder / 'outcome.json').read_text()}"
        uids = Counter(json.loads(p.read_text())["uid"] for p in self.home.glob("trials/*/config.json"))
        yield from (f"the uid {uid} is there {count} times" for uid, count in uids.items() if count > 1)

    def _devices(self) -> Iterator[str]:
        spans = sorted(self.spans())
        for i, (began, _, host, gpu) in enumerate(spans):
            for other in spans[:i]:
                if other[2:] == (host, gpu) and other[1] > began + ENDING_SECONDS:
                    yield f"two trials at once on {host}, GPU {gpu}: until {other[1]} and from {began}"

    def _study(self) -> Iterator[str]:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        storage = JournalStorage(JournalFileBackend(str(self.home / "study.log")))
        (study,) = storage.get_all_studies()
        trials = storage.get_all_trials(study._study_id, deepcopy=False)
        numbers = sorted(trial.user_attrs.get("sweeper.number", -1) for trial in trials)
        searched = [number for number in numbers if number > 0]
        if searched != list(range(1, self.trials)):
            yield f"the study has the trials {numbers}"
        yield from (
            f"the study has a trial that is {t.state.name}" for t in trials if not t.state.is_finished()
        )

    def _mlflow(self) -> Iterator[str]:
        with sqlite3.connect(self.folder / "mlruns" / "mlflow.db") as database:
            rows = database.execute(
                "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"
            ).fetchall()
        database.close()
        if len(rows) != self.trials:
            yield f"MLflow has {len(rows)} runs"
        yield from (f"a run of MLflow's is {status}" for _, status in rows if status != "FINISHED")
