"""Ray, where it is installed: a cluster that is joined, whose nodes are really killed, and one of our own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from launch.every_launcher import EveryLauncher
from parts.faults import WAIT_SECONDS, fault_job

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import EnvironmentStopError
from sweeper.launch.cluster import RemoteLauncher
from sweeper.launch.launcher import Launcher
from sweeper.launch.local import leftovers
from sweeper.launch.parcel import Parcel
from sweeper.launch.pool import WorkerLostError
from sweeper.launch.ray import RayPool, _new_folder

# Ray reads its environment as it is imported: that is left to the tests.
HAS_RAY = importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.soak,
    pytest.mark.ray,
    pytest.mark.skipif(not HAS_RAY, reason="ray is not installed (pip install 'sweeper-torch[ray]')"),
]
Wait = Callable[..., bool]
SCRIPT = Path(__file__).with_name("ray_cluster.py")


class Cluster:
    """A cluster that is somebody else's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = open(folder / "cluster.log", "wb")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.address = self._answer().removeprefix("address ").strip()

    def order(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("address ", "done")):
                return line
        raise AssertionError((self.folder / "cluster.log").read_text())

    def close(self) -> None:
        everybody = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=30)
        self._process.kill()
        self._process.wait()
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        made = Cluster(tmp_path_factory.mktemp("ray"))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[RayPool]:
    pool = RayPool(cluster.address, gpus=1, max_workers=None)
    yield pool
    pool.close()


@pytest.fixture(scope="class")
def shared(cluster: Cluster) -> Iterator[RemoteLauncher]:
    """One for the whole suite, whose last test closes it."""
    template = Parcel(job=Job(uid=""), sweep="every", epoch=1)
    launcher = RemoteLauncher(RayPool(cluster.address, 1, None), template, max_workers=8, needs_gpu=True)
    yield launcher
    launcher.close()


def up(pool: RayPool, count: int, wait_for: Wait) -> list[str]:
    """Waits for so many workers; asks for more than there is room for, as a sweep does."""

    def there() -> bool:
        pool.want(8)
        return len(pool.workers()) == count

    assert wait_for(there, WAIT_SECONDS)
    return sorted(pool.workers())


def where(pool: RayPool) -> dict[str, tuple[str, str]]:
    """Returns the node and the GPU of each worker."""

    def of_this() -> tuple[str, str]:
        import os

        import ray

        return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]

    return dict(pool.call(pool.workers(), of_this))


def left_in(cluster: Cluster) -> list[int]:
    works = (cluster.folder / f"sweeper-{os.getuid()}").glob("work-*")
    return [pid for work in works for pid in leftovers(work)]


class TestRemoteLauncher(EveryLauncher):
    @pytest.fixture
    def launcher(self, shared: RemoteLauncher, wait_for: Wait) -> Launcher:
        assert shared._closing.is_set() or wait_for(lambda: shared.capacity == 2, WAIT_SECONDS)
        return shared


def test_each_worker_has_a_gpu_to_itself_and_no_more_are_asked_for_than_there_are(
    pool: RayPool, wait_for: Wait
) -> None:
    up(pool, 2, wait_for)
    places = where(pool)
    assert len(set(places.values())) == 2
    assert len({node for node, _ in places.values()}) == 2
    assert {gpu for _, gpu in places.values()} == {"0"}, "each node counts its own"
    pool.want(1)
    assert len(pool._actors) == 2, "those that are there are let go of by name"
    assert pool.retire("worker-0")
    assert pool.workers() == ["worker-1"]
    assert pool.call(["worker-0"], os.getpid) == {}


def test_what_a_function_raises_is_told_as_it_is(pool: RayPool, wait_for: Wait) -> None:
    name, _ = up(pool, 2, wait_for)
    with pytest.raises(ZeroDivisionError):
        pool.run(name, divmod, 1, 0).result(WAIT_SECONDS)
    assert pool.run(name, divmod, 7, 2).result(WAIT_SECONDS) == (3, 1)
    with pytest.raises(WorkerLostError):
        pool.run("nobody", divmod, 7, 2).result(WAIT_SECONDS)


def test_a_worker_that_is_killed_is_replaced_whether_it_runs_something_or_not(
    pool: RayPool, wait_for: Wait, capfd: pytest.CaptureFixture[str]
) -> None:
    busy, idle = up(pool, 2, wait_for)
    pids = pool.call([busy, idle], os.getpid)
    trial = pool.run(busy, time.sleep, 600)
    assert pool.call([busy], os.getpid) == {busy: pids[busy]}, "it answers beside its trial"
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        trial.result(WAIT_SECONDS)
    assert wait_for(lambda: pool.workers() == [], WAIT_SECONDS)
    assert not {busy, idle} & set(up(pool, 2, wait_for))
    assert capfd.readouterr() == ("", ""), "nothing of Ray's own reaches the terminal"


