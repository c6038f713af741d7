"""Kills: of the supervisor and of any process of its trials, at random moments and at named points.

python tests/chaos/chaos_kills.py supervisors|trials COUNT SEED [--real]
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import chaos_stage as stages
from chaos_check import Kept, check, survivors
from chaos_stage import TRIALS, Stage, begin, end_of, live

from sweeper.system.failpoints import KEEPER_POINTS, SUPERVISOR_POINTS
from sweeper.system.process import children, tree

LIVES = 6
"""Kills of one sweep's supervisor, before it may end."""
MAX_SECONDS = 0.9
"""A life is killed after this time at the latest: about what an undisturbed sweep takes."""
GONE_SECONDS = 3.0
BASELINE_LOST = 4
ENVIRONMENT = 6
MAX_LIVES = 12


class Tally:
    """What was done, and what came of it."""

    def __init__(self) -> None:
        self.kills = self.inside = self.sweeps = self.stillborn = 0
        self.windows: Counter[str] = Counter()
        self.violations: list[str] = []
        self.slowest_gone_s = 0.0

    def fault(self, stage: Stage, seed: str, faults: list[str]) -> None:
        """Notes what is wrong with a sweep; its folder stays."""
        if faults:
            self.violations += [f"{seed}: {each} ({stage.folder})" for each in faults]

    def as_dict(self) -> dict[str, Any]:
        """Returns it for a results file."""
        return {
            "kills": self.kills,
            "inside": self.inside,
            "sweeps": self.sweeps,
            "stillborn": self.stillborn,
            "windows": dict(sorted(self.windows.items())),
            "slowest_gone_s": round(self.slowest_gone_s, 3),
            "violations": self.violations,
        }


