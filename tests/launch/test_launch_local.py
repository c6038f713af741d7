"""The local launcher: its server, jobs at once, cancelling, and processes that are really killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.quick_node import QUICK
from parts.faults import WAIT_SECONDS, fault_job
from services.processes import busy

from sweeper.core.job import LOG, OUTCOME, read_outcome
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import EnvironmentStopError
from sweeper.launch.launcher import wait_any
from sweeper.launch.local import MAX_SERVERS, LocalLauncher, leftovers
from sweeper.system.failpoints import CRASH_AT
from sweeper.system.process import children, tree


def keeper_of(launcher: LocalLauncher, wait_for) -> int:
    """Waits for the one job under way to have its three `sleep`s or itself started; returns its keeper."""
    assert wait_for(lambda: busy(launcher, children(launcher.pid)))
    (keeper,) = busy(launcher, children(launcher.pid))
    return keeper


def names(pids) -> list[str]:
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return found


def sleeping(launcher: LocalLauncher, folder: Path, wait_for):
    """Starts a job with a child and a daemon that sleep, and waits until all of it is there."""
    handle = launcher.submit(fault_job(folder, "children, sleep"))
    server = launcher._process.pid
    assert wait_for(lambda: names(tree(server)).count("sleep") == 2)
    return handle


def test_the_server_has_one_thread_and_this_process_no_torch(shared, wait_for):
    assert wait_for(lambda: shared.ready)
    assert shared.ready["threads"] == 1
    assert shared.ready["ready"] == shared._process.pid
    code = (
        "import sys, sweeper.launch.local, sweeper.launch.inline, sweeper.worker.keeper\n"
        "print(sorted({'torch', 'numpy', 'optuna', 'mlflow', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_job_leaves_outcome_and_log_and_no_process(shared, tmp_path):
    folder = fault_job(tmp_path / "a", "children")
    outcome = shared.submit(folder).result(timeout=WAIT_SECONDS)
    assert isinstance(outcome, Measurement)
    assert (folder / LOG).exists()
    assert "sleep" not in names(tree(shared._process.pid))


def test_an_outcome_that_cannot_be_read_is_heard_of_and_holds_up_no_other_job(own, tmp_path):
    torn = fault_job(tmp_path / "torn", "")
    (torn / OUTCOME).mkdir()
    with pytest.raises(EnvironmentStopError, match=r"outcome\.json is damaged"):
        own.submit(torn).result(timeout=WAIT_SECONDS)
    after = own.submit(fault_job(tmp_path / "after", "")).result(timeout=WAIT_SECONDS)
    assert isinstance(after, Measurement)


def test_two_jobs_at_once_and_the_first_to_end(shared, tmp_path):
    slow = shared.submit(fault_job(tmp_path / "slow", "sleep"))
    quick = shared.submit(fault_job(tmp_path / "quick"))
    wait_any([slow, quick], WAIT_SECONDS)
    assert quick.done()
    assert not slow.done()
    assert slow.cancel() is True
    outcome = slow.result(timeout=WAIT_SECONDS)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.LOST
    assert read_outcome(tmp_path / "slow") is None


def test_wait_any_ends_with_its_timeout(shared, tmp_path):
    slow = shared.submit(fault_job(tmp_path / "slow", "sleep"))
    began = time.monotonic()
    wait_any([slow], 0.05)
    assert time.monotonic() - began >= 0.05
    assert not slow.done()
    slow.cancel()
    slow.result(timeout=WAIT_SECONDS)


def test_cancel_ends_the_whole_tree_daemons_too(own, tmp_path, wait_for):
    handle = sleeping(own, tmp_path / "a", wait_for)
    handle.cancel()
    assert handle.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
    assert busy(own, tree(own.pid)) == [own.pid]


def test_a_killed_keeper_is_lost_and_takes_its_tree_along(own, tmp_path, wait_for):
    handle = sleeping(own, tmp_path / "a", wait_for)
    os.kill(keeper_of(own, wait_for), signal.SIGKILL)
    outcome = handle.result(timeout=WAIT_SECONDS)
    assert outcome.kind is FailureKind.LOST
    assert outcome.message == "the worker ended and left no outcome"
    # All of it is gone by the time the attempt is said to be lost: the next one begins on a free device.
    assert busy(own, leftovers(tmp_path)) == [own.pid]
    assert isinstance(own.submit(fault_job(tmp_path / "b")).result(timeout=WAIT_SECONDS), Measurement)


def test_a_killed_keeper_costs_no_other_job(own, tmp_path, wait_for):
    killed = own.submit(fault_job(tmp_path / "a", "sleep"))
    keeper = keeper_of(own, wait_for)
    other = sleeping(own, tmp_path / "b", wait_for)
    os.kill(keeper, signal.SIGKILL)
    assert killed.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
    assert not other.done()
    assert names(tree(own._process.pid)).count("sleep") == 2
    other.cancel()
    assert other.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST


def test_a_killed_server_loses_its_jobs_with_all_their_processes_and_is_replaced(own, tmp_path, wait_for):
    handle = sleeping(own, tmp_path / "a", wait_for)
    os.kill(own._process.pid, signal.SIGKILL)
    assert handle.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
    # None is left by the time the attempt is said to be lost: the keepers hold the server's pipe as well.
    assert leftovers(tmp_path) == []
    assert read_outcome(tmp_path / "a") is None
    assert isinstance(own.submit(fault_job(tmp_path / "b")).result(timeout=WAIT_SECONDS), Measurement)


def test_a_server_that_is_killed_again_and_again_ends_the_sweep(own, tmp_path, wait_for):
    for number in range(MAX_SERVERS):
        server = own.pid
        handle = own.submit(fault_job(tmp_path / f"{number}", "sleep"))
        assert own.pid != server or not number
        os.kill(own.pid, signal.SIGKILL)
        assert handle.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
    with pytest.raises(EnvironmentStopError, match=r"was killed 3 times; .*server\.log"):
        own.submit(fault_job(tmp_path / "b"))


def test_a_trial_does_not_hold_the_servers_pipe(own, tmp_path, wait_for):
    """A daemon of a killed keeper must not keep the supervisor from hearing of the server's end."""
    sleeping(own, tmp_path / "a", wait_for)
    keeper = keeper_of(own, wait_for)
    held = os.readlink(f"/proc/{os.getpid()}/fd/{own._process.stdout.fileno()}")
    assert held in {_link(path) for path in Path(f"/proc/{keeper}/fd").iterdir()}
    for pid in [pid for pid in tree(keeper) if pid != keeper]:
        assert held not in {_link(path) for path in Path(f"/proc/{pid}/fd").iterdir()}


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_closing_ends_what_runs(tmp_path, wait_for):
    launcher = QUICK(tmp_path)
    handle = sleeping(launcher, tmp_path / "a", wait_for)
    assert len(leftovers(tmp_path)) >= 5
    launcher.close()
    assert handle.result(timeout=0).kind is FailureKind.LOST
    assert leftovers(tmp_path) == []


