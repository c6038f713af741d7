"""Jobs of a batch system that end before their worker comes; the cluster is a stub."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.errors import EnvironmentStopError
from sweeper.launch import batch
from sweeper.launch.batch import MAX_ENDED_UNSTARTED, STALE_SECONDS, BatchPool
from sweeper.launch.jobqueue import JobTable


class Cluster:
    """Submits a job for each name that is asked for, as dask-jobqueue does; free names are taken again."""

    def __init__(self) -> None:
        self.worker_spec: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}
        self._submitted = 0

    def new_worker_spec(self) -> dict[str, Any]:
        return {next(name for name in "abc" if name not in self.worker_spec): {}}

    def __await__(self) -> Generator[None, None, None]:
        for name in self.worker_spec.keys() - self.workers.keys():
            self._submitted += 1
            self.workers[name] = SimpleNamespace(job_id=str(self._submitted))
        yield from ()

    def sync(self, function: Any, callback_timeout: float) -> None:
        asyncio.run(function())


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BatchPool:
    """No worker comes, and the batch system has none of the jobs any more."""
    monkeypatch.setattr(batch, "_list_jobs", lambda command: set())
    monkeypatch.setattr(batch.time, "monotonic", lambda: pool.now)
    pool: Any = BatchPool.__new__(BatchPool)
    pool._jobs, pool._info, pool._logs = JobTable(Cluster()), {}, tmp_path
    pool._launcher_name, pool._system, pool._started, pool.now = "slurm", "SLURM", {}, 0.0
    pool._asked_at = pool._retry_at = 0.0
    pool._num_rejections = pool._num_ended_unstarted = 0
    return pool  # type: ignore[no-any-return]


def test_a_job_in_anothers_place_has_its_own_time_until_it_is_listed(pool: Any) -> None:
    pool.want(1)
    pool.now += STALE_SECONDS + 1
    pool.want(1)
    assert pool.jobs() == ["2"]
    pool.now += STALE_SECONDS - 1
    pool.want(1)
    assert pool.jobs() == ["2"]


def test_jobs_that_end_in_vain_end_the_sweep_with_their_last_words(pool: Any, tmp_path: Path) -> None:
    (tmp_path / "job.err").write_text("no such interpreter")

    def waits() -> None:
        for _ in range(MAX_ENDED_UNSTARTED + 1):
            pool.want(1)
            pool.now += STALE_SECONDS + 1

    with pytest.raises(EnvironmentStopError, match="no such interpreter"):
        waits()
