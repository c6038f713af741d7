"""The protocol of pools: an engine starts workers, names them and runs functions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker as it describes itself.

    Attributes:
        gpu: CUDA_VISIBLE_DEVICES, as it is there.
        job: The scheduler's number of the job that it is; empty where there is none.
        model: Of its GPU, or of its processor where it sees none.
        seconds_left: Until its job's time is up; None where it has all the time.
        refusal: Why it takes no trials; empty where it does.
    """

    host: str
    gpu: str = ""
    job: str = ""
    model: str = ""
    seconds_left: float | None = None
    refusal: str = ""


class WorkerLostError(Exception):
    """The worker is gone, and what it ran with it."""


class Pool(Protocol):
    """Workers of a cluster. All calls come from one thread at a time, but for `run` and `close`.

    Attributes:
        stays: Whether its workers are somebody else's, and go on after `close`.
    """

    stays: bool

    def want(self, count: int) -> None:
        """Has so many workers started, or let go of; called again and again, so that lost ones are replaced.

        Where they are somebody else's, it does nothing.
        """

    def workers(self) -> Sequence[str]:
        """Returns the names of the workers that are there now."""

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs a trial's function on a worker.

        The future's exception is the function's own, or a WorkerLostError.
        """

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        """Runs a short function on each of `workers`, beside what they run; those that fail are left out."""

    def retire(self, worker: str) -> bool:
        """Lets go of a worker that runs nothing; returns whether it goes: somebody else's stays."""

    def jobs(self) -> Sequence[str]:
        """Returns the scheduler's numbers of the jobs there are, waiting ones too."""

    def close(self) -> None:
        """Ends every worker that was started here."""
