"""What the keeper says of a window: of real windows in a real trial, beside a GPU that is made up."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parts.noop import synthetic

from sweeper.core.config import TrialConfig
from sweeper.core.job import SERIES, TELEMETRY_LOG, Job, MeasurePlan, read_outcome, write_job
from sweeper.core.measurement import DeviceInfo, FailureKind, Measurement, Window
from sweeper.core.progress import LocalSteps
from sweeper.telemetry import probes
from sweeper.telemetry.sampler import ProbeSampler, summarise
from sweeper.trainer.step.group import Group
from sweeper.trainer.timing.step_timer import StepTimer
from sweeper.worker import keeper
from sweeper.worker.trial import PipeProgress

FOREIGN = "other processes used the GPU"
WAIT_SECONDS = 60
PLAN = MeasurePlan(window_seconds=0.02, repeats=2)


class Gpu:
    """A probe that says how many strangers were on the GPU: by look, the first before any window."""

    name = "nvml"
    lost = False

    def __init__(self, strangers: Callable[[int], float]) -> None:
        self.missing = {"gpu_power_w": "not supported"}
        self.strangers, self.looks = strangers, 0

    def open(self, pid: int, device_uuid: str) -> None:
        self.pid = pid

    def read(self):
        return {"gpu_util_pct": 50.0}

    def read_between_windows(self):
        self.looks += 1
        return {"gpu_foreign_processes": self.strangers(self.looks - 1)}

    def close(self) -> None:
        pass


class Stuck(Gpu):
    """A driver that does not answer."""

    def open(self, pid: int, device_uuid: str) -> None:
        threading.Event().wait(30)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Runs a function of this module as a trial, below a keeper that is forked from this process."""
    pids = []

    def run(
        runner: Callable,
        probe: Gpu,
        name: str = "job",
        devices: int = 1,
        device: str = "cpu",
        **plan,
    ) -> tuple[Measurement, float]:
        monkeypatch.setitem(probes.BUILTIN, "nvml", lambda: probe)
        monkeypatch.setattr(keeper, "ProbeSampler", functools.partial(ProbeSampler, interval_seconds=0.005))
        job = Job(
            uid="w",
            runner=f"{__name__}:{runner.__name__}",
            config=TrialConfig().replace({"device.count": devices}),
            device=device,
            plan=dataclasses.replace(PLAN, **plan),
        )
        write_job(tmp_path / name, job)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                keeper.keep(tmp_path / name, "fork")
            finally:
                os._exit(0)
        pids.append(pid)
        poller = select.poll()
        ended = os.pidfd_open(pid)
        poller.register(ended, select.POLLIN)
        assert poller.poll(1e3 * WAIT_SECONDS)
        os.close(ended)
        os.waitpid(pids.pop(), 0)
        outcome = read_outcome(tmp_path / name)
        assert outcome is not None, "the keeper left no outcome"
        return outcome, time.monotonic() - began

    yield run
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def windows(job: Job, progress: PipeProgress, uuid: str = "GPU-1") -> Measurement:
    """Windows as a trial takes them, over steps that wait for a moment."""

    def step(loader, clock) -> int:
        time.sleep(1e-3)
        return 10

    progress.device(DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=uuid))
    progress.stage("window")
    stepper = SimpleNamespace(device=torch.device("cpu"), skipped=torch.zeros(()), step=step)
    timer = StepTimer(stepper, SimpleNamespace(drain_steps=1), Group.start(1, lambda *_: None))
    found = timer.take_windows(job.plan, 10, progress)
    return dataclasses.replace(synthetic(1e4), windows=found.kept, repeated_windows=found.repeated)


def windows_on_a_cpu(job: Job, progress: PipeProgress) -> Measurement:
    return windows(job, progress, uuid="")


def flags(found: Measurement) -> list[tuple[str, ...]]:
    return [window.disturbances for window in found.windows]


def test_beside_strangers_on_its_gpu_a_trials_windows_are_repeated_and_flagged(kept):
    found, _ = kept(windows, Gpu(lambda look: 1.0))
    assert flags(found) == [(FOREIGN,), (FOREIGN,)]
    assert found.contamination == (FOREIGN,)
    assert found.repeated_windows == 2


def test_a_stranger_that_goes_again_costs_a_repetition(kept):
    # Before the first window there was one, too, which is none of its business.
    found, _ = kept(windows, Gpu(lambda look: float(look in (0, 1))))
    assert flags(found) == [(), ()]
    assert found.repeated_windows == 1


def test_without_a_gpu_nothing_is_asked(kept):
    found, _ = kept(windows_on_a_cpu, Gpu(lambda look: 1.0))
    assert (flags(found), found.repeated_windows) == ([(), ()], 0)


def test_a_driver_that_never_answers_changes_and_delays_nothing(kept):
    """Its thread hangs for 30 s."""
    usual, seconds = kept(windows, Gpu(lambda look: 0.0), "usual")
    assert "nvml" not in usual.telemetry_missing
    stuck, later = kept(windows, Stuck(lambda look: 0.0), "stuck", repeats=5)
    assert stuck.telemetry_missing["nvml"] == "a reading did not come back in time"
    assert (flags(usual), flags(stuck)) == ([()] * 2, [()] * 5)
    assert stuck.repeated_windows == usual.repeated_windows == 0
    assert later - seconds < 1.0


