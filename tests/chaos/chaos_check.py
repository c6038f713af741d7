"""The checker: reads the witness and the stores, and says which of the invariants I1 to I8 do not hold.

It asks nothing of the product's code: outcomes are JSON, MLflow is SQL, and the study is read by Optuna.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos_stage import NAME, Stage
from chaos_stub import DAEMON_SECONDS

from sweeper.core.job import RETRIED


def read(path: Path) -> Any:
    """Returns the JSON in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


class Kept:
    """What had been acknowledged at some moment, and what the witness had heard by then."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.outcomes: dict[Path, bytes] = {}
        self.begun: dict[str, int] = {}
        self.faults: list[str] = []

    def look(self) -> None:
        """Compares with what was there at the last look: nothing may be lost, changed or run again."""
        starts = Counter(words[1] for words in testimony(self.stage) if words[0] == "START")
        now = self.stage.outcomes()
        for path, content in self.outcomes.items():
            if now.get(path) != content:
                self.faults.append(f"I1: {_short(path)} was {'changed' if path in now else 'lost'}")
            uid = self._uid(path.with_name("config.json"))
            if starts[uid] > self.begun.get(uid, 0):
                self.faults.append(f"I2: {_short(path)} had an outcome and ran again")
        for path in now.keys() - self.outcomes.keys():
            uid = self._uid(path.with_name("config.json"))
            self.begun[uid] = starts[uid]
        # What the environment ended may be tried again; until it is over, it is not an outcome.
        self.outcomes = {}
        for path, content in now.items():
            try:
                retried = _is_retried(content)
            except ValueError:
                self.faults.append(f"I7: {_short(path)} has half an outcome")
                continue
            if not retried:
                self.outcomes[path] = content

    def _uid(self, path: Path) -> str:
        try:
            uid: str = read(path)["uid"]
        except ValueError:
            self.faults.append(f"I7: {_short(path)} has half a config.json")
            return ""
        return uid


def _is_retried(content: bytes) -> bool:
    return json.loads(content).get("kind") in RETRIED


def testimony(stage: Stage) -> Iterator[list[str]]:
    """Yields the witness's lines as words."""
    for line in stage.witness.read_text(encoding="utf-8").splitlines():
        yield line.split()


def check(stage: Stage, trials: int) -> list[str]:
    """Returns what is wrong with a sweep that has ended; an empty list where nothing is."""
    faults = [*_folder(stage, trials), *_study(stage), *_mlflow(stage), *_left_behind(stage)]
    faults += [
        f"I8: two attempts of {words[1]} at once" for words in testimony(stage) if words[0] == "OVERLAP"
    ]
    return faults


def _jobs(stage: Stage, place: str) -> Iterator[tuple[Path, Mapping[str, Any], Mapping[str, Any] | None]]:
    for folder in sorted((stage.sweep / place).glob("[0-9]*")):
        outcome = folder / "outcome.json"
        yield folder, read(folder / "config.json"), read(outcome) if outcome.exists() else None


def _folder(stage: Stage, trials: int) -> Iterator[str]:
    ends: dict[str, set[str]] = {}
    for words in testimony(stage):
        if words[0] == "END":
            ends.setdefault(words[1], set()).add(words[3])
    stages: Counter[str] = Counter()
    speeds: dict[int, float] = {}
    for number, (folder, job, outcome) in enumerate(_jobs(stage, "trials")):
        if int(folder.name) != number:
            yield f"I3: trial {number} is not in the folder"
        stages[job["stage"]] += 1
        if outcome is None:
            yield f"I3: {_short(folder)} has no outcome"
            continue
        if outcome["type"] == "measurement":
            speeds[number] = outcome["throughput"]
            if repr(outcome["throughput"]) not in ends.get(job["uid"], set()):
                yield f"I1: the witness did not hear of {_short(folder)}'s result"
        if outcome.get("kind") == "oom" and "oom" not in ends.get(job["uid"], set()):
            yield f"I1: the witness did not hear of {_short(folder)}'s failure"
    if stages != {"baseline": 1, "search": trials}:
        yield f"I3: {dict(stages)} trials, and not 1 baseline and {trials} searched"
    uids = [job["uid"] for place in ("trials", "races/final") for _, job, _ in _jobs(stage, place)]
    if len(set(uids)) != len(uids):
        yield "I2: two jobs have one uid"
    for folder, _, outcome in _jobs(stage, "races/final"):
        if outcome is None:
            yield f"I3: {_short(folder)} has no outcome"
    for folder, _, outcome in _jobs(stage, "stopped"):
        yield f"I3: {_short(folder)} is left of a stop{'' if outcome else ', without an outcome'}"
    result = stage.sweep / "result.json"
    if not result.exists():
        yield "I3: the sweep has no result"
        return
    found = read(result)
    best = max(speeds, key=lambda number: speeds[number], default=None)
    if not stage.real and best != 0 and found["winner"] != best and found["confirmed"]:
        yield f"I5: the winner is {found['winner']}, and the fastest is {best}"


