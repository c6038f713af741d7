"""Scripts that rest between two steps: none is interrupted, none is lost, and nothing is left stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core.progress import SilentProgress
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.script.run import process, start
from sweeper.script.run.start import RunningScript
from sweeper.script.run.watch import job_outside_a_sweep
from sweeper.system.process import tree

pytestmark = pytest.mark.slow

HEAD = """
import os, sys, time, torch
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 8)), 16)
"""
SHORT = """
for epoch in range(100_000):
    for (x,) in loader:
        os.write(log, b"(")
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        os.write(log, b")")
"""
LONG = SHORT.replace("optimizer.zero_grad()", "time.sleep(0.4)\n        optimizer.zero_grad()")
BY_HAND = """
del optimizer
for epoch in range(100_000):
    for (x,) in loader:
        os.write(log, b"(")
        model(x).mean().backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 1e-3 * each.grad
                each.grad = None
        os.write(log, b")")
"""
UNWATCHED = """
while True:
    time.sleep(0.01)
    print("loss: 1.0")
"""
EVALUATING = """
for epoch in range(100_000):
    if epoch == 2:
        model.eval()
        time.sleep(60)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


@contextlib.contextmanager
def running(folder: Path, body: str, *, is_guarded: bool = False) -> Iterator[tuple[RunningScript, Path]]:
    """Runs a script until it has trained for a moment; yields it, and its log of steps."""
    (folder / "train.py").write_text(HEAD + textwrap.dedent(body))
    log = folder / "steps"
    log.touch()
    command = tuple(map(literal, (sys.executable, "train.py", str(log))))
    unprotected = () if is_guarded else (str(folder),)
    script = Script(command=command, folder=str(folder), unprotected=unprotected)
    with job_outside_a_sweep(script) as job, start.started(job, SilentProgress()) as found:
        deadline = time.monotonic() + 60
        while not (found.listener.timeline.stretches or found.listener.num_lines > 2):
            assert time.monotonic() < deadline
            assert found.process.listen(0.05)
        yield found, log


def is_stopped(pid: int) -> bool:
    """Returns whether all processes of a tree are stopped, as soon as the signal has arrived."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        stats = [Path(f"/proc/{each}/stat").read_text() for each in tree(pid)]
        if {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("body", [SHORT, LONG, BY_HAND], ids=["short steps", "long steps", "by hand"])
def test_a_training_rests_between_two_steps_and_goes_on(tmp_path: Path, body: str) -> None:
    with running(tmp_path, body) as (script, log):
        # Steps of one kind are only counted from some hundred on.
        while body == SHORT and script.listener.watched.steps < 300:
            assert script.process.listen(0.05)
        for _ in range(4):
            assert script.process.pause()
            assert is_stopped(script.process.pid)
            seen = log.read_bytes()
            # A step ends with the optimizer's, or by hand with the backward pass.
            assert script.listener.watched.steps == seen.count(b"(")
            before, rested_at = script.listener.timeline.stretches[-1], time.perf_counter()
            time.sleep(0.3)
            assert log.read_bytes() == seen
            script.process.resume()
            steps = script.listener.watched.steps
            while script.listener.watched.steps == steps:
                assert script.process.listen(0.05)
            after = script.listener.timeline.stretches[-1]
            # The rest is no part of the next stretch.
            assert after.start_s > rested_at + 0.3
            assert before.end_s < rested_at
            assert after.paused_seconds == 0


def test_one_that_evaluates_is_stopped_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "REST_SECONDS", 0.3)
    with running(tmp_path, EVALUATING) as (script, _):
        while not script.listener.watched.is_pausing:
            assert script.process.listen(0.05)
        assert not script.process.pause()
        assert is_stopped(script.process.pid)
        script.process.resume()
        time.sleep(0.05)
        assert "T" not in Path(f"/proc/{script.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_is_not_watched_is_stopped_at_once(tmp_path: Path) -> None:
    with running(tmp_path, UNWATCHED) as (script, _):
        began = time.monotonic()
        assert not script.process.pause()
        assert time.monotonic() - began < 0.2
        assert is_stopped(script.process.pid)


def test_one_that_dies_while_it_rests_is_noticed(tmp_path: Path) -> None:
    with running(tmp_path, SHORT) as (script, _):
        assert script.process.pause()
        os.kill(script.process.pid, signal.SIGKILL)
        script.process.resume()
        deadline = time.monotonic() + 5
        while script.process.listen(0.05):
            assert time.monotonic() < deadline
        assert script.process.status is not None


SEMAPHORES = """
import multiprocessing
reading = torch.utils.data.DataLoader(loader.dataset, 512, num_workers=2, persistent_workers=True)
for epoch in range(100_000):
    for (x,) in reading:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        for _ in range(20):
            multiprocessing.Lock()
"""


def test_no_call_fails_because_the_workers_of_a_loader_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They tell their parent, which may be in a call that waits for an answer. C code does not try again."""
    monkeypatch.setattr(process.ScriptProcess, "_is_at_rest", lambda _: False)
    with running(tmp_path, SEMAPHORES, is_guarded=True) as (script, _):
        for _ in range(400):
            script.process.pause()
            script.process.resume()
            assert script.process.listen(0.005), list(script.listener.last_lines)[-3:]