def test_of_several_gpus_it_is_said_that_one_is_looked_at(kept):
    found, _ = kept(windows, Gpu(lambda look: 0.0), devices=2, device="auto", repeats=1)
    assert found.telemetry_missing["other_gpus"] == "only the first of 2 GPUs is sampled"


class Others(Gpu):
    """The second GPU of a trial."""

    def __init__(self, uuids: list[str]) -> None:
        super().__init__(lambda look: float(look == 1))
        self.name, self.missing = "other_gpus", {}
        assert uuids == ["GPU-2"]

    def read(self):
        return {"gpu1_util_pct": 40.0}

    def read_between_windows(self):
        return {"gpu1_foreign_processes": super().read_between_windows()["gpu_foreign_processes"]}


def test_a_stranger_on_another_of_its_gpus_costs_a_repetition(kept, monkeypatch):
    monkeypatch.setattr(probes, "OtherGpus", Others)
    found, _ = kept(windows, Gpu(lambda look: 0.0), devices=2, device="GPU-1,GPU-2,GPU-3")
    assert (flags(found), found.repeated_windows) == ([(), ()], 1)
    assert found.telemetry["gpu1_util_pct"].mean == 40.0
    assert "other_gpus" not in found.telemetry_missing


def test_telemetry_is_cut_to_the_windows_that_were_kept(kept, tmp_path):
    found, _ = kept(windows, Gpu(lambda look: float(look in (1, 2))), window_seconds=0.05)
    assert found.repeated_windows == 2
    columns = {path.stem: np.load(path).tolist() for path in (tmp_path / "job" / SERIES).glob("*.npy")}
    assert dict(found.telemetry) == summarise(columns, found.windows)
    assert found.telemetry["gpu_util_pct"].mean == 50.0
    assert {"nvml_read_ms", "host_read_ms"} <= set(found.telemetry)
    # Who was there is asked about between windows, and is no series of theirs.
    assert "gpu_foreign_processes" in columns
    assert "gpu_foreign_processes" not in found.telemetry
    first = min(window.start_s for window in found.windows)
    assert sum(moment < first for moment in columns["time_s"]) > 10
    assert found.telemetry_missing["gpu_power_w"] == "not supported"
    assert "GPU 50%" in (tmp_path / "job" / TELEMETRY_LOG).read_text()


# -- a trial that ends in the middle of it ---------------------------------------------------------------


def told(progress: PipeProgress) -> None:
    progress.device(DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-1"))
    progress.stage("window")
    progress.send(window=dataclasses.asdict(Window(start_s=0.0, seconds=1.0, steps=1, samples=1)))


def killed_before_the_answer(job: Job, progress: PipeProgress) -> Measurement:
    told(progress)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def killed_with_the_answer_unread(job: Job, progress: PipeProgress) -> Measurement:
    told(progress)
    select.select([progress._descriptor], [], [], WAIT_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Watching(Gpu):
    """Answers when the trial has gone."""

    def read_between_windows(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            while ") Z" not in file.read():
                file.seek(0)
                time.sleep(0.001)
        return super().read_between_windows()


@pytest.mark.parametrize(
    ("runner", "probe"),
    [(killed_before_the_answer, Watching), (killed_with_the_answer_unread, Gpu)],
    ids=["before the answer", "with the answer unread"],
)
def test_a_trial_that_is_killed_while_it_is_answered_is_lost(kept, runner, probe):
    """As the kernel does, out of memory: it ends the trial, and must not end the keeper."""
    outcome, _ = kept(runner, probe(lambda look: 0.0))
    assert outcome.kind is FailureKind.LOST
    assert outcome.stage == "window"


def ends(job: Job, progress: PipeProgress) -> Measurement:
    windows(job, progress)
    os._exit(3)


class Lost(Gpu):
    """A GPU that fell off the bus."""

    lost = True

    def __init__(self) -> None:
        super().__init__(lambda look: 0.0)
        self.missing = {"gpu": "GPU is lost"}


def test_where_the_gpu_went_away_that_is_why_a_trial_failed(kept):
    outcome, _ = kept(ends, Lost())
    assert outcome.kind is FailureKind.DEVICE_LOST
    assert outcome.message.startswith("GPU is lost: ")


# -- the trial's end of the line -------------------------------------------------------------------------


@pytest.fixture
def line() -> Iterator[tuple[PipeProgress, socket.socket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield PipeProgress(mine.fileno(), LocalSteps()), theirs


def test_a_window_is_told_before_its_answer_is_waited_for(line):
    progress, other = line
    answered = []
    window = Window(start_s=1.0, seconds=2.0, steps=3, samples=4, waited_seconds=None)

    def answer() -> None:
        with other.makefile("rb") as lines:
            answered.append(json.loads(lines.readline()))
            # In pieces, as a socket may give it.
            other.sendall(b'["one", "the ot')
            other.sendall(b'her"]\n[]\n')
            answered.append(json.loads(lines.readline()))

    thread = threading.Thread(target=answer)
    thread.start()
    assert progress.window(window) == ["one", "the other"]
    assert progress.window(dataclasses.replace(window, start_s=5.0)) == []
    thread.join()
    assert [message["window"]["start_s"] for message in answered] == [1.0, 5.0]


def test_a_keeper_that_has_gone_says_nothing(line):
    progress, other = line
    other.shutdown(socket.SHUT_WR)
    assert progress.window(Window(start_s=1.0, seconds=2.0, steps=3, samples=4)) == []
