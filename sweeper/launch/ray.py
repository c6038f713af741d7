"""Runs jobs in Ray actors, on an existing cluster or on one started here."""

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
from sweeper.launch.cluster import RemoteLauncher, on_workers
from sweeper.launch.launcher import LaunchRequest
from sweeper.launch.pool import WorkerLostError

CALL_SECONDS = 10.0
THREADS = 3
"""Threads of a worker: for its trial, for short calls meanwhile, and for `_hold` while it lives."""
OBJECT_BYTES = 128 * 2**20
"""Bytes of shared memory for parcels in a cluster started here; trials' loaders need the rest."""

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # If a worker requests zero GPUs, Ray must not change which ones it sees.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Meant for other systems: with this setting, a cluster of one machine listens on loopback only.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def import_ray(settings: Mapping[str, str] = _SETTINGS) -> Any:
    """Returns the module `ray`, with usage reports and output disabled.

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
            "`pip install 'sweeper-torch[ray]'` installs it."
        ) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    # Lines such as "(raylet) A worker died" have no public switch; sweeper reports lost trials.
    ray._private.worker._worker_logs_enabled = False
    return ray


def launch(request: LaunchRequest) -> RemoteLauncher:
    """Returns the launcher of `execution.launcher: ray`."""
    chosen, gpus = request.execution, request.gpus
    return on_workers(request, lambda: RayPool(chosen.address, gpus, chosen.at_once(gpus)))


class _Actor:
    """A worker."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs `function` and returns its result."""
        return function(*arguments)


def _hold() -> None:
    """Never returns, so that its result arrives only when the worker dies."""
    threading.Event().wait()


class RayPool:
    """Actors, each with the GPUs of one trial; Ray places them."""

    stays = False

    def __init__(self, address: str, gpus: int, max_workers: int | None, **cluster_resources: Any) -> None:
        """Joins the cluster at `address`; without one, starts a cluster on this machine.

        Args:
            gpus: GPUs per worker; 0 for none.
            max_workers: Maximum number of workers; None for as many as the cluster has room for.
            cluster_resources: Resources of a cluster started here (`num_gpus`); detected by default.

        Raises:
            EnvironmentStopError: No cluster answers there.
            UserError: Ray is not installed.
        """
        self._folder = "" if address else _new_folder()
        try:
            self._ray = ray = import_ray({**_SETTINGS, **({} if address else _LOOPBACK)})
            common = {"log_to_driver": False, "configure_logging": False}
            with _own_handlers():
                if address:
                    # Ray itself would retry for minutes.
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
                            **cluster_resources,
                        )
        except (OSError, RuntimeError, ValueError) as error:
            self._remove_folder()
            message = next(iter(str(error).splitlines()), "")
            raise EnvironmentStopError(
                f"no Ray cluster can be used at {address or 'this machine'} ({message}). Nothing was started."
            ) from error
        except BaseException:
            self._remove_folder()
            raise
        # A GPU worker reserves no cores: a trial learns from the machine how many it may use.
        resources = {"num_gpus": gpus, "num_cpus": 0} if gpus else {"num_cpus": 1}
        self._remote = ray.remote(_Actor).options(
            **resources, max_restarts=0, max_concurrency=THREADS, scheduling_strategy="SPREAD"
        )
        self._per_worker = gpus or 1
        self._resource = "GPU" if gpus else "CPU"
        self._max_workers = max_workers
        self._numbers = itertools.count()
        self._actors: dict[str, Any] = {}
        self._placed: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        self._lost = set[str]()

    def want(self, count: int) -> None:
        """Starts or releases workers to reach `count`, as far as the cluster has room."""
        if self._max_workers is None:
            total = self._ray.cluster_resources().get(self._resource, 0)
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
        """Returns the names of the workers that are placed and alive."""
        for name in {*self._ready_workers(self._held), *self._lost}:
            self.retire(name)
        self._lost &= self._actors.keys()
        return self._ready_workers(self._placed)

    def _ready_workers(self, references: Mapping[str, Any]) -> list[str]:
        """Returns the workers whose answer or error has arrived."""
        if not references:
            return []
        ready, _ = self._ray.wait(list(references.values()), num_returns=len(references), timeout=0)
        there = set(ready)
        return [name for name, reference in references.items() if reference in there]

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs a trial's function on a worker; a worker that Ray reports as lost is released."""
        future: Future[Any] = Future()
        actor = self._actors.get(worker)
        if actor is None:
            future.set_exception(WorkerLostError(worker))
            return future
        errors = self._ray.exceptions

        def deliver(answer: Future[Any]) -> None:
            try:
                future.set_result(answer.result())
            except errors.RayTaskError as error:
                future.set_exception(error.cause)
            except (errors.RayError, OSError) as error:
                self._lost.add(worker)
                future.set_exception(WorkerLostError(str(error)))
            except BaseException as error:
                future.set_exception(error)

        actor.call.remote(function, *arguments).future().add_done_callback(deliver)
        return future

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs `function` on each worker alongside its trial; omits those that fail."""
        references = {
            name: self._actors[name].call.remote(function, *arguments)
            for name in workers
            if name in self._actors
        }
        answers = {}
        for name, reference in references.items():
            with contextlib.suppress(self._ray.exceptions.RayError):
                answers[name] = self._ray.get(reference, timeout=CALL_SECONDS)
        return answers

    def retire(self, worker: str) -> bool:
        """Stops a worker."""
        for references in (self._placed, self._held):
            references.pop(worker, None)
        if actor := self._actors.pop(worker, None):
            self._ray.kill(actor)
        return True

    def jobs(self) -> Sequence[str]:
        """Returns nothing: Ray's actors are not jobs."""
        return []

    def close(self) -> None:
        """Stops every worker, and the cluster if it was started here."""
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
    """Makes a folder for a cluster started here, and removes those of killed processes.

    The folder is always in /tmp, since it holds sockets, whose paths must be short.
    """
    for left in Path("/tmp").glob("sweeper-ray-*-*"):
        if not os.path.exists(f"/proc/{left.name.split('-')[2]}") and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"sweeper-ray-{os.getpid()}-", dir="/tmp")


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Restores the handler of SIGTERM, which Ray replaces: sweeper reports why a sweep ends."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _token() -> Iterator[None]:
    """Makes a cluster that is started inside the context accept commands from this process only.

    Ray itself would leave a token in the user's home. A token that the user has set is kept.
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
