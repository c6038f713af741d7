"""Runs a script with a fixed seed and shortened passes, and records its training bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper import inject
from sweeper.core.job import Job
from sweeper.core.progress import Silent, TrialFailedError
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.errors import UserError
from sweeper.inject.recorder import EXIT, RECORD, VARIABLE
from sweeper.race.record import Record
from sweeper.script.start import begun_again, started
from sweeper.script.watch import job_outside_a_sweep

LIMIT_SECONDS = 60.0
"""Seconds after which a run is stopped; its record is compared as far as it goes."""
LISTEN_SECONDS = 0.1
HASH_SEED = "PYTHONHASHSEED"
PASSIVE = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Environment variables that make idle threads sleep, since two runs share the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The settings that two comparable runs share.

    Attributes:
        seed: Seed of torch, numpy and Python.
        shift: Added to the seed, and to the seeds that the script sets itself.
        batches: Number of batches in each pass over a loader: the first ones and the last.
        deterministic: Whether torch's deterministic algorithms are requested.
    """

    seed: int = 20
    shift: int = 0
    batches: int = 50
    deterministic: bool = False


def record(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    terms: Terms,
    cache: Path | None = None,
    limit: float = LIMIT_SECONDS,
) -> Record:
    """Runs a command in a mirror of `folder` until its record is complete or the limit is reached.

    Its output goes to standard output.

    Args:
        env: Its additional environment variables.
        cache: Folder that several runs share.
    """
    asked = {
        "seed": terms.seed,
        "shift": terms.shift,
        "batches": terms.batches,
        "deterministic": terms.deterministic,
    }
    own = {**PASSIVE, **env, VARIABLE: json.dumps(asked), HASH_SEED: "0"}
    script = Script(
        command=tuple(map(literal, command)),
        folder=str(folder),
        env={name: literal(value) for name, value in own.items()},
    )
    began = time.perf_counter()
    with job_outside_a_sweep(script, cache=cache) as job:
        try:
            run = begun_again(job, lambda: _run(job, began + limit))
        except (TrialFailedError, UserError, OSError) as error:
            return Record(failure=str(error))
        has_ended, changes, status, lines, failed = run
        events = {
            path.stem: _read(path, has_ended=has_ended)
            for path in sorted(Path(job.folder).glob(RECORD.format("*")))
        }
    seconds = time.perf_counter() - began
    if status:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return Record(failure=f"it failed: {last[:200]}", changes=changes, seconds=seconds)
    if failed or not events:
        why = failed[0] if failed else "its training was not observed"
        return Record(failure=why, changes=changes, seconds=seconds)
    return Record(events=events, changes=changes, seconds=seconds)


def _run(
    job: Job, deadline_s: float
) -> tuple[bool, Mapping[str, str], int | None, Sequence[str], Sequence[str]]:
    """Returns whether a run ended by itself, its changes, its status, its output and its failures."""
    for path in Path(job.folder).glob(RECORD.format("*")):
        path.unlink()
    has_ended = False
    with started(job, Silent(), inject.RECORD) as running:
        watched, process = running.listener.watched, running.process
        while watched.num_recorded is None and time.perf_counter() <= deadline_s and not has_ended:
            has_ended = not process.listen(LISTEN_SECONDS)
        lines = list(running.listener.last_lines)
        return has_ended, dict(watched.changes), process.status, lines, watched.failures[:1]


def _read(path: Path, *, has_ended: bool) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for line in path.read_text(encoding="ascii").splitlines():
        with suppress(ValueError):
            # The last line may have been cut off.
            found.append(json.loads(line))
    # A process that is stopped early records an exit that is not the script's.
    is_cut_off = not has_ended and found and found[-1].get("end") == EXIT
    return found[:-1] if is_cut_off else found
