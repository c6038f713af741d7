"""Real Dask clusters of processes on loopback: the launchers' suite, and workers that are really killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch.every_launcher import EveryLauncher
from parts.faults import WAIT_SECONDS, fault_job

pytest.importorskip("distributed", reason="dask is not installed (pip install 'sweeper-torch[dask]')")

from launch.clusters import LocalDask, local_dask

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.launch.batch import BatchPool
from sweeper.launch.cluster import RemoteLauncher
from sweeper.launch.dask import DaskPool
from sweeper.launch.launcher import Launcher
from sweeper.launch.local import leftovers
from sweeper.launch.parcel import Parcel
from sweeper.launch.pool import WorkerLostError
from sweeper.schema.cluster import BatchJob, Tls

pytestmark = pytest.mark.slow
Wait = Callable[..., bool]


def launcher_on(address: str, *, sweep: str = "s", most: int = 2) -> RemoteLauncher:
    template = Parcel(job=Job(uid=""), sweep=sweep, epoch=1)
    return RemoteLauncher(DaskPool(address), template, max_workers=most, needs_gpu=True)


def left_in(cluster: LocalDask) -> list[int]:
    """Returns what still runs of any sweep on the cluster's workers."""
    works = (cluster.scratch / f"sweeper-{os.getuid()}").glob("work-*")
    return [pid for work in works for pid in leftovers(work)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDask]:
    with local_dask(tmp_path_factory.mktemp("dask"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(cluster: LocalDask) -> Iterator[RemoteLauncher]:
    """One for the whole suite, whose last test closes it."""
    launcher = launcher_on(cluster.address, sweep="every")
    yield launcher
    launcher.close()
    deadline = time.monotonic() + WAIT_SECONDS
    while left_in(cluster):
        assert time.monotonic() < deadline, "what ran on the workers has not ended"
        time.sleep(0.05)


def test_a_killed_workers_trial_is_lost_and_the_next_worker_takes_another(
    cluster: LocalDask, shared: RemoteLauncher, tmp_path: Path, wait_for: Wait
) -> None:
    assert wait_for(lambda: shared.capacity == 2, WAIT_SECONDS)
    handles = [shared.submit(fault_job(tmp_path / uid, "sleep")) for uid in "ab"]
    gpus = [handle.place.gpu for handle in handles if handle.place]
    assert sorted(gpus) == ["0", "1"]
    assert [handle.place.num_neighbours for handle in handles if handle.place] == [1, 1]
    assert wait_for(lambda: len(left_in(cluster)) == 10, WAIT_SECONDS), "a server, two keepers, two trials"
    cluster.kill(int(gpus[0]))
    began = time.monotonic()
    outcome = handles[0].result(timeout=WAIT_SECONDS)
    assert time.monotonic() - began < 5
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.LOST
    assert "was lost" in outcome.message
    assert wait_for(lambda: len(left_in(cluster)) == 5, WAIT_SECONDS), "the trial ends with its worker"
    assert not handles[1].done()
    assert shared.capacity == 1
    waiting = shared.submit(fault_job(tmp_path / "c"))
    cluster.start(int(gpus[0]))
    assert isinstance(waiting.result(timeout=WAIT_SECONDS), Measurement)
    assert waiting.place is not None
    assert waiting.place.gpu == gpus[0]
    assert handles[1].cancel()
    ended = handles[1].result(timeout=WAIT_SECONDS)
    assert isinstance(ended, Failure)
    assert ended.kind is FailureKind.LOST
    assert shared.capacity == 2, "a worker whose trial was cancelled takes the next one"


class TestRemoteLauncher(EveryLauncher):
    @pytest.fixture
    def launcher(self, shared: RemoteLauncher, wait_for: Wait) -> Launcher:
        assert shared._closing.is_set() or wait_for(lambda: shared.capacity == 2, WAIT_SECONDS)
        return shared


def test_a_result_that_is_lost_with_its_worker_does_not_hold_up_others(
    tmp_path: Path, wait_for: Wait
) -> None:
    def deadly() -> object:
        class Deadly:
            def __reduce__(self) -> str:
                # It is pickled when the supervisor fetches it, after the task has ended.
                os.kill(os.getpid(), 9)
                raise AssertionError

        return Deadly()

    with local_dask(tmp_path, workers=2) as cluster:
        pool = DaskPool(cluster.address)
        try:
            assert wait_for(lambda: len(pool.workers()) == 2, WAIT_SECONDS)
            lost, other = pool.workers()
            doomed = pool.run(lost, deadly)
            with pytest.raises(WorkerLostError, match="before its result was fetched"):
                doomed.result(timeout=WAIT_SECONDS)
            assert pool.run(other, os.getpid).result(timeout=WAIT_SECONDS) > 0
        finally:
            pool.close()


def test_a_scheduler_that_is_gone_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.launch.dask.CONNECT_SECONDS", 2.0)
    with local_dask(tmp_path, workers=0) as cluster:
        launcher = launcher_on(cluster.address)
        try:
            handle = launcher.submit(fault_job(tmp_path / "a"))
            cluster.scheduler.kill()
            with pytest.raises(
                EnvironmentStopError, match=r"the Dask scheduler is gone\. Finished trials are kept"
            ):
                handle.result(timeout=WAIT_SECONDS)
        finally:
            launcher.close()


def test_an_address_that_is_none_and_one_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.launch.dask.CONNECT_SECONDS", 0.5)
    with pytest.raises(EnvironmentStopError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        DaskPool("tcp://127.0.0.1:9")
    before = threading.active_count()
    with pytest.raises(
        UserError, match=r"`execution\.address` must be a scheduler's address, but got 'ftp://a'"
    ):
        DaskPool("ftp://a")
    assert threading.active_count() == before, "a client is left half open"
    with pytest.raises(UserError, match=r"`execution\.tls` must name existing files, but got 'a\.pem'"):
        DaskPool("tls://127.0.0.1:9", Tls(ca_file="a.pem", cert_file="b.pem", key_file="c.pem"))


def test_a_stranger_cannot_use_the_scheduler_of_batch_jobs(tmp_path: Path) -> None:
    import distributed

    pytest.importorskip(
        "dask_jobqueue", reason="dask-jobqueue is not installed (pip install 'sweeper-torch[dask]')"
    )
    pool = BatchPool("slurm", BatchJob(interface="lo"), 0, tmp_path)
    try:
        address: str = pool._cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match=r"closed|Timed out"):
            distributed.Client(address.replace("tls://", "tcp://"), timeout=1)
        others = distributed.Security.temporary()
        with pytest.raises(OSError, match=r"certificate|Timed out"):
            distributed.Client(address, security=others, timeout=1)
    finally:
        pool.close()
    # Its keys are in no file.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_ctrl_c_stays_ours_when_dask_jobqueue_is_imported() -> None:
    pytest.importorskip(
        "dask_jobqueue", reason="dask-jobqueue is not installed (pip install 'sweeper-torch[dask]')"
    )
    program = (
        "import signal; from sweeper.launch.dask import import_dask_module\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        "import_dask_module('dask_jobqueue'); assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
