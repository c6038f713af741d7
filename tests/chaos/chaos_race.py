"""Kills while a race runs: of the supervisor, of the keeper of a process, and of a script that takes turns.

python tests/chaos/chaos_race.py supervisors|keepers|scripts COUNT SEED
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from sweeper.launch.local import leftovers
from sweeper.race.log import Round, comparable_rounds
from sweeper.race.storage import read
from sweeper.sweep.folder.journal import FINAL_RACE, Journal

REPOSITORY = Path(__file__).parents[2]
MAX_SECONDS, KILLS_A_RACE = 8.0, 5
"""Seconds after which a process is killed at the latest, about as long as the race takes, and kills in it."""
RUN = """\
import sys
from pathlib import Path
from sweeper.schema import load
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker
run_sweep(Path(sys.argv[1]), load(Path("race.yaml")), NullTracker(), QuietObserver())
"""
"""A supervisor without what takes most of a short command's time: MLflow, and the report."""
GONE_SECONDS, PATIENCE_SECONDS = 5.0, 300.0

SCRIPT = """\
import argparse
import torch
# Idle threads that spin would starve what else runs here.
torch.set_num_threads(1)
options = argparse.ArgumentParser()
options.add_argument("--layers", type=int)
layers = [torch.nn.Linear(16, 16) for _ in range(options.parse_args().layers)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(4096, 16))
loader = torch.utils.data.DataLoader(data, 32, num_workers=1)
for epoch in range(10_000):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
SPACE = """\
name: race
command: [python, train.py, --layers, '{layers}']
space: {layers: {type: categorical, choices: [1, 2, 12]}}
baseline: {layers: 12}
search: {trials: 2}
confirm: {top: 1, rounds: 2, precision: 0.9, to_loss: false}
measure: {window_seconds: 0.3, repeats: 1, warmup_cap_seconds: 0.5, trace: false}
"""


class Stage:
    """A sweep of a script whose search has ended, from which each race begins."""

    def __init__(self, folder: Path) -> None:
        """Runs the sweep once."""
        self._folder, self._home = folder, folder / "home"
        (folder / "train.py").write_text(SCRIPT)
        (folder / "race.yaml").write_text(SPACE)
        assert self.begin().wait(PATIENCE_SECONDS) == 0, (folder / "log").read_text()
        self.journal = Journal(self._home / "sweeps" / "race")
        self.journal.discard_interim_result()
        (self.journal.folder / "result.json").unlink()
        shutil.rmtree(self.journal.race_folder(FINAL_RACE))
        shutil.copytree(self._home, folder / "searched", symlinks=True)

    def begin(self) -> subprocess.Popen[bytes]:
        """Starts the sweep, or goes on with it."""
        command = [sys.executable, "-c", RUN, str(self._home)]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen(command, cwd=self._folder, env=env, stdout=log, stderr=log)

    def again(self) -> None:
        """Takes the sweep back to the end of its search."""
        shutil.rmtree(self._home)
        shutil.copytree(self._folder / "searched", self._home, symlinks=True)

    @property
    def log(self) -> Path:
        """The log of the race."""
        return self.journal.race_log(FINAL_RACE)

    def scripts(self) -> list[int]:
        """Returns the scripts that take part, without their loaders' workers."""
        among = [psutil.Process(pid) for pid in leftovers(self.journal.folder) if psutil.pid_exists(pid)]
        return [each.pid for each in among if _is_script(each) and not _is_script(each.parent())]


def _is_script(process: psutil.Process | None) -> bool:
    try:
        return process is not None and "train.py" in process.cmdline()
    except psutil.Error:
        return False


def kills(kind: str, stage: Stage, draw: random.Random, most: int) -> tuple[int, list[str]]:
    """Kills processes at random moments of a race, several times; returns how often, and what is wrong."""
    stage.again()
    supervisor, number, faults = stage.begin(), 0, list[str]()
    complete: list[Round] = []
    while number < most and _has_scripts(stage, supervisor):
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(draw.uniform(0.0, MAX_SECONDS))
        scripts = stage.scripts()
        if supervisor.poll() is not None or (kind != "supervisors" and not scripts):
            # It has ended, or is between two rounds.
            continue
        victim = supervisor.pid if kind == "supervisors" else draw.choice(scripts)
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess, IndexError):
            if kind == "keepers":
                victim = psutil.Process(victim).parents()[1].pid
                if victim == supervisor.pid:
                    # An earlier kill has left the script without its keeper.
                    continue
            os.kill(victim, signal.SIGKILL)
            number += 1
        faults += _lost_rounds(stage, complete)
        complete = comparable_rounds(read(stage.log))
        if kind == "supervisors":
            supervisor.wait()
            faults += _left(stage)
            supervisor = stage.begin()
    if (code := supervisor.wait(PATIENCE_SECONDS)) != 0:
        return number, [*faults, f"it ended with {code}"]
    return number, [*faults, *_left(stage), *_lost_rounds(stage, complete), *_other_result(stage)]


def _has_scripts(stage: Stage, supervisor: subprocess.Popen[bytes]) -> bool:
    """Waits until scripts run; returns False if the race has ended before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not stage.scripts():
        if supervisor.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _left(stage: Stage) -> list[str]:
    """Returns the processes that are left after a while, stopped ones among them."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := leftovers(stage.journal.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{pid} is left ({psutil.Process(pid).status()})" for pid in left if psutil.pid_exists(pid)]


def _lost_rounds(stage: Stage, complete: Sequence[Round]) -> list[str]:
    """Returns a fault if the log does not begin with the rounds that were complete."""
    if comparable_rounds(read(stage.log))[: len(complete)] == list(complete):
        return []
    return [f"{len(complete)} complete rounds are not those of the log any more"]


def _other_result(stage: Stage) -> list[str]:
    """Returns where the result is not that of the log."""
    rounds = comparable_rounds(read(stage.log))
    result = stage.journal.result()
    assert result is not None
    return [
        f"the result of trial {ratio.trial} has other rounds than the log"
        for ratio in result.confirmation.ratios
        if ratio.rounds != tuple(one.speeds[ratio.trial] for one in rounds if ratio.trial in one.speeds)
    ]


def run(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Kills `count` processes; returns the tally."""
    began, violations = time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        done = races = 0
        while done < count and races < count:
            draw, most = random.Random(f"{seed} {races}"), min(KILLS_A_RACE, count - done)
            number, faults = kills(kind, stage, draw, most)
            done, races = done + number, races + 1
            violations += [f"{seed} {races}: {fault}" for fault in faults]
            print(kind, done, *faults, file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began, 1)
    return {"kills": done, "races": races, "violations": violations, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), indent=1))