def moments(count: int, rng: random.Random) -> Iterator[tuple[str, int]]:
    """Yields where to kill: every named point in its turn, and as often a random moment (`""`)."""
    points = [*SUPERVISOR_POINTS, *KEEPER_POINTS]
    for index in range(count):
        named = points[(index // 2) % len(points)] if index % 2 else ""
        yield named, rng.randrange(1, 4)


def kill_supervisors(
    count: int,
    seed: int,
    stage_of: Any,
    tally: Tally,
    *,
    trials: int = TRIALS,
    longest: float = MAX_SECONDS,
    patience: float = 60.0,
) -> None:
    """Kills `count` supervisors; a sweep is killed up to LIVES times, and then runs to its end."""
    rng = random.Random(seed)
    left = list(moments(count, rng))
    while left:
        name = f"{seed}-{tally.sweeps}"
        stage: Stage = stage_of(name)
        kept, tally.sweeps = Kept(stage), tally.sweeps + 1
        for lives in range(min(LIVES, len(left))):
            if lives and left[0][0] == "begun":
                # Passed once in a sweep, by its first life.
                break
            point, at = left.pop(0)
            code = _one_life(stage, point, at, rng.uniform(0.0, longest), tally, patience)
            _await_gone(stage, tally, name)
            if code == BASELINE_LOST and _is_stillborn(stage, tally):
                break
            kept.look()
            if _has_ended(stage):
                break
        if not stage.folder.exists():
            # Stillborn.
            continue
        (stage.folder / stages.CRASH_AT).unlink(missing_ok=True)
        _converge(stage, kept, tally, name, patience, trials)


def _one_life(stage: Stage, point: str, at: int, seconds: float, tally: Tally, patience: float) -> int | None:
    """Starts a supervisor, and has it or a keeper of its die; returns the supervisor's exit code."""
    if point in ("finished", "begun", "put-aside"):
        at = 1
    if point:
        stage.crash_at(point, at)
    pid = begin(stage)
    tally.kills += 1
    if not point:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        code = end_of(pid)
        tally.inside += code == -signal.SIGKILL
        tally.windows["at random"] += code == -signal.SIGKILL
        return code
    if point == "put-aside":
        # Only what is tried again is put aside: a trial is lost on the way.
        _lose_a_trial(stage, pid)
    code = end_of(pid, patience)
    if stage.crashed():
        tally.inside += 1
        tally.windows[point] += 1
    else:
        # Fewer passed there than were to: this life ended as it wanted, or was ended as stuck.
        tally.kills -= 1
    if code is None:
        tally.violations.append(f"a life did not end within {patience} s ({stage.folder})")
    return code


def _lose_a_trial(stage: Stage, pid: int, seconds: float = 3.0) -> None:
    """Kills keepers until one has left nothing, so that its job is tried again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (stage.folder / stages.CRASH_AT).exists():
        for server in children(pid):
            for keeper in children(server):
                _kill(keeper)
        time.sleep(0.01)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _await_gone(stage: Stage, tally: Tally, name: str) -> None:
    began = time.monotonic()
    while left := survivors(stage):
        if time.monotonic() - began > GONE_SECONDS:
            tally.fault(stage, name, [f"I6: {left} are left {GONE_SECONDS:g} s after the supervisor's end"])
            return
        time.sleep(0.01)
    tally.slowest_gone_s = max(tally.slowest_gone_s, time.monotonic() - began)


def _has_ended(stage: Stage) -> bool:
    return (stage.sweep / "result.json").exists()


def _converge(stage: Stage, kept: Kept, tally: Tally, name: str, patience: float, trials: int) -> None:
    """Has the sweep run to its end, and looks whether all is as it should be."""
    codes = []
    for _ in range(MAX_LIVES):
        codes.append(live(stage, patience))
        if codes[-1] != ENVIRONMENT:
            break
    if codes[-1] == BASELINE_LOST and _is_stillborn(stage, tally):
        return
    kept.look()
    faults = list(kept.faults)
    if codes[-1] != 0:
        faults.append(f"the command ended with {codes}")
    else:
        faults += check(stage, trials)
    if "Traceback" in stage.log():
        faults.append("a traceback was printed")
    tally.fault(stage, name, faults)
    if not faults:
        shutil.rmtree(stage.folder)


def _is_stillborn(stage: Stage, tally: Tally) -> bool:
    """Whether kills have made the baseline fail: the sweep has ended, and the next begins anew."""
    if '"type": "failure"' not in (stage.sweep / "trials/0000/outcome.json").read_text(encoding="utf-8"):
        return False
    tally.stillborn += 1
    shutil.rmtree(stage.folder)
    return True


def kill_trials(
    count: int,
    seed: int,
    stage_of: Any,
    tally: Tally,
    *,
    trials: int = TRIALS,
    pause: float = 0.25,
    patience: float = 60.0,
) -> None:
    """Kills `count` processes below supervisors that live on: servers, keepers, trials, their children."""
    rng = random.Random(seed)
    while tally.kills < count:
        name = f"{seed}-{tally.sweeps}"
        stage: Stage = stage_of(name)
        kept, tally.sweeps = Kept(stage), tally.sweeps + 1
        for _ in range(MAX_LIVES):
            code = _kill_below(stage, rng, tally, count, pause, patience)
            _await_gone(stage, tally, name)
            if code != ENVIRONMENT:
                break
            kept.look()
        if code == BASELINE_LOST and _is_stillborn(stage, tally):
            continue
        _converge(stage, kept, tally, name, patience, trials)


def _kill_below(
    stage: Stage, rng: random.Random, tally: Tally, count: int, pause: float, patience: float
) -> int | None:
    pid = begin(stage)
    deadline = time.monotonic() + patience
    due, kind = time.monotonic() + rng.uniform(0, 2 * pause), _kind(rng)
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        # Where there is none of that kind at the moment, the first to come.
        if tally.kills < count and time.monotonic() >= due and (victims := _below(pid)[kind]):
            if _kill(rng.choice(victims)):
                tally.kills += 1
                tally.inside += 1
                tally.windows[kind] += 1
            due, kind = time.monotonic() + rng.uniform(0, 2 * pause), _kind(rng)
        time.sleep(0.001)
    tally.violations.append(f"a life did not end within {patience} s ({stage.folder})")
    return end_of(pid, 0.0)


def _kind(rng: random.Random) -> str:
    return rng.choices(["server", "keeper", "trial", "descendant"], [4, 32, 48, 16])[0]


def _below(supervisor: int) -> dict[str, list[int]]:
    """Returns the processes below a supervisor, by what they are."""
    servers = list(children(supervisor))
    keepers = [each for server in servers for each in children(server)]
    trials = [each for keeper in keepers for each in children(keeper)]
    below = [pid for trial in trials for pid in tree(trial) if pid != trial]
    return {"server": servers, "keeper": keepers, "trial": trials, "descendant": below}


def run(kind: str, count: int, seed: int, folder: Path, template: Path) -> dict[str, Any]:
    """Runs kills on stub sweeps in `folder`; returns the tally."""
    tally = Tally()
    began = time.monotonic()
    kills = {"supervisors": kill_supervisors, "trials": kill_trials}[kind]
    kills(count, seed, lambda name: stages.stage(folder / kind / name, template=template), tally)
    return {"seconds": round(time.monotonic() - began, 1), **tally.as_dict()}


if __name__ == "__main__":
    with stages.theatre() as (place, database):
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), place, database), indent=1))
