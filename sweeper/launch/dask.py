"""Runs jobs on the workers of an existing Dask cluster."""

from __future__ import annotations

import contextlib
import importlib
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from sweeper.errors import EnvironmentStopError, UserError
from sweeper.launch.cluster import RemoteLauncher, on_workers
from sweeper.launch.launcher import LaunchRequest
from sweeper.launch.pool import WorkerLostError
from sweeper.schema.cluster import Tls

JOB_NAME = "sweeper"
CONNECT_SECONDS = 20.0
CALL_SECONDS = 10.0
RESULT_SECONDS = 2.0
"""Seconds of waiting for a result between two looks at whether it is still there."""


def import_dask_module(module: str) -> Any:
    """Imports a module of Dask.

    Raises:
        UserError: It is not installed.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"`execution.launcher` needs {module.partition('.')[0]}, which is not installed ({error}). "
            "`pip install 'sweeper-torch[dask]'` installs it."
        ) from None
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            # On import, dask-jobqueue takes over Ctrl-C, and would exit with code 0.
            signal.signal(signal.SIGINT, before)


def launch(request: LaunchRequest) -> RemoteLauncher:
    """Returns the launcher of `execution.launcher: dask`."""
    chosen = request.execution
    return on_workers(request, lambda: DaskPool(chosen.address, chosen.tls))


class DaskPool:
    """Workers of a Dask cluster that sweeper did not start."""

    stays = True

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        """Connects to the scheduler at `address`.

        Raises:
            EnvironmentStopError: No scheduler answers there.
            UserError: Dask is not installed, the address is invalid, or a file of `tls` is missing.
        """
        distributed = import_dask_module("distributed")
        security = None
        if tls is not None:
            for path in (tls.ca_file, tls.cert_file, tls.key_file):
                if not Path(path).is_file():
                    raise UserError(f"`execution.tls` must name existing files, but got {path!r}.")
            security = distributed.Security(
                tls_ca_file=tls.ca_file,
                tls_client_cert=tls.cert_file,
                tls_client_key=tls.key_file,
                require_encryption=True,
            )
        try:
            # A client that fails on it would stay half open, and block whatever thread collects it.
            distributed.comm.get_address_host(address)
        except ValueError as error:
            raise UserError(
                f"`execution.address` must be a scheduler's address, but got {address!r}: {error}."
            ) from None
        try:
            client = distributed.Client(
                address, security=security, timeout=CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, TimeoutError) as error:
            raise EnvironmentStopError(
                f"no Dask scheduler answers at {address} ({error}). Nothing was started."
            ) from None
        self._use(client)

    def _use(self, client: Any) -> None:
        """Begins with a client. Also begins `BatchPool`, which makes its own client."""
        self._client = client
        self._info: Mapping[str, Mapping[str, Any]] = {}
        self._count = 0

    def want(self, count: int) -> None:
        """Does nothing: the cluster decides how many workers there are."""

    def workers(self) -> Sequence[str]:
        """Returns the addresses of the present workers.

        Raises:
            EnvironmentStopError: The scheduler is gone.
        """
        info = self._client.scheduler_info(n_workers=-1)
        if "workers" not in info:
            raise EnvironmentStopError(
                "the Dask scheduler is gone. Finished trials are kept; run the same command to continue."
            )
        self._info = info["workers"]
        return list(self._info)

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs `function` on a worker, in its task thread."""
        self._count += 1
        # If workers declare GPUs, claiming one keeps other users' tasks off the worker meanwhile.
        declared = self._info.get(worker, {}).get("resources") or {}
        resources = {name: 1 for name in declared if name.lower() == "gpu"}
        distributed = import_dask_module("distributed")
        future: Future[Any] = Future()
        task = self._client.submit(
            function,
            *arguments,
            key=f"{JOB_NAME}-{id(self):x}-{self._count}",
            workers=[worker],
            allow_other_workers=False,
            resources=resources or None,
            pure=False,
            retries=0,
        )

        def deliver(task: Any) -> None:
            try:
                future.set_result(_result_of(task))
            except (distributed.scheduler.KilledWorker, CancelledError, OSError) as error:
                future.set_exception(WorkerLostError(str(error)))
            except Exception as error:
                future.set_exception(error)

        task.add_done_callback(deliver)
        return future

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs `function` on each worker alongside its task; omits those that fail."""
        if not workers:
            return {}

        async def ask() -> Mapping[str, Any]:
            answers: Mapping[str, Any] = await self._client.run(
                function, *arguments, workers=list(workers), on_error="return"
            )
            return answers

        with contextlib.suppress(OSError, TimeoutError, RuntimeError, ValueError, KeyError):
            # The loop's thread runs it, since `run` takes no time limit.
            answers = self._client.sync(ask, callback_timeout=CALL_SECONDS)
            return {name: value for name, value in answers.items() if not isinstance(value, BaseException)}
        return {}

    def retire(self, worker: str) -> bool:
        """Leaves the worker alone, since it belongs to others."""
        return False

    def jobs(self) -> Sequence[str]:
        """Returns nothing: the jobs are not sweeper's."""
        return []

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=CALL_SECONDS)


def _result_of(task: Any) -> Any:
    """Returns the result of a task that has just ended.

    Dask has one thread for all callbacks, and a result stays on its worker until it is fetched: where the
    worker is lost in between, waiting for it would keep every other result from arriving.

    Raises:
        WorkerLostError: The result was lost together with its worker.
    """
    while task.done():
        with contextlib.suppress(TimeoutError):
            return task.result(timeout=RESULT_SECONDS)
    raise WorkerLostError("its worker was lost before its result was fetched")
