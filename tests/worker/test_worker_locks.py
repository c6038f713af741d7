"""GPUs are held one job at a time, by real processes that are really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from launch.quick_node import QUICK
from parts.faults import WAIT_SECONDS, fault_job

from sweeper.core.job import LOG, Job, read_outcome, write_job
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.training import Training
from sweeper.system.process import tree
from sweeper.worker import locks
from sweeper.worker.locks import DeviceBusyError, lock_devices

LAUNCHER = QUICK
NOBODY = 65534


@pytest.fixture
def gpus():
    """Two GPUs that nobody else has heard of, in order."""
    folder, found = locks.FOLDER, sorted(f"GPU-{uuid.uuid4()}" for _ in range(2))
    yield found
    for each in found:
        (folder / f"{each}.lock").unlink(missing_ok=True)


@pytest.fixture
def lock(monkeypatch, tmp_path):
    """Locks devices in this process, as its own `folder`; what was taken is let go when the test ends."""
    held: list[int] = []

    def lock(device: str, folder: str = "a/1", says: list[str] | None = None, **changes: object) -> list[int]:
        job = Job(uid="u", device=device, **{"timeout_seconds": 0.1, **changes})
        said = says if says is not None else []
        found = lock_devices(tmp_path / folder, job, said.append)
        held.extend(found)
        return found

    yield lock
    for each in held:
        os.close(each)


def start(launcher, folder: Path, fault: str, **changes: object):
    return launcher.submit(fault_job(folder, fault, **changes))


def said(folder: Path) -> str:
    return (folder / LOG).read_text()


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.slow
def test_two_jobs_of_one_gpu_follow_each_other_and_waiting_takes_none_of_their_time(launcher, tmp_path, gpus):
    first = start(launcher, tmp_path / "first", "sleep", device=gpus[0], timeout_seconds=1.5)
    holder = wait_for(locks.FOLDER / f"{gpus[0]}.lock").split(" ")[0]
    second = start(launcher, tmp_path / "second", "sleep", device=gpus[0], timeout_seconds=2.0)
    other = start(launcher, tmp_path / "other", "", device=gpus[1])
    assert isinstance(other.result(WAIT_SECONDS), Measurement)
    assert not first.done()
    assert not second.done()
    former, latter = first.result(WAIT_SECONDS), second.result(WAIT_SECONDS)
    assert former.kind is latter.kind is FailureKind.TIMEOUT
    assert latter.finished_at - former.finished_at >= 2.0
    line = f"{gpus[0]} is held by process {holder} ({tmp_path / 'first'})\n"
    assert said(tmp_path / "second").startswith(line)
    assert "is held by" not in said(tmp_path / "first") + said(tmp_path / "other")


def test_whoever_waits_too_long_is_told_for_whom_and_may_be_ended(launcher, tmp_path, gpus):
    first = start(launcher, tmp_path / "first", "sleep", device=gpus[0])
    wait_for(locks.FOLDER / f"{gpus[0]}.lock")
    outcome = start(launcher, tmp_path / "second", "", device=gpus[0], timeout_seconds=0.3).result(
        WAIT_SECONDS
    )
    assert outcome.kind is FailureKind.DEVICE_BUSY
    assert outcome.message.startswith(f"{gpus[0]} must be free, but was held for 0.3 s by process ")
    assert f"({tmp_path / 'first'}). Wait until" in outcome.message
    third = start(launcher, tmp_path / "third", "", device=gpus[0])
    wait_for(tmp_path / "third" / LOG)
    third.cancel()
    assert third.result(WAIT_SECONDS).kind is FailureKind.LOST
    first.cancel()
    first.result(WAIT_SECONDS)
    assert isinstance(
        start(launcher, tmp_path / "last", "", device=gpus[0]).result(WAIT_SECONDS), Measurement
    )


STUCK = '''
import ctypes, os, pathlib, time

def run(job, progress):
    """Outlives its keeper, as a trial does that hangs in the driver."""
    ctypes.CDLL(None).prctl(1, 0)
    pathlib.Path(job.folder, "pid").write_text(str(os.getpid()))
    time.sleep(600)
'''


def test_a_gpu_is_held_until_the_trial_is_gone_whoever_else_is_killed(tmp_path, gpus):
    (tmp_path / "stuck.py").write_text(STUCK)

    def worker(name: str, runner: str, seconds: float) -> subprocess.Popen[bytes]:
        job = Job(uid=name, runner=runner, device=gpus[0], timeout_seconds=seconds)
        write_job(tmp_path / name, job)
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
        return subprocess.Popen([sys.executable, "-m", "sweeper.worker", tmp_path / name], env=environment)

    keeper = worker("first", "stuck:run", 60.0)
    trial = int(wait_for(tmp_path / "first" / "pid"))
    assert trial in tree(keeper.pid)
    keeper.kill()
    keeper.wait(WAIT_SECONDS)
    assert worker("second", "parts.noop:run", 0.3).wait(WAIT_SECONDS) == 0
    outcome = read_outcome(tmp_path / "second")
    assert outcome.kind is FailureKind.DEVICE_BUSY
    assert f"by process {keeper.pid} ({tmp_path / 'first'})" in outcome.message
    third = worker("third", "parts.noop:run", 60.0)
    wait_for(tmp_path / "third" / LOG)
    os.kill(trial, signal.SIGKILL)
    assert third.wait(WAIT_SECONDS) == 0
    assert isinstance(read_outcome(tmp_path / "third"), Measurement)


def test_several_are_locked_in_one_order_whatever_the_devices(lock, gpus):
    lock(gpus[0], "a/1")
    lock(gpus[1], "a/2")
    says: list[str] = []
    with pytest.raises(DeviceBusyError, match=gpus[0]):
        lock(f"{gpus[1]},{gpus[0]}", says=says)
    assert len(says) == 1
    assert says[0].startswith(f"{gpus[0]} is held by process {os.getpid()} (")
    assert [lock(each) for each in ("cpu", "auto", "")] == [[], [], []]


def test_a_gpu_that_is_meant_by_its_number_is_the_same(lock, gpus, monkeypatch):
    monkeypatch.setattr(locks, "full_uuid", {"1": gpus[0], gpus[0][:9]: gpus[0]}.__getitem__)
    lock(gpus[0])
    for name in ("1", gpus[0][:9]):
        with pytest.raises(DeviceBusyError, match=gpus[0]):
            lock(name)
    assert len(lock(f"{gpus[1]},{gpus[1]}")) == 1


def test_those_that_take_turns_hold_a_gpu_together_and_others_do_not(lock, gpus):
    for i in range(3):
        lock(gpus[0], f"a/{i}", turns_folder="turns")
    for folder, turns in (("b/1", "turns"), ("a/3", "")):
        with pytest.raises(DeviceBusyError):
            lock(gpus[0], folder, turns_folder=turns)


def test_a_group_that_is_gone_leaves_nothing_to_another(lock, tmp_path, gpus):
    def held(folder: str, turns: str) -> int:
        return lock_devices(tmp_path / folder, Job(uid="u", device=gpus[0], turns_folder=turns), print)[0]

    os.close(held("a/1", "turns"))
    # The file still names the first group.
    other = held("b/1", "turns")
    with pytest.raises(DeviceBusyError, match=r"b/1\)"):
        lock(gpus[0], "a/2", turns_folder="turns")
    os.close(other)
    lock(gpus[0], "a/2", turns_folder="turns")


def test_a_production_run_does_not_wait_and_is_waited_for(lock, tmp_path, gpus):
    training = Training(folder=str(tmp_path), epochs=1)
    lock(gpus[0], training=training)
    with pytest.raises(DeviceBusyError):
        lock(gpus[0])
    says: list[str] = []
    assert lock(gpus[0], says=says, training=training) == []
    assert len(says) == 1


def test_where_no_folder_of_all_can_be_written_each_user_has_one(lock, gpus, tmp_path, monkeypatch):
    in_the_way = tmp_path / "locks"
    in_the_way.write_text("")
    monkeypatch.setattr(locks, "FOLDER", in_the_way)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (descriptor,) = lock(gpus[0])
    own = tmp_path / f"locks-{os.getuid()}"
    assert os.path.samestat(os.fstat(descriptor), os.stat(own / f"{gpus[0]}.lock"))
    assert own.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(tempfile, "tempdir", str(in_the_way))
    says: list[str] = []
    assert lock(gpus[0], says=says) == []
    assert says[0].startswith(f"{gpus[0]} is not locked: ")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("makes", [0, NOBODY])
def test_users_of_one_machine_wait_for_each_other(tmp_path, gpus, makes):
    code = f"""
import os, sys
from pathlib import Path
from sweeper.core.job import Job
from sweeper.worker.locks import DeviceBusyError, lock_devices
# Now: what Python imports may be root's alone.
os.setuid(int(sys.argv[1]))
try:
    held = lock_devices(Path("/"), Job(uid="u", device={gpus[0]!r}, timeout_seconds=0.1), print)
    print(len(held), "held", flush=True)
except DeviceBusyError:
    print("busy", flush=True)
sys.stdin.read()
"""

    def user(number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            umask=0o077,
        )

    first, second = user(makes), None
    try:
        assert first.stdout.readline() == "1 held\n"
        second = user(NOBODY - makes)
        assert second.communicate(timeout=WAIT_SECONDS)[0].splitlines()[-1] == "busy"
    finally:
        first.communicate(timeout=WAIT_SECONDS)
