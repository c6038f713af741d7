"""Workers through Ray: actors on an existing cluster, or on one started here."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sweeper.errors import EnvironmentStopError, UserError
from sweeper.execution.cluster import RemoteLauncher, on_workers
from sweeper.execution.launcher import LaunchRequest
from sweeper.execution.pool import WorkerLostError

CALL_SECONDS = 10.0
THREADS = 3
"""Of a worker: for its trial, for what is asked meanwhile, and one that is held as long as it lives."""
OBJECT_BYTES = 128 * 2**20
"""Of shared memory for a cluster's parcels, where it is started here: trials' loaders want the rest."""

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Zero is a number of GPUs that a CPU worker may ask for; what is visible there is not Ray's to change.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# What Ray has for other systems: a cluster of one machine, which listens on loopback alone.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def load(settings: Mapping[str, str] = _SETTINGS) -> Any:
    """Returns the module `ray`, which reports nothing to anybody, and prints nothing.

    Raises:
        UserError: It is not installed.
    """
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            f"`execution.launcher: ray` needs ray, which is not installed ({error}). "
            "`pip install 'sweeper[ray]'` installs it."
        ) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    # Lines such as "(raylet) A worker died" come with no switch of their own: a lost trial is told by us.
    ray._private.worker._worker_logs_enabled = False
    return ray


def launch(request: LaunchRequest) -> RemoteLauncher:
    """Returns the launcher of `execution.launcher: ray`."""
    chosen, gpus = request.execution, request.gpus
    return on_workers(request, lambda: RayPool(chosen.address, gpus, chosen.at_once(gpus)))


class _Actor:
    """A worker: runs what it is sent."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs `function`."""
        return function(*arguments)


def _hold() -> None:
    """Never returns: what waits for it hears of the worker's death."""
    threading.Event().wait()


class RayPool:
    """Actors, each with the GPUs of one trial; Ray places them, and starts others for those that are lost."""

    stays = False

    def __init__(self, address: str, gpus: int, most: int | None, **own: Any) -> None:
        """Joins the cluster at `address`; without one, starts a cluster on this machine.

        Args:
            gpus: Of one worker; 0 for none.
            most: Workers at once; None for as many as the cluster has room for.
            own: What a cluster that is started here is told to have (`num_gpus`); what is found, by default.

        Raises:
            EnvironmentStopError: Nobody answers there.
            UserError: Ray is not installed.
        """
        self._folder = "" if address else _new_folder()
        try:
            self._ray = ray = load({**_SETTINGS, **({} if address else _LOOPBACK)})
            common = {"log_to_driver": False, "configure_logging": False}
            with _own_handlers():
                if address:
                    # Ray itself would try for minutes.
                    host, _, port = address.rpartition("/")[2].rpartition(":")
                    socket.create_connection((host, int(port)), CALL_SECONDS).close()
                    ray.init(address=address, **common)
                else:
                    with _token():
                        ray.init(
                            address="local",
                            include_dashboard=False,
                            object_store_memory=OBJECT_BYTES,
                            _temp_dir=self._folder,
                            **common,
                            **own,
                        )
        except (OSError, RuntimeError, ValueError) as error:
            self._remove_folder()
            said = next(iter(str(error).splitlines()), "")
            raise EnvironmentStopError(
                f"no Ray cluster can be used at {address or 'this machine'} ({said}). Nothing was started."
            ) from error
        except BaseException:
            self._remove_folder()
            raise
        # A GPU's worker takes next to no core: how many a trial may use, its machine tells it.
        resources = {"num_gpus": gpus, "num_cpus": 0} if gpus else {"num_cpus": 1}
        self._remote = ray.remote(_Actor).options(
            **resources, max_restarts=0, max_concurrency=THREADS, scheduling_strategy="SPREAD"
        )
        self._per_worker = gpus or 1
        self._kind = "GPU" if gpus else "CPU"
        self._most = most
        self._numbers = itertools.count()
        self._actors: dict[str, Any] = {}
        self._placed: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        self._lost = set[str]()

    def want(self, count: int) -> None:
        """Has so many workers started, as far as the cluster has room for them at all."""
        if self._most is None:
            total = self._ray.cluster_resources().get(self._kind, 0)
            count = min(count, int(total // self._per_worker))
        while len(self._actors) < count:
            name = f"worker-{next(self._numbers)}"
            actor = self._actors[name] = self._remote.remote()
            self._placed[name] = actor.call.remote(os.getpid)
            self._held[name] = actor.call.remote(_hold)
        there = self.workers()
        waiting = [name for name in self._actors if name not in there]
        for name in waiting[: max(0, len(self._actors) - count)]:
            self.retire(name)

    def workers(self) -> Sequence[str]:
        """Returns the names of the workers that have been placed, and live."""
        for name in {*self._ready(self._held), *self._lost}:
            self.retire(name)
        self._lost &= self._actors.keys()
        return self._ready(self._placed)

    def _ready(self, asked: Mapping[str, Any]) -> list[str]:
        """Returns the workers whose answer, or whose end, is there."""
        if not asked:
            return []
        ready, _ = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)
        there = set(ready)
        return [name for name, reference in asked.items() if reference in there]

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs a trial's function on a worker; one that Ray takes for lost is let go of."""
        future: Future[Any] = Future()
        actor = self._actors.get(worker)
        if actor is None:
            future.set_exception(WorkerLostError(worker))
            return future
        errors = self._ray.exceptions

        def done(answer: Future[Any]) -> None:
            try:
                future.set_result(answer.result())
            except errors.RayTaskError as error:
                future.set_exception(error.cause)
            except (errors.RayError, OSError) as error:
                self._lost.add(worker)
                future.set_exception(WorkerLostError(str(error)))
            except BaseException as error:
                future.set_exception(error)

        actor.call.remote(function, *arguments).future().add_done_callback(done)
        return future

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs `function` on each worker, beside what it runs; those that fail are left out."""
        asked = {
            name: self._actors[name].call.remote(function, *arguments)
            for name in workers
            if name in self._actors
        }
        found = {}
        for name, reference in asked.items():
            with contextlib.suppress(self._ray.exceptions.RayError):
                found[name] = self._ray.get(reference, timeout=CALL_SECONDS)
        return found

    def retire(self, worker: str) -> bool:
        """Ends a worker."""
        for known in (self._placed, self._held):
            known.pop(worker, None)
        if actor := self._actors.pop(worker, None):
            self._ray.kill(actor)
        return True

    def jobs(self) -> Sequence[str]:
        """Returns nothing: Ray's actors are no jobs."""
        return []

    def close(self) -> None:
        """Ends every worker, and the cluster where it was started here."""
        with contextlib.suppress(Exception):
            for name in list(self._actors):
                self.retire(name)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _new_folder() -> str:
    """Makes a folder for a cluster of our own; those of processes that were killed are removed.

    Sockets are there: their names must be short, wherever temporary files may go.
    """
    for left in Path("/tmp").glob("sweeper-ray-*-*"):
        if not os.path.exists(f"/proc/{left.name.split('-')[2]}") and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"sweeper-ray-{os.getpid()}-", dir="/tmp")


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Gives back SIGTERM, which Ray takes: what ends a sweep is said, and has a code of its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _token() -> Iterator[None]:
    """Has a cluster that starts meanwhile take orders from this process alone.

    Ray itself would leave a token in the user's home; what the user has chosen holds.
    """
    names = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
    is_chosen = any(name in os.environ for name in names)
    if not is_chosen:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        for name in () if is_chosen else names:
            os.environ.pop(name, None)