def spare_of(launcher: LocalLauncher, wait_for) -> tuple[int, int]:
    """Waits for the keeper that has no job, and for its waiting process; returns both.

    The keeper of the last job may still be about to exit, without a process of its own.
    """
    assert wait_for(lambda: any([*children(pid)] for pid in children(launcher.pid)))
    ((spare, waiting),) = [(pid, child) for pid in children(launcher.pid) for child in children(pid)]
    return spare, waiting


def test_a_spare_keeper_that_was_killed_costs_one_attempt_at_most(tmp_path, monkeypatch, wait_for):
    crash_at = tmp_path / "crash-at"
    monkeypatch.setenv(CRASH_AT, str(crash_at))
    launcher = QUICK(tmp_path)
    try:
        first = launcher.submit(fault_job(tmp_path / "a"))
        assert isinstance(first.result(timeout=WAIT_SECONDS), Measurement)
        spare, waiting = spare_of(launcher, wait_for)
        os.kill(spare, signal.SIGKILL)
        assert wait_for(lambda: not {spare, waiting} & {*tree(launcher.pid)})
        second = launcher.submit(fault_job(tmp_path / "b"))
        assert isinstance(second.result(timeout=WAIT_SECONDS), Measurement)
        # It dies with its job.
        crash_at.write_text("given:1")
        third = launcher.submit(fault_job(tmp_path / "c"))
        assert third.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
        fourth = launcher.submit(fault_job(tmp_path / "d"))
        assert isinstance(fourth.result(timeout=WAIT_SECONDS), Measurement)
    finally:
        launcher.close()


