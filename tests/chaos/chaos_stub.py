"""The stub trainer: measures by formula, and testifies to a file that the product does not know.

The witness is appended to with O_APPEND and O_DSYNC, a line a write:

    START uid attempt pid       END uid attempt throughput       DAEMON pid uid       OVERLAP uid
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from parts import noop

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import Measurement, Report
from sweeper.core.progress import Progress, TrialFailedError

WITNESS = "SWEEPER_CHAOS_WITNESS"
STEP_SECONDS = 0.01
STEPS = 2
TOO_LARGE = 3000
DAEMON_SECONDS = 97


def testify(*words: object) -> None:
    """Appends one line to the witness."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_DSYNC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def throughput(config: TrialConfig) -> float:
    """Returns samples per second: by formula, so that every run of a configuration gives the same."""
    return 1000.0 / 3.0 * config.batch_size**0.5 * (1.25 if config.precision.amp == "bf16" else 1.0)


def leave_a_daemon(uid: str) -> None:
    """Leaves a daemon with a session of its own and nothing in its environment."""
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        testify("DAEMON", os.getpid(), uid)
        os.execve("/bin/sleep", ["sleep", str(DAEMON_SECONDS)], {})
    os.waitpid(first, 0)


def testify_to_the_start(job: Job) -> None:
    """Testifies to the start of an attempt, and whether an earlier one of the same trial is alive."""
    # Held until this process is gone: of two attempts at once, the second cannot have it.
    lock = os.open(f"{os.environ[WITNESS]}.{job.uid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        testify("OVERLAP", job.uid)
    testify("START", job.uid, job.attempt, os.getpid())


def testifying(run: Callable[[Job, Progress], Measurement]) -> Callable[[Job, Progress], Measurement]:
    """Returns the trainer's `run`, whose start and end the witness hears of."""

    def testified(job: Job, progress: Progress) -> Measurement:
        testify_to_the_start(job)
        found = run(job, progress)
        testify("END", job.uid, job.attempt, repr(found.throughput))
        return found

    return testified


def measure(job: Job, progress: Progress) -> Measurement:
    """Takes some hundredths of a second; a batch that is too large does not fit."""
    testify_to_the_start(job)
    progress.stage("build")
    leave_a_daemon(job.uid)
    progress.device(noop.CPU)
    for _ in range(STEPS):
        time.sleep(STEP_SECONDS)
    if job.config.batch_size > TOO_LARGE:
        testify("END", job.uid, job.attempt, "oom")
        raise TrialFailedError("oom", f"a batch of {job.config.batch_size} does not fit")
    speed = throughput(job.config)
    testify("END", job.uid, job.attempt, repr(speed))
    return noop.synthetic(speed)


def probe(job: Job, progress: Progress) -> Report:
    """Finds a CPU of two cores."""
    return Report(
        values={"devices": encode([noop.CPU]), "usable_cpus": 2, "lacks": {}, "versions": {}},
        finished_at=time.time(),
    )


def prepare(job: Job, progress: Progress) -> Report:
    """Makes nothing."""
    Path(job.prepared).mkdir(parents=True, exist_ok=True)
    return Report(values={"synthetic": True, "notes": []}, finished_at=time.time())


def preflight(job: Job, progress: Progress) -> Report:
    """Finds that everything runs."""
    return Report(values={"steps": 1}, finished_at=time.time())


RUNNERS = {
    "sweeper.trainer.measure": measure,
    "sweeper.trainer.preflight": preflight,
    "sweeper.trainer.probe": probe,
    "sweeper.trainer.prepare": prepare,
}


def take_the_trainers_place() -> None:
    """Has jobs that name the trainer find the stub."""
    for name, run in RUNNERS.items():
        module = type(sys)(name)
        module.run = run  # type: ignore[attr-defined]
        sys.modules[name] = module
