"""Runs parcels on a worker of a cluster, with a local launcher.

    worker of the cluster (one job, one GPU) ──► server ──fork──► keeper ──► trial

All files are in the worker's scratch folder, except for prepared data and compile caches, which the
workers of a machine share and keep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sweeper.core.job import (
    ANYWHERE,
    PREPARE_RUNNER,
    PROBE_RUNNER,
    Job,
    MeasurePlan,
    write_job,
    write_outcome,
)
from sweeper.core.measurement import Failure, Outcome, Report
from sweeper.core.workload import needs_prepared_data
from sweeper.errors import EnvironmentStopError
from sweeper.launch.launcher import Handle
from sweeper.launch.local import LocalLauncher
from sweeper.launch.parcel import Parcel, pack_folder, write_code
from sweeper.launch.pool import WorkerDescription
from sweeper.system.cpu import cpu_name
from sweeper.system.flock import open_locked
from sweeper.telemetry.nvml.devices import gpu_names

SCRATCH = "SWEEPER_SCRATCH"
"""Environment variable that names a node's folder for scratch folders and caches.

By default, that is the folder of temporary files.
"""

ENDS_AT = "SWEEPER_JOB_ENDS_AT"
"""Environment variable of a job: when it ends, in seconds since 1970 by the node's clock."""
IDLE_SECONDS = 600.0
"""Seconds of silence after which a supervisor counts as gone."""
PREPARE_SECONDS = 3600.0

_SET_BY_DASK = {"MALLOC_TRIM_THRESHOLD_": "65536"}
"""Variables that Dask's nanny sets for its own worker. With this one, a training would get its memory from
the kernel at each step, which a plain script does not."""

_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NONE = ("", "-1", "NoDevFiles")
_LOCK = threading.Lock()
_NODES: dict[str, Node] = {}


def describe_worker(needs_gpu: bool, on_cpu: bool = False) -> WorkerDescription:
    """Returns the description of the worker that calls it.

    Args:
        needs_gpu: Whether the worker must have its own GPU; without one, it refuses trials.
        on_cpu: Whether trials run on the CPU, so that GPUs are ignored.
    """
    gpu, names = os.environ.get(_VISIBLE, ""), [] if on_cpu else gpu_names()
    ends_at = os.environ.get("SLURM_JOB_END_TIME") or os.environ.get(ENDS_AT) or ""
    return WorkerDescription(
        host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        gpu=gpu,
        job=next((os.environ[name] for name in _JOB_IDS if os.environ.get(name)), ""),
        model=names[0] if names else cpu_name(),
        seconds_left=_seconds_until(int(ends_at)) if ends_at.isdigit() else None,
        refusal=f"GPUs were requested, but {_VISIBLE} names none" if needs_gpu and gpu in _NONE else "",
    )


def _seconds_until(stamp: float) -> float:
    """Returns the seconds from now to a wall-clock timestamp."""
    ahead = time.time() - time.monotonic()
    return stamp - ahead - time.monotonic()


def run_parcel(data: bytes) -> bytes:
    """Runs the parcel in `data` and returns its packed results.

    Raises:
        ValueError: An earlier supervisor sent the parcel, or the worker still runs a job of the sweep.
    """
    parcel = Parcel.from_bytes(data)
    with _LOCK:
        node = _NODES.get(parcel.sweep)
        if node is not None and node.epoch != parcel.epoch:
            if parcel.epoch < node.epoch:
                raise ValueError("it was sent by an earlier supervisor of this sweep, which is gone")
            # An earlier supervisor's node: nobody waits for its jobs.
            node.close()
            node = None
        if node is None:
            node = _NODES[parcel.sweep] = Node(parcel)
        if node.is_busy:
            raise ValueError("it is still running another job of this sweep")
        node.begin()
    return node.run(parcel)


def cancel(sweep: str, attempts: Sequence[tuple[str, int]]) -> None:
    """Ends the given attempts (uid and number) if they run on this worker; they are lost."""
    if node := _NODES.get(sweep):
        node.cancel(attempts)


def relieve(sweep: str, epoch: int) -> None:
    """Frees this worker from jobs that an earlier supervisor of the sweep left running."""
    node = _NODES.get(sweep)
    if node is not None and node.epoch < epoch:
        # The thread of Dask or Ray that makes this call must not wait.
        threading.Thread(target=leave, args=(sweep, epoch), daemon=True).start()


def leave(sweep: str, before: float = math.inf) -> None:
    """Ends everything that a sweep runs on this worker.

    Args:
        before: Jobs of this epoch or a later one are left alone.
    """
    with _LOCK:
        node = _NODES.get(sweep)
        if node is not None and node.epoch < before:
            del _NODES[sweep]
            node.close()


