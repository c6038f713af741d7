"""Runs one job as its keeper: starts the trial, listens, samples telemetry, kills its process tree.

    keeper ──fork──► trial ──► loader workers, compilers, daemons, ...
       └─ subreaper: orphans of the trial become the keeper's children and are killed

The keeper dies with the server that forked it, and the trial with the keeper. GPUs are locked
before the trial starts; the wait does not count towards the trial's time.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode
from sweeper.core.contamination import of_gpu
from sweeper.core.gpu_series import by_rank
from sweeper.core.job import (
    ANYWHERE,
    LOG,
    OUTCOME,
    SERIES,
    TELEMETRY_LOG,
    Job,
    decode_outcome,
    read_job,
    write_outcome,
)
from sweeper.core.measurement import (
    DeviceInfo,
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    Report,
    Window,
)
from sweeper.core.modules import set_import_paths
from sweeper.system.environment import secrets
from sweeper.system.failpoints import failpoint
from sweeper.system.process import tree
from sweeper.telemetry.log import write_log
from sweeper.telemetry.probes import make_probes
from sweeper.telemetry.sampler import ProbeSampler, save, summarise
from sweeper.worker import failures, stacks
from sweeper.worker.deadlines import KillReason, OverdueWatch
from sweeper.worker.locks import DeviceBusyError, lock_devices
from sweeper.worker.log import BoundedLog, last_lines
from sweeper.worker.trial_process import TrialProcess

_PR_SET_CHILD_SUBREAPER = 36
_PIECES = 64
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every orphaned descendant (a subreaper)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep(folder: Path, isolation: str = "exec", trial: TrialProcess | None = None) -> None:
    """Runs the job in `folder` until its outcome.json is written and all its processes are gone.

    On SIGTERM it kills the trial and leaves no outcome: the attempt is lost.

    Args:
        isolation: A key of `sweeper.worker.trial_process.STARTS`.
        trial: The process that becomes the trial; a new one by default.
    """
    signal.signal(signal.SIGTERM, abandon)
    failpoint("given")
    folder = folder.resolve()
    adopt_orphans()
    trial = trial or TrialProcess()
    job = read_job(folder)
    set_import_paths(job.import_paths)
    keeper = _Keeper(folder, job, trial)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held: list[int] = []
    try:
        # Both processes have the descriptors and hold the locks, as do all that the trial starts.
        held = lock_devices(folder, job, keeper.say)
        outcome = keeper.run(isolation, held)
    except DeviceBusyError as error:
        outcome = keeper.fail_as_busy(str(error))
    except BaseException:
        end_tree(os.getpid())
        raise
    failpoint("ended")
    write_outcome(folder, outcome, keeper.secrets)
    failpoint("committed")
    assert (folder / OUTCOME).exists()
    for descriptor in held:
        # The next job need not wait for this process to exit.
        os.close(descriptor)


def abandon(number: int, frame: Any) -> None:
    """Kills what this process has started and exits without an outcome; a handler for SIGTERM."""
    end_tree(os.getpid())
    os._exit(128 + number)


class _Keeper:
    def __init__(self, folder: Path, job: Job, trial: TrialProcess) -> None:
        self.folder, self.job, self.trial = folder, job, trial
        self.secrets = secrets({**os.environ, **job.env})
        self.log = BoundedLog(folder / LOG, self.secrets)
        self.others = _other_gpus(job)
        self.probes = make_probes(job.probes, self.others)
        self.sampler = ProbeSampler(self.probes)
        self.stage = "start"
        self.device_uuid = ""
        self.result: Outcome | Report | None = None
        self._partial = b""

    def say(self, line: str) -> None:
        """Writes a line to the trial's log."""
        self.log.write(f"{line}\n".encode(errors="backslashreplace"))

    def fail_as_busy(self, message: str) -> Failure:
        """Returns the failure of a job whose device stayed busy."""
        self.trial.end()
        self.log.close()
        return Failure(
            kind=FailureKind.DEVICE_BUSY,
            message=message,
            stage=self.stage,
            log=LOG,
            finished_at=time.time(),
        )

    def run(self, isolation: str, held: Sequence[int]) -> Outcome | Report:
        """Starts the trial; returns its outcome once none of its processes is left.

        Args:
            held: Descriptors of locks for the trial to hold.
        """
        began = time.perf_counter()
        job = self.job
        self.overdue = OverdueWatch(job.timeout_seconds, job.stage_seconds, job.stall_seconds, began)
        kills_before = failures.oom_kills()
        self.trial.begin(self.folder, isolation, held)
        reports, output, steps = self.trial.reports, self.trial.output, self.trial.steps
        process = os.pidfd_open(self.trial.pid)
        finding: KillReason | None = None
        poller = select.poll()
        for descriptor in (reports, output, process):
            poller.register(descriptor, select.POLLIN)
        while True:
            events = dict(poller.poll(self.overdue.seconds_to_look(time.perf_counter()) * 1e3))
            if reports in events and not self._drain(reports, lambda data: self._listen(data, reports)):
                poller.unregister(reports)
            if output in events and not self._drain(output, self.log.write):
                poller.unregister(output)
            if process in events:
                break
            finding = self.overdue.look(time.perf_counter(), steps.count, steps.is_paused)
            if finding is not None:
                self._save_stacks(output)
                os.kill(self.trial.pid, signal.SIGKILL)
                break
        _, status = os.waitpid(self.trial.pid, 0)
        end_tree(os.getpid())
        self._drain(reports, lambda data: self._listen(data, None))
        self._drain(output, self.log.write)
        if self.result is None:
            self._save_telemetry()
        self.log.close()
        self.trial.close()
        os.close(process)
        return self._conclude(
            status, finding, time.perf_counter() - began, failures.oom_kills() - kills_before
        )

    def _save_stacks(self, output: int) -> None:
        def listen(seconds: float) -> None:
            time.sleep(seconds)
            self._drain(output, self.log.write)

        listen(0.0)
        stacks.save(self.trial.pid, listen, self.log.write)

    @staticmethod
    def _drain(descriptor: int, take: Callable[[bytes], None]) -> bool:
        """Reads the available data; returns False at the end of the pipe.

        Bounded, so that a trial that writes faster than this reads still meets its deadline.
        """
        for _ in range(_PIECES):
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                # The other end closed the socket without reading everything.
                return False
            if not data:
                return False
            take(data)
        return True

    def _listen(self, data: bytes, answer: int | None) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "stage" in message:
                self.stage = message["stage"]
                self.overdue.stage(self.stage, time.perf_counter(), self.trial.steps.count)
                if self.stage == "window" and self.device_uuid:
                    self.sampler.request_slow_readings()
            elif "device" in message:
                info = decode(DeviceInfo, message["device"])
                self.device_uuid = info.uuid
                if self.job.plan.repeats:
                    self.sampler.start(self.trial.pid, info.uuid)
            elif "window" in message:
                self.overdue.note_life(time.perf_counter())
                if answer is not None:
                    line = _line(self._find_disturbances(decode(Window, message["window"])))
                    # The trial may have exited meanwhile.
                    with contextlib.suppress(OSError):
                        os.write(answer, line)
            else:
                # The trial exits meanwhile.
                self.result = self._add_telemetry(decode_outcome(message["result"]))

    def _find_disturbances(self, window: Window) -> tuple[str, ...]:
        """Returns what disturbed a window on a GPU; the trial itself watches the host."""
        if not self.device_uuid:
            return ()
        means = self.sampler.read_means(window)
        disturbances = [of_gpu(series) for series in by_rank(means, 1 + len(self.others))]
        return tuple(dict.fromkeys(itertools.chain(*disturbances)))

    def _unsampled_gpus(self) -> dict[str, str]:
        count = self.job.config.device.count
        if count == 1 or len(self.others) == count - 1:
            return {}
        return {"other_gpus": f"only the first of {count} GPUs is sampled"}

    def _save_telemetry(self) -> dict[str, list[float]]:
        """Ends sampling; saves and returns the series."""
        self.sampler.stop()
        columns = self.sampler.columns()
        save(columns, self.folder / SERIES)
        write_log(columns, self.folder / TELEMETRY_LOG)
        return columns

    def _add_telemetry(self, result: Outcome | Report) -> Outcome | Report:
        """Saves the telemetry; returns the result with its summary."""
        columns = self._save_telemetry()
        if not isinstance(result, Measurement):
            return result
        peak = result.gpu_mem_peak_gib
        if peak is None:
            # A script reports no peak; use the memory in use on the device.
            read = (gib for gib in columns.get("gpu_mem_used_gib", ()) if not math.isnan(gib))
            peak = max(read, default=None)
        return dataclasses.replace(
            result,
            gpu_mem_peak_gib=peak,
            telemetry=summarise(columns, result.windows),
            telemetry_missing={**self.sampler.missing_reasons(), **self._unsampled_gpus()},
        )

    def _conclude(
        self, status: int, finding: KillReason | None, seconds: float, oom_kills: int
    ) -> Outcome | Report:
        if isinstance(self.result, Measurement):
            return dataclasses.replace(self.result, seconds=seconds)
        if isinstance(self.result, Report):
            return self.result
        tail = last_lines(self.folder / LOG)
        if isinstance(self.result, Failure):
            kind = failures.with_oom_kills(self.result.kind, oom_kills)
            return dataclasses.replace(self.result, kind=kind, detail=tail, log=LOG, seconds=seconds)
        if finding is not None:
            kind, message = finding.kind, finding.message
        else:
            kind, message = failures.of_exit(status, tail, oom_kills)
        for probe in self.probes:
            if probe.lost:
                kind, message = FailureKind.DEVICE_LOST, f"{probe.missing.get('gpu', 'GPU lost')}: {message}"
        return Failure(
            kind=kind,
            message=message,
            stage=self.stage,
            detail=tail,
            log=LOG,
            seconds=seconds,
            finished_at=time.time(),
        )


def _other_gpus(job: Job) -> list[str]:
    """Returns the GPUs from rank 1 on; empty if there are none, or if they are not known here."""
    return [] if job.device == ANYWHERE else job.device.split(",")[1 : job.config.device.count]


def _line(answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def end_tree(root: int) -> None:
    """Kills and reaps every descendant of `root` (this process, a subreaper) until none is left."""
    while True:
        for pid in tree(root):
            if pid != root:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            # The only proof that none is left: /proc may miss a process whose parent is exiting.
            return
        time.sleep(0.002)
