"""Scripts that go wrong: the right failure, the script's own words, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import sys
import time

import guard
import pytest
from scripts import EVIL, PLAN, job_of

from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.script import Script


def evil(run, how: str, **changes):
    return run(job_of(EVIL, {"how": how, "batch_size": 32}, **changes))


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("nothing", FailureKind.NO_RESULT, "exited with status 0"),
        ("unit", FailureKind.IMPLAUSIBLE, "instead of the usual"),
        ("contradiction", FailureKind.IMPLAUSIBLE, "but its counts give"),
        ("cuda-oom", FailureKind.OOM, "CUDA out of memory"),
        ("host-oom", FailureKind.HOST_OOM, "MemoryError"),
        ("hub", FailureKind.USER_ERROR, "set `script: {env: {HF_HUB_OFFLINE: '0'}}`"),
        ("killed", FailureKind.LOST, "SIGKILL"),
        ("nan", FailureKind.NON_FINITE, "no longer finite"),
        # The record of what was heard has no number for it.
        ("nan-at-once", FailureKind.NON_FINITE, "no longer finite"),
        ("raise", FailureKind.USER_ERROR, "FileNotFoundError"),
    ],
)
def test_a_failure_is_named_in_the_scripts_own_words(run, how: str, kind: FailureKind, words: str):
    found = evil(run, how)
    assert isinstance(found, Failure), found
    assert (found.kind, words in found.message) == (kind, True), found.message


RANKS = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    if step == 20 and dist.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_out_of_memory_on_one_rank_ends_all_within_seconds(run, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    script = Script(
        command=(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            str(tmp_path / "ranks.py"),
        )
    )
    began = time.monotonic()
    found = run(job_of(script, {}))
    assert time.monotonic() - began < 30
    assert (found.kind, found.message) == (
        FailureKind.OOM,
        "the script exited with status 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
        " 2.00 GiB.",
    )


def test_the_scripts_last_lines_are_kept(run):
    found = evil(run, "raise")
    assert "no/such/file" in found.detail


@pytest.mark.parametrize("how", [pytest.param("hang", marks=pytest.mark.slow), "hang-at-once"])
def test_a_script_that_hangs_is_ended(run, monkeypatch, how: str):
    job = dataclasses.replace(job_of(EVIL, {"how": how, "batch_size": 32}), timeout_seconds=2)
    found = run(job)
    assert found.kind == FailureKind.TIMEOUT


def test_endless_output_is_bounded_and_ended(run, tmp_path):
    job = dataclasses.replace(job_of(EVIL, {"how": "endless", "batch_size": 32}), timeout_seconds=2)
    assert run(job).kind == FailureKind.TIMEOUT
    assert (tmp_path / "trial" / "worker.log").stat().st_size < 2**20


def test_children_end_with_their_script(run):
    found = evil(run, "fork")
    assert isinstance(found, Measurement), found
    # Of these tests: somebody else may run them at the same time.
    mine = os.environ[guard.MARK].split()[-1].rpartition(".")[0]
    assert not guard.living(
        lambda pid: b"1234.5" in guard.command_of(pid) and any(mine in word for word in guard.words_of(pid))
    )


def test_a_run_too_short_for_windows_is_measured_as_a_whole(run):
    found = evil(run, "short", plan=dataclasses.replace(PLAN, window_seconds=30))
    assert isinstance(found, Measurement)
    assert (len(found.windows), found.steady) == (1, False)


def test_a_program_that_is_not_there_is_the_users_error(run):
    found = run(job_of(Script(command=("no-such-program",)), {}))
    assert found.kind == FailureKind.USER_ERROR
    assert "no-such-program" in found.message