class Node:
    """A sweep on a worker: its scratch folder and its launcher, reused from trial to trial."""

    def __init__(self, parcel: Parcel) -> None:
        self.epoch, self._sweep = parcel.epoch, parcel.sweep
        root = _own_folder(Path(os.environ.get(SCRATCH) or tempfile.gettempdir()))
        self._cache = root / "cache"
        self._cache.mkdir(exist_ok=True)
        _clear(root)
        self._scratch = Path(tempfile.mkdtemp(prefix="work-", dir=root))
        self._held = open_locked(self._scratch / "lock", wait=False)
        self._launcher = LocalLauncher(
            self._scratch,
            isolation=parcel.isolation,
            pass_env=parcel.pass_env,
            environ={**_environment_without_dask(), **parcel.env},
        )
        self._handle: Handle | None = None
        self._job: Job | None = None
        self.is_busy = False
        self._packing = threading.Lock()
        self._timer = self._new_timer()

    def begin(self) -> None:
        """Marks the node as busy when a parcel arrives."""
        self.is_busy = True
        self._timer.cancel()

    def run(self, parcel: Parcel) -> bytes:
        """Runs a parcel's job and returns its packed results."""
        try:
            job = self._job = self._job_here(parcel)
            folder = self._scratch / "jobs" / f"{job.uid}-{job.attempt}"
            failure = (
                self._prepare_data(job) if needs_prepared_data(job) and job.runner != PREPARE_RUNNER else None
            )
            if failure is None:
                self._run(folder, job)
            else:
                write_job(folder, job)
                write_outcome(folder, failure)
            with self._packing:
                packed = pack_folder(folder)
            shutil.rmtree(folder, ignore_errors=True)
            return packed
        finally:
            self._job, self.is_busy = None, False
            self._timer = self._new_timer()

    def _job_here(self, parcel: Parcel) -> Job:
        """Returns the parcel's job with this machine's folders and this worker's device."""
        job, code = parcel.job, self._scratch / "code" / _digest(parcel.code)
        if not code.exists():
            write_code(code, parcel.code)
        folder = self._scratch / "jobs" / f"{job.uid}-{job.attempt}"
        return dataclasses.replace(
            job,
            import_paths=(str(code),) if needs_prepared_data(job) else job.import_paths,
            prepared=str(self._cache / Path(job.prepared).name) if job.prepared else "",
            cache=str(self._cache / "compile"),
            trace=str(folder / Path(job.trace).name) if job.trace else "",
            device=_own_device() if job.device == ANYWHERE and job.runner != PROBE_RUNNER else job.device,
        )

    def _prepare_data(self, job: Job) -> Failure | None:
        """Prepares the data on this machine, once for all its workers; returns the failure, if any."""
        prepared = Path(job.prepared)
        if prepared.exists():
            return None
        with open_locked(prepared.with_name(prepared.name + ".lock")):
            if prepared.exists():
                return None
            preparing = dataclasses.replace(
                job,
                uid="prepare",
                runner=PREPARE_RUNNER,
                plan=MeasurePlan(repeats=0),
                device="cpu",
                timeout_seconds=PREPARE_SECONDS,
                stage_seconds={},
                stall_seconds=0.0,
            )
            folder = self._scratch / "jobs" / "prepare"
            shutil.rmtree(folder, ignore_errors=True)
            outcome = self._run(folder, preparing)
        if isinstance(outcome, Failure):
            message = f"preparing the data on {socket.gethostname()}: {outcome.message}"
            return dataclasses.replace(outcome, message=message, log="", detail=outcome.detail)
        return None

    def _run(self, folder: Path, job: Job) -> Outcome | Report:
        write_job(folder, job)
        self._handle = self._launcher.submit(folder)
        return self._handle.result()

    def cancel(self, attempts: Sequence[tuple[str, int]]) -> None:
        """Ends the running job if it is one of `attempts`."""
        job = self._job
        if self._handle is not None and job is not None and (job.uid, job.attempt) in attempts:
            self._handle.cancel()

    def close(self) -> None:
        """Ends the server with all its processes, and removes the scratch folder."""
        self._timer.cancel()
        self._launcher.close()
        # The job has ended by now, but its results may still be being packed.
        with self._packing:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._held.close()

    def _new_timer(self) -> threading.Timer:
        timer = threading.Timer(IDLE_SECONDS, self._expire)
        timer.daemon = True
        timer.start()
        return timer

    def _expire(self) -> None:
        with _LOCK:
            if _NODES.get(self._sweep) is self and not self.is_busy:
                del _NODES[self._sweep]
                self.close()


def _own_folder(where: Path) -> Path:
    """Returns a folder that only this user can write to, since cached code in it is executed.

    Raises:
        EnvironmentStopError: Somebody else has created it.
    """
    folder = where / f"sweeper-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise EnvironmentStopError(
            f"{folder} on {socket.gethostname()} must be this user's own folder, but belongs to somebody "
            f"else. Remove it, or name another place with {SCRATCH}."
        )
    return folder


def _environment_without_dask() -> dict[str, str]:
    """Returns this worker's environment without what Dask has set (`_SET_BY_DASK`)."""
    return {name: value for name, value in os.environ.items() if _SET_BY_DASK.get(name) != value}


def _own_device() -> str:
    """Returns this worker's device in the form that jobs use."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None and visible in _NONE:
        return "cpu"
    # A container may have a GPU, but not NVML to count it.
    count = len(gpu_names()) or int(any(Path("/dev").glob("nvidia[0-9]*")))
    return (visible or ",".join(map(str, range(count)))) if count else "cpu"


def _digest(code: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(code.items())).encode()).hexdigest()[:16]


def _clear(root: Path) -> None:
    """Removes the scratch folders of killed workers, whose locks nobody holds."""
    for folder in _scratches(root):
        with contextlib.suppress(OSError), open_locked(folder / "lock", wait=False):
            shutil.rmtree(folder, ignore_errors=True)


def _scratches(root: Path) -> Iterator[Path]:
    for folder in root.glob("work-*"):
        # A new folder may have no lock file yet, or one that nobody holds yet.
        with contextlib.suppress(OSError):
            if -_seconds_until((folder / "lock").stat().st_mtime) > IDLE_SECONDS:
                yield folder
