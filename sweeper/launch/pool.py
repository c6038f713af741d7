"""Defines the protocol of pools, which start workers, name them and run functions on them.

`jobs` here are the scheduler's; sweeper's own are `Job`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """A worker's description of itself.

    Attributes:
        gpu: CUDA_VISIBLE_DEVICES on the worker.
        job: The scheduler's ID of the worker's job; empty if there is none.
        model: Model of its GPU, or of its processor if it sees none.
        seconds_left: Seconds until its job's time limit; None for no limit.
        refusal: Why it takes no trials; empty if it takes them.
    """

    host: str
    gpu: str = ""
    job: str = ""
    model: str = ""
    seconds_left: float | None = None
    refusal: str = ""


class WorkerLostError(Exception):
    """The worker is gone, together with its trial."""


class Pool(Protocol):
    """Workers of a cluster. All calls but `run` and `close` come from one thread at a time.

    Attributes:
        stays: Whether its workers belong to somebody else and keep running after `close`.
    """

    stays: bool

    def want(self, count: int) -> None:
        """Starts or releases workers to reach `count`.

        Called repeatedly, so that lost workers are replaced. Does nothing if the workers belong to
        somebody else.
        """

    def workers(self) -> Sequence[str]:
        """Returns the names of the present workers."""

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs a trial's function on a worker.

        The future raises the function's exception, or WorkerLostError.
        """

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs a short function on each of `workers` alongside its trial.

        Returns:
            The results by worker, without the workers on which it failed.
        """

    def retire(self, worker: str) -> bool:
        """Releases an idle worker; returns False if it belongs to somebody else and stays."""

    def jobs(self) -> Sequence[str]:
        """Returns the scheduler's IDs of all jobs, including waiting ones."""

    def close(self) -> None:
        """Stops every worker that was started here."""
