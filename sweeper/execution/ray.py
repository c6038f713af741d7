"""Workers through Ray: an actor per GPU on a cluster that is there, or on one that is started here."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from sweeper.core.errors import EnvironmentStopError, UserError

CALL_SECONDS = 10.0
THREADS = 3
"""Of a worker: for its trial, for what is asked meanwhile, and one that is held as long as it lives."""


def load() -> Any:
    """Returns the module `ray`, which reports nothing to anybody.

    Raises:
        UserError: It is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Zero is a number of GPUs that a CPU worker may ask for; what is visible there is not Ray's to change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            f"`execution.launcher: ray` needs ray, which is not installed ({error}). "
            "`pip install 'sweeper[ray]'` installs it."
        ) from None


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

    def __init__(self, address: str, gpus: int, most: int | None) -> None:
        """Joins the cluster at `address`; without one, starts a cluster on this machine.

        Args:
            gpus: Of one worker; 0 for none.
            most: Workers at once; None for as many as the cluster has room for.

        Raises:
            EnvironmentStopError: Nobody answers there.
            UserError: Ray is not installed.
        """
        self._ray = ray = load()
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **({} if address else {"include_dashboard": False}),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise EnvironmentStopError(
                f"no Ray cluster can be used at {address or 'this machine'} ({error}). Nothing was started."
            ) from error
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
        for name in [name for name in self._actors if name not in there][: len(self._actors) - count]:
            self.retire(name)

    def workers(self) -> Sequence[str]:
        """Returns the names of the workers that have been placed, and live."""
        for name in self._ready(self._held):
            self._forget(name)
        return self._ready(self._placed)

    def _ready(self, asked: Mapping[str, Any]) -> list[str]:
        """Returns the workers whose answer, or whose end, is there."""
        if not asked:
            return []
        ready, _ = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)
        there = set(ready)
        return [name for name, reference in asked.items() if reference in there]

    def _forget(self, name: str) -> None:
        for known in (self._actors, self._placed, self._held):
            known.pop(name, None)

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs `function` on a worker."""
        future: Future[Any] = self._actors[worker].call.remote(function, *arguments).future()
        return future

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs `function` on each worker, beside what it runs; those that fail are left out."""
        asked = {name: self._actors[name].call.remote(function, *arguments) for name in workers}
        found = {}
        for name, reference in asked.items():
            with contextlib.suppress(Exception):
                found[name] = self._ray.get(reference, timeout=CALL_SECONDS)
        return found

    def retire(self, worker: str) -> None:
        """Ends a worker."""
        actor = self._actors.get(worker)
        self._forget(worker)
        if actor is not None:
            self._ray.kill(actor)

    def jobs(self) -> Sequence[str]:
        """Returns nothing: Ray's actors are no jobs."""
        return []

    def close(self) -> None:
        """Ends every worker, and the cluster where it was started here."""
        for name in list(self._actors):
            with contextlib.suppress(Exception):
                self.retire(name)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
