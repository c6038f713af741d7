"""A sweep that is told to end, or whose disk takes no more: what was cut off, and what the folder says."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest
from parts.replay import ReplayLauncher
from replays import Bench, surface

from sweeper.core.job import read_job, read_outcome
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import EnvironmentStopError
from sweeper.sweep import job_runner
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.job_runner import INTERRUPTED, TICK_SECONDS, JobRunner, Slot
from sweeper.sweep.stopping import EndedError

NUMBER = 4


def journal_of(bench: Bench) -> Journal:
    return Journal(bench.home / "sweeps" / "toy")


def told_to_end(after: int):
    """A surface whose supervisor is told to end while a trial runs, after so many others."""
    left = [after]

    def answer(config):
        if not left[0]:
            raise EndedError
        left[0] -= 1
        return surface(config)

    return answer


def test_a_trial_cut_off_because_the_sweep_was_told_to_end_has_lost_no_attempt(bench):
    for after in (NUMBER, 0, 0):
        with pytest.raises(EndedError):
            bench.run(answer=told_to_end(after))
        assert (journal_of(bench).trial_folder(NUMBER) / INTERRUPTED).exists()
    bench.run()
    folder = journal_of(bench).trial_folder(NUMBER)
    assert isinstance(read_outcome(folder), Measurement)
    assert read_job(folder).attempt == 0
    assert not (folder / INTERRUPTED).exists()


def test_on_a_full_disk_no_attempt_is_made_again(bench, monkeypatch):
    """The worker cannot write its outcome: it leaves nothing, as one that was killed."""
    submitted = []

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    def answer(config):
        submitted.append(config)
        monkeypatch.setattr(job_runner, "write_atomic", full)
        return Failure(kind=FailureKind.LOST, message="the worker ended and left no outcome")

    with pytest.raises(EnvironmentStopError, match="No space left on device"):
        bench.run(answer=answer)
    assert len(submitted) == 1
    monkeypatch.undo()


def test_ctrl_c_while_traces_are_made_keeps_the_result(bench, tmp_path, monkeypatch):
    made = []

    class Counting(ReplayLauncher):
        def submit(self, folder):
            made.append(folder)
            return super().submit(folder)

    monkeypatch.setattr("replays.ReplayLauncher", Counting)
    Bench(tmp_path / "whole").run()
    last = len(made)
    assert made[-1].parent.name == "setup" or "trace" in str(made[-1])
    made.clear()

    def answer(config):
        if len(made) == last:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.6)
        return surface(config)

    ran = bench.run(answer=answer)
    assert len(made) == last
    assert ran.stopped
    result = journal_of(bench).result()
    assert result is not None
    assert result.confirmation.winner is not None
    assert not bench.run().was_run


def test_a_signal_that_takes_long_to_handle_does_not_end_the_ticks():
    """With a SimpleQueue, the wait would go on until a job ends, if a signal is handled past its timeout."""
    ticks: list[float] = []
    runner = JobRunner(ReplayLauncher(surface), [Slot("cpu")], lambda: ticks.append(time.monotonic()))
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(2 * TICK_SECONDS))
    at_last = threading.Timer(5.0, lambda: runner._ended.put(None))  # type: ignore[arg-type]
    try:
        at_last.start()
        signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS / 2)
        began = time.monotonic()
        assert runner._take_ended() == []
        assert time.monotonic() - began < 3.0
    finally:
        signal.signal(signal.SIGALRM, before)
        at_last.cancel()
    assert len(ticks) == 1