def _study(stage: Stage) -> Iterator[str]:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    path = stage.sweep / "study.log"
    if (stage.sweep / "study.log.lock").exists():
        yield "I6: the study is locked"
        (stage.sweep / "study.log.lock").unlink()
    told = {
        int(folder.name): read(folder / "search_result.json")
        for folder, _, outcome in _jobs(stage, "trials")
        if (folder / "search_result.json").exists() and outcome is not None
    }
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        (study,) = storage.get_all_studies()
        trials = storage.get_all_trials(study._study_id, deepcopy=False)
    except Exception as error:
        yield f"I7: the study cannot be read ({type(error).__name__}: {error})"
        return
    numbers: Counter[int] = Counter()
    for trial in trials:
        number = trial.user_attrs.get("sweeper.number")
        if not trial.state.is_finished():
            yield f"I3: trial {number} is {trial.state.name} in the study"
        if number is None:
            continue
        numbers[number] += 1
        if number not in told:
            yield f"I1: the study knows of trial {number}, and the folder does not"
            continue
        values = told[number]["values"]
        got = None if trial.state == TrialState.FAIL else list(trial.values)
        if got != values:
            yield f"I1: trial {number} is {got} in the study and {values} in the folder"
    if numbers != Counter(told.keys()):
        yield f"I2: the study has the trials {dict(numbers)}, the folder {sorted(told)}"


def _mlflow(stage: Stage) -> Iterator[str]:
    with sqlite3.connect(stage.database) as database:
        ((verdict,),) = database.execute("PRAGMA integrity_check").fetchall()
        if verdict != "ok":
            yield f"I7: MLflow's database: {verdict}"
        rows = database.execute(
            "SELECT t.value, r.run_uuid, r.status FROM runs r "
            "JOIN experiments e ON e.experiment_id = r.experiment_id "
            "LEFT JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'sweeper.uid' "
            "WHERE r.lifecycle_stage = 'active' AND e.name = ?",
            (NAME,),
        ).fetchall()
        twice = database.execute(
            "SELECT run_uuid, key, step, COUNT(*) FROM metrics GROUP BY 1, 2, 3 HAVING COUNT(*) > 1"
        ).fetchall()
        speeds = dict(
            database.execute(
                "SELECT run_uuid, value FROM latest_metrics WHERE key = 'result/throughput'"
            ).fetchall()
        )
    database.close()
    for row in twice:
        yield f"I4: a metric is there {row[3]} times: {row[1]} at step {row[2]}"
    runs = {uid: (run, status) for uid, run, status in rows}
    if len(runs) != len(rows):
        yield f"I4: {len(rows)} runs for {len(runs)} trials"
    for folder, job, outcome in _jobs(stage, "trials"):
        run, status = runs.pop(job["uid"], (None, None))
        if outcome is None:
            continue
        if run is None:
            yield f"I4: {_short(folder)} has no run"
            continue
        measured = outcome["type"] == "measurement"
        if status not in (("FINISHED",) if measured else ("FAILED", "KILLED", "FINISHED")):
            yield f"I3: {_short(folder)} is {status} in MLflow"
        if measured and speeds.get(run) != shown(outcome["throughput"]):
            yield f"I1: {_short(folder)} is {speeds.get(run)} in MLflow, {outcome['throughput']} on disk"
    for uid in runs:
        yield f"I4: MLflow has a run of {uid}, and the folder has not"


def shown(value: float) -> float:
    """Returns what a reader of MLflow is shown of a figure: four digits, so that a table can be read."""
    return float(f"{value:.4g}")


def _left_behind(stage: Stage) -> Iterator[str]:
    for pid in survivors(stage):
        yield f"I6: process {pid} is left"


def survivors(stage: Stage) -> list[int]:
    """Returns the processes of the sweep that are alive: by their mark, and those the trials spoke of."""
    spoken_of = {
        int(words[1] if words[0] == "DAEMON" else words[3]): words[0]
        for words in testimony(stage)
        if words[0] in ("DAEMON", "START")
    }
    mark = f"SWEEPER_SWEEP={stage.sweep.resolve()}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = mark in Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{entry.name}/cmdline").read_bytes()
            state = Path(f"/proc/{entry.name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        told = spoken_of.get(int(entry.name)) == "DAEMON" and words == f"sleep\0{DAEMON_SECONDS}\0".encode()
        if state != "Z" and (marked or told):
            found.append(int(entry.name))
    return found


def _short(path: Path) -> str:
    place = path if path.is_dir() else path.parent
    return f"{place.parent.name}/{place.name}"
