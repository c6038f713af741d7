"""Finds or makes the folder of a production run, and reads what it holds.

mlruns/train/<name>/
  run.json            what is trained, written once
  job/                config.json, outcome.json, worker.log
  checkpoints/ best/  weights and training state
  history.jsonl       the trainer's figures, block by block
  system.jsonl        utilisation, power and memory during training
"""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.job import OUTCOME, SCHEMA, read_outcome
from sweeper.core.measurement import Report
from sweeper.core.training import HISTORY, checkpoints_of
from sweeper.errors import SweepConflictError
from sweeper.production.request import RunRequest
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.lock import SweepLock
from sweeper.sweep.job_runner import retry
from sweeper.system.files import make_folder, read_json, write_json, writing

RUN = "run.json"
JOB = "job"
SYSTEM = "system.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A production run on disk, held by this process until `lock` is released.

    Attributes:
        uid: Identifies its MLflow run.
        began_at: Wall time of its first start.
        continued: Whether it was started before.
    """

    path: Path
    lock: SweepLock
    uid: str
    began_at: float
    continued: bool

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def job(self) -> Path:
        """The folder of its job."""
        return self.path / JOB

    def report(self) -> Report | None:
        """Returns its final report; None if it has not ended, or failed."""
        outcome = read_outcome(self.job)
        return outcome if isinstance(outcome, Report) else None

    def is_finished(self, max_seconds: float) -> bool:
        """Returns whether there is nothing left to train within `max_seconds` (0: no limit)."""
        report = self.report()
        if report is None or report.values["ended"] == "stopped":
            return False
        more = not max_seconds or report.values["seconds"] < max_seconds
        return not (report.values["ended"] == "time" and more)

    def reopen(self) -> None:
        """Sets the last attempt's outcome aside."""
        if (self.job / OUTCOME).exists() or (self.job / "worker.log").exists():
            retry(self.job, len(list(self.job.glob("attempt-*-worker.log"))))

    def committed_bytes(self) -> int:
        """Returns the bytes of history up to the latest checkpoint, which a resumed run keeps."""
        checkpoints = checkpoints_of(self.path)
        return int(read_json(checkpoints[-1] / "position.json")["history_bytes"]) if checkpoints else 0

    def history(self) -> Iterator[dict[str, Any]]:
        """Yields the committed lines of the history."""
        yield from _lines(self.path / HISTORY, self.committed_bytes())

    def system(self) -> Iterator[dict[str, Any]]:
        """Yields the samples of the machine's utilisation, power and memory."""
        yield from _lines(self.path / SYSTEM)

    def forget_uncommitted(self) -> None:
        """Cuts the history to its committed part, from which training resumes, and drops partial lines."""
        for name, max_bytes in ((HISTORY, self.committed_bytes()), (SYSTEM, None)):
            path = self.path / name
            if path.exists():
                kept = path.read_bytes()[:max_bytes]
                os.truncate(path, kept.rfind(b"\n") + 1)


def open_run(home: Path, wanted: RunRequest, *, new: bool) -> RunFolder:
    """Returns the folder of the run `wanted`: the latest with the same request, or a new one.

    Raises:
        SweepConflictError: Another process holds it, or an unfinished run of that name has another
            configuration.
        EnvironmentStopError: The folder cannot be written.
    """
    identity = wanted.identity()
    *begun, free = _names(home / "train", wanted.name)
    abouts = {path: read_json(path / RUN) for path in begun if not new}
    changes = {
        path: differences(about["identity"], identity)
        for path, about in abouts.items()
        if about["schema"] == SCHEMA
    }
    if abouts and begun[-1] not in changes:
        raise SweepConflictError(
            f"`{begun[-1].name}` was written by another version of sweeper (0.2 or earlier, or a later one),"
            " and only that version can continue it. Add --new to start another run."
        )
    for path in reversed(changes):
        if not changes[path]:
            return _run_folder(path, SweepLock(path), abouts[path], continued=True)
    for path in changes:
        outcome = read_outcome(path / JOB)
        if not isinstance(outcome, Report) or outcome.values["ended"] == "stopped":
            raise SweepConflictError(
                f"`{path.name}` is unfinished and has another configuration:\n"
                + "\n".join(f"  {change}" for change in changes[path])
                + "\nResume it with its own configuration, or start another run with --new."
            )
    with writing(free):
        make_folder(free)
        lock = SweepLock(free)
    about = {"uid": uuid.uuid4().hex, "began_at": time.time(), "identity": identity}
    write_json(free / RUN, {"schema": SCHEMA, **about})
    return _run_folder(free, lock, about, continued=False)


def _lines(path: Path, length: int = -1) -> Iterator[dict[str, Any]]:
    """Yields the complete lines of a file; none if there is no file."""
    if path.exists():
        with open(path, "rb") as file:
            data = file.read(length)
        # A kill or a full disk may leave half a line at the end.
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            yield json.loads(line)


def _names(home: Path, name: str) -> Iterator[Path]:
    """Yields the folders for `name` that hold a run, then the first free one."""
    for number in itertools.count(1):
        path = home / (name if number == 1 else f"{name}-{number}")
        yield path
        if not (path / RUN).exists():
            return


def _run_folder(path: Path, lock: SweepLock, about: Mapping[str, Any], *, continued: bool) -> RunFolder:
    return RunFolder(path=path, lock=lock, uid=about["uid"], began_at=about["began_at"], continued=continued)