def test_a_waiting_process_that_was_killed_costs_nothing(own, tmp_path, wait_for):
    assert isinstance(own.submit(fault_job(tmp_path / "a")).result(timeout=WAIT_SECONDS), Measurement)
    _, waiting = spare_of(own, wait_for)
    os.kill(waiting, signal.SIGKILL)
    assert wait_for(lambda: Path(f"/proc/{waiting}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert isinstance(own.submit(fault_job(tmp_path / "b")).result(timeout=WAIT_SECONDS), Measurement)


NO_ROOM = """
import errno, os
from sweeper.launch import server
fork, own, forks = os.fork, os.getpid(), []

def refused_once():
    if os.getpid() == own:
        forks.append(1)
        if len(forks) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()

os.fork = refused_once
server.main(lambda: None)
"""


def test_no_room_for_a_process_to_spare_costs_no_job(tmp_path):
    launcher = LocalLauncher(tmp_path, program=("-c", NO_ROOM))
    server = launcher.pid
    try:
        for name in "ab":
            outcome = launcher.submit(fault_job(tmp_path / name)).result(timeout=WAIT_SECONDS)
            assert isinstance(outcome, Measurement), outcome
        assert launcher.pid == server
    finally:
        launcher.close()


@pytest.mark.slow
def test_files_in_the_current_folder_stand_in_for_no_module(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise ImportError('not the queue of the standard library')")
    (tmp_path / "sweeper").mkdir()
    monkeypatch.chdir(tmp_path)
    launcher = LocalLauncher(tmp_path, isolation="exec")
    outcome = launcher.submit(fault_job(tmp_path / "a")).result(timeout=WAIT_SECONDS)
    launcher.close()
    assert isinstance(outcome, Measurement), outcome


SUPERVISOR = """
import sys, time
from pathlib import Path
from sweeper.launch.local import LocalLauncher
home = Path(sys.argv[1])
launcher = LocalLauncher(home)
launcher.submit(home / "a")
print("submitted", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["running", "starting"])
def test_a_killed_supervisor_leaves_no_process(tmp_path, wait_for, when):
    fault_job(tmp_path / "a", "children, sleep")
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE)
    supervisor.stdout.readline()
    if when == "running":
        assert wait_for(lambda: names(leftovers(tmp_path)).count("sleep") == 2)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert wait_for(lambda: not leftovers(tmp_path)), names(leftovers(tmp_path))
    assert read_outcome(tmp_path / "a") is None


def test_leftovers_are_those_of_this_home(own, tmp_path, wait_for):
    assert wait_for(lambda: leftovers(tmp_path))
    assert leftovers(tmp_path / "other") == []
    assert leftovers(tmp_path.parent) == []


def test_what_outlives_keeper_and_server_is_ended_all_the_same(own, tmp_path, wait_for):
    handle = sleeping(own, tmp_path / "a", wait_for)
    keeper = keeper_of(own, wait_for)
    # The keeper first, but the server has no time to end what it leaves.
    os.kill(own.pid, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    os.kill(own.pid, signal.SIGKILL)
    assert handle.result(timeout=WAIT_SECONDS).kind is FailureKind.LOST
    assert leftovers(tmp_path) == []


HOLES = """
import ctypes, sys
from sweeper.launch import server

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
server.Server.serve = lambda self: print(mallinfo().fordblks, file=sys.stderr)
server.main()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_the_servers_heap_has_no_holes_that_a_training_could_use():
    """A fresh interpreter has none: there, a training gets its memory from the kernel at each step."""
    command = [sys.executable, "-c", HOLES, str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stderr) < 3 << 20