def test_a_killed_nodes_trial_is_lost_in_seconds_and_runs_again_on_the_next_node(
    cluster: Cluster, tmp_path: Path, wait_for: Wait
) -> None:
    template = Parcel(job=Job(uid=""), sweep="killed", epoch=1)
    launcher = RemoteLauncher(RayPool(cluster.address, 1, None), template, max_workers=8, needs_gpu=True)
    try:
        assert wait_for(lambda: launcher.capacity == 2, WAIT_SECONDS)
        handles = [launcher.submit(fault_job(tmp_path / uid, "sleep")) for uid in "ab"]
        assert len({handle.place.worker for handle in handles if handle.place}) == 2
        assert wait_for(lambda: len(left_in(cluster)) == 10, WAIT_SECONDS), (
            "a server, two keepers, two trials"
        )
        cluster.order("kill")
        began = time.monotonic()
        assert wait_for(lambda: any(handle.done() for handle in handles), WAIT_SECONDS)
        assert time.monotonic() - began < 10
        (lost,) = [handle for handle in handles if handle.done()]
        outcome = lost.result()
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.LOST
        assert wait_for(lambda: len(left_in(cluster)) == 5, WAIT_SECONDS)
        waiting = launcher.submit(fault_job(tmp_path / "c"))
        assert not wait_for(waiting.done, 0.5)
        cluster.order("add")
        assert isinstance(waiting.result(timeout=WAIT_SECONDS), Measurement)
        assert launcher.capacity == 2
    finally:
        launcher.close()
    assert wait_for(lambda: not left_in(cluster), WAIT_SECONDS)


def test_nobody_at_an_address() -> None:
    with pytest.raises(EnvironmentStopError, match=r"no Ray cluster can be used at 127\.0\.0\.1:9"):
        RayPool("127.0.0.1:9", 1, None)


# -- a cluster of our own -----------------------------------------------------------------------------

OWN = """\
import os, signal, sys, time
import psutil
from sweeper.launch.ray import RayPool

before = signal.getsignal(signal.SIGTERM)
pool = RayPool("", 1, None, num_gpus=2)
assert signal.getsignal(signal.SIGTERM) is before
assert not any("TOKEN" in name for name in os.environ)
deadline = time.monotonic() + 60
while len(pool.workers()) < 2 and time.monotonic() < deadline:
    pool.want(8)
    time.sleep(0.05)
everybody = psutil.Process().children(recursive=True)
heard = [each for process in [psutil.Process(), *everybody] for each in process.net_connections("inet")
         if each.status == "LISTEN"]
assert heard
print("listens", sorted({each.laddr.ip.removeprefix("::ffff:") for each in heard}))
pids = pool.call(pool.workers(), os.getpid)
trial = pool.run("worker-0", time.sleep, 600)
os.kill(pids["worker-0"], signal.SIGKILL)
print(type(trial.exception(60)).__name__)
if "die" in sys.argv:
    print(pool._folder, *(process.pid for process in everybody), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)
assert os.path.isdir(pool._folder)
pool.close()
print(os.path.exists(pool._folder), psutil.wait_procs(everybody, 20)[1])
"""


def run_own(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in a process of its own, with a home that is empty."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", OWN, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env={**kept, "HOME": str(home), "TMPDIR": str(home)},
    )


def test_a_cluster_of_our_own_is_heard_on_loopback_alone_and_says_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_own(tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["listens ['127.0.0.1']", "WorkerLostError", "False []"]
    assert list(tmp_path.iterdir()) == [], "no token in the user's home, and no log"


def is_alive(pid: int) -> bool:
    """Whether it is no zombie, and none of Ray's agents: these look for their cluster for a minute."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "Agent" not in process.cmdline()[0]
    except (psutil.NoSuchProcess, IndexError):
        return False


def test_a_cluster_of_our_own_ends_with_its_supervisor(tmp_path: Path, wait_for: Wait) -> None:
    done = run_own(tmp_path, "die")
    assert done.returncode == -signal.SIGKILL
    folder, *pids = done.stdout.splitlines()[-1].split()
    assert len(pids) > 3
    assert wait_for(lambda: not any(is_alive(int(pid)) for pid in pids), WAIT_SECONDS)
    assert Path(folder).exists()
    shutil.rmtree(_new_folder())
    assert not Path(folder).exists(), "the next one clears it"
