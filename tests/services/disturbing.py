"""The bars on clusters: a sweep on SLURM, Dask or Ray that is disturbed, killed, continued and looked at."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.processes import wait_for
from services.slurm import Slurm
from services.sweeps import Sweep

LAUNCH = Path(__file__).parents[1] / "launch"


@dataclass(frozen=True)
class Survived:
    """What became of a sweep.

    Attributes:
        faults: What is wrong with it; nothing, where all is well.
        retried: Attempts that were lost, and ran again.
        devices: Distinct devices that trials ran on.
        at_once: The most trials that ran at the same time.
        seconds: It took, twice started.
    """

    faults: list[str]
    retried: int
    devices: int
    at_once: int
    seconds: float


def on_slurm(slurm: Slurm, folder: Path, trials: int, jobs: int) -> Survived:
    """Two jobs cancelled, one queued again, a worker and the supervisor killed, and all of it continued."""
    settings = [
        *("execution.launcher=slurm", "execution.gpus=0", f"execution.slots={jobs}"),
        *("execution.job.partition=main", "execution.job.time=30", "execution.job.cores=1"),
        *("execution.job.memory=500MB", "execution.job.interface=lo"),
        "execution.job.directives=[--gres=gpu:1]",
    ]

    def disturb(sweep: Sweep) -> None:
        busy = _busy(sweep, 4)
        slurm.scancel(busy[0], busy[1])
        slurm.requeue(busy[2])
        _kill_worker_of(busy[3], slurm)

    survived = _survived(Sweep(folder, settings, trials=trials, env=slurm.env), disturb)
    slurm.wait_empty()
    return survived


def on_dask(folder: Path, trials: int, workers: int) -> Survived:
    """A worker killed and another one joined, the supervisor killed, and all of it continued."""
    from clusters import local_dask

    (folder / "cluster").mkdir()
    (folder / "sweep").mkdir()
    with local_dask(folder / "cluster", workers) as cluster:
        settings = [
            *("execution.launcher=dask", f"execution.address={cluster.address}"),
            *("execution.gpus=0", f"execution.slots={workers}"),
        ]

        def disturb(sweep: Sweep) -> None:
            cluster.kill(int(next(each["gpu"] for each in sweep.workers() if each["busy"])))
            cluster.start(workers)

        return _survived(Sweep(folder / "sweep", settings, trials=trials), disturb)


def on_ray(folder: Path, trials: int) -> Survived:
    """A node killed and another one joined, the supervisor killed, and all of it continued."""
    (folder / "sweep").mkdir()
    with _ray_cluster(folder) as cluster:
        settings = [
            *("execution.launcher=ray", f"execution.address={_ask(cluster)}"),
            *("execution.gpus=0", "execution.slots=3"),
        ]

        def disturb(sweep: Sweep) -> None:
            for order in ("kill", "add"):
                _order(cluster, order)

        # As the cluster's own: on loopback, and open to this machine.
        env = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        return _survived(Sweep(folder / "sweep", settings, trials=trials, env=env), disturb)


def _survived(sweep: Sweep, disturb: Callable[[Sweep], None]) -> Survived:
    began = time.monotonic()
    supervisor = sweep.start()
    sweep.wait_for(sweep.trials // 4, 240, supervisor)
    wait_for(lambda: any(each["busy"] for each in sweep.workers()), 30, lambda: "no worker is busy")
    disturb(sweep)
    sweep.wait_for(sweep.trials // 2, 240, supervisor)
    wait_for(lambda: not sweep.has_last_attempts(), 60, lambda: "a trial was lost twice, and still runs")
    sweep.kill(supervisor)
    sweep.finish(sweep.start(), 300)
    seconds = time.monotonic() - began
    spans = sweep.spans()
    at_once = max(sum(began <= moment < ended for began, ended, _, _ in spans) for moment, *_ in spans)
    return Survived(sweep.faults(), sweep.retried(), len({each[2:] for each in spans}), at_once, seconds)


def _busy(sweep: Sweep, count: int) -> list[str]:
    """Returns the jobs of so many workers that run a trial, once there are so many."""

    def busy() -> list[str]:
        return [each["job"] for each in sweep.workers() if each["busy"]]

    wait_for(lambda: len(busy()) >= count, 60, lambda: f"{sweep.workers()}")
    return busy()[:count]


def _kill_worker_of(job: str, slurm: Slurm) -> None:
    """Kills the process of Dask's that runs a job's trial; its nanny starts another."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found = process.environ()
            # Another cluster on this machine has a job of that number, too.
            ours = found.get("SLURM_JOB_ID") == job and slurm.env.items() <= found.items()
            if ours and any("spawn_main" in word for word in process.cmdline()):
                process.kill()
                return
    raise AssertionError(f"job {job} has no worker")


@contextlib.contextmanager
def _ray_cluster(folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, LAUNCH / "ray_cluster.py", folder / "scratch"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()
        process.wait(timeout=10)


def _ask(process: subprocess.Popen[str]) -> str:
    """Returns the address, which is the first thing it says."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("address"):
            return line.split()[1]
    raise AssertionError("no Ray cluster came up")


def _order(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{order}\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.strip() == "done":
            return
    raise AssertionError(f"the cluster did not {order}")
