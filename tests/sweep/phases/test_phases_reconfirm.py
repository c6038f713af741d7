"""What is tried again, on which device; and when the same error three times ends a sweep."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from parts.replay import ReplayLauncher
from replays import Bench, Watcher, failing, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.job import MAX_ATTEMPTS, RETRIED, Job, read_outcome
from sweeper.core.measurement import INFEASIBLE, DeviceInfo, Failure, FailureKind, Outcome, Report
from sweeper.errors import EnvironmentStopError
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker

DEVICES = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in "ab"]


def test_the_environments_doing_is_tried_twice_more_and_nothing_else_is():
    assert {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.DEVICE_BUSY} <= RETRIED
    assert MAX_ATTEMPTS == 3
    assert not INFEASIBLE & RETRIED


FINDINGS = [kind for kind in FailureKind if kind not in {*RETRIED, FailureKind.OOM_EXPECTED}]


@pytest.mark.parametrize("kind", FINDINGS)
def test_a_finding_is_no_reason_to_try_again(bench: Bench, kind: FailureKind):
    bench.run(spec_of(search={"trials": 2}, confirm={"rounds": 0}), failing(kind))
    assert [job.attempt for job in bench.jobs("search")] == [0, 0]


class Losing(ReplayLauncher):
    """Devices which searched trials lose; `where` keeps on which each ran."""

    def __init__(self, lost: set[str], devices: Sequence[DeviceInfo]) -> None:
        super().__init__(surface, devices=devices, sleep_seconds=0.01)
        self.lost, self.where = lost, list[str]()

    def _answer(self, job: Job) -> Outcome | Report:
        if job.plan.repeats and job.stage == "search":
            self.where.append(job.device)
            if job.device in self.lost:
                return Failure(kind=FailureKind.DEVICE_LOST, message="GPU is lost")
        return super()._answer(job)


def run_losing(home: Path, launcher: Losing) -> None:
    spec = spec_of(search={"trials": 6}, confirm={"rounds": 0})
    run_sweep(home, spec, NullTracker(), Watcher(), launch=lambda folder: launcher)


def test_a_trial_whose_device_is_gone_runs_on_another_and_that_one_is_left_alone(bench: Bench):
    launcher = Losing({"GPU-a"}, DEVICES)
    run_losing(bench.home, launcher)
    assert launcher.where.count("GPU-a") == 1
    assert launcher.where.count("GPU-b") == 6
    folder = bench.home / "sweeps" / "toy" / "trials"
    assert not [path for path in folder.iterdir() if isinstance(read_outcome(path), Failure)]


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES])
def test_no_device_left_ends_the_sweep(bench: Bench, devices: list[DeviceInfo]):
    launcher = Losing({"GPU-a", "GPU-b"}, devices)
    with pytest.raises(EnvironmentStopError, match=r"GPU lost: GPU-. did not come back in 3 attempts"):
        run_losing(bench.home, launcher)
    assert 3 <= len(launcher.where) <= 3 * len(devices)
    kept = read_outcome(bench.home / "sweeps" / "toy" / "trials" / "0000")
    assert not isinstance(kept, Failure)


# -- the same error ---------------------------------------------------------------------------------------


def broken(*messages: str | None, kind: FailureKind = FailureKind.USER_ERROR) -> Any:
    """The searched trials end with these errors, in order; None is a measurement, and so is all after."""
    left = list(messages)

    def answer(config: TrialConfig) -> Any:
        if config.loader.kind == "rows" or not left:
            return surface(config)
        message = left.pop(0)
        return surface(config) if message is None else Failure(kind=kind, message=message)

    return answer


@pytest.mark.parametrize(
    "messages",
    [
        ("it broke", "it broke", "it broke"),
        # One error, though it names an address, a size, a process, a time.
        (
            "KeyError: <Batch at 0x7f31a0b2>, 128 rows (m.py:7)",
            "KeyError: <Batch at 0x7faa01c4>, 64 rows (m.py:7)",
            "KeyError: <Batch at 0x55d0>, 4,096 rows (m.py:7)",
        ),
        # The first three have a precision in common, which is out once the next fails without it.
        ("it broke", "something else", "it broke", "it broke", "it broke"),
    ],
)
def test_the_same_error_in_the_first_trials_ends_the_sweep(bench: Bench, messages: tuple[str, ...]):
    with pytest.raises(EnvironmentStopError, match="the same error ended 3 trials") as caught:
        bench.run(answer=broken(*messages, *["it broke"] * 3))
    assert messages[-1] in str(caught.value)
    assert len(bench.jobs("search")) == len(messages)


@pytest.mark.parametrize(
    "messages",
    [
        ("it broke", "it broke", None),
        ("it broke", "something else", "a third one", None),
        (None, "it broke", "it broke", "it broke", "it broke"),
        ("it broke", None, "it broke", "it broke", "it broke"),
    ],
)
def test_one_bad_configuration_or_a_measured_trial_keeps_it_going(
    bench: Bench, messages: tuple[str | None, ...]
):
    bench.run(answer=broken(*messages))
    assert len(bench.jobs("search")) == 8


def test_findings_are_no_errors_of_the_user(bench: Bench):
    bench.run(answer=broken(*["CUDA out of memory"] * 5, kind=FailureKind.OOM))
    assert len(bench.jobs("search")) == 8


def test_entries_of_also_try_that_fail_do_not_end_it(bench: Bench):
    """Each is one configuration that somebody wrote down; the search has not begun."""

    def answer(config: TrialConfig) -> Any:
        odd = config.loader.kind == "rows" and config.batch_size > 64
        return Failure(kind=FailureKind.USER_ERROR, message="odd") if odd else surface(config)

    entries = [{"loader.kind": "rows", "batch_size": size} for size in (128, 256, 512)]
    bench.run(spec_of(also_try=entries), answer)
    assert len(bench.jobs("search")) == 8


# -- after Ctrl-C -----------------------------------------------------------------------------------------


def test_a_hurry_ends_in_time_where_no_worker_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A job that waits for a worker has no time limit of its own yet."""
    monkeypatch.setattr("sweeper.sweep.phases.confirm.HURRY_SECONDS", 0.5)
    monkeypatch.setattr("sweeper.sweep.budget.LATE_SECONDS", 0.5)
    gone = threading.Event()

    def interrupting(config: TrialConfig) -> Any:
        if len(bench.jobs("search")) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        if bench.jobs("race"):
            gone.wait(8)
        return surface(config)

    cancel = JobRunner.cancel

    def cancelled(runner: JobRunner) -> None:
        if bench.jobs("race"):
            gone.set()
        cancel(runner)

    monkeypatch.setattr(JobRunner, "cancel", cancelled)
    assert bench.run(answer=interrupting).stopped
    assert gone.is_set(), "nobody cancelled what waited"
    assert (bench.home / "sweeps" / "toy" / "interim_result.json").exists()


def test_rounds_in_a_hurry_go_when_the_sweep_goes_on(bench: Bench):
    def interrupting(config: TrialConfig) -> Any:
        if len(bench.jobs("search")) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return surface(config)

    folder: Path = bench.home / "sweeps" / "toy"
    assert bench.run(answer=interrupting).stopped
    assert list((folder / "races/interim").iterdir())
    # A round that was cut off: asked for, and without an outcome.
    (folder / "races/interim" / "0099").mkdir()
    (folder / "races/interim" / "0099" / "config.json").write_bytes(
        next((folder / "races/interim").glob("*/config.json")).read_bytes()
    )

    def look(config: TrialConfig) -> Any:
        assert not (folder / "races/interim").exists()
        assert not (folder / "interim_result.json").exists()
        return surface(config)

    assert not bench.run(answer=look).stopped
    assert not (folder / "races/interim").exists()
