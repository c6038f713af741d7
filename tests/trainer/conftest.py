"""A prepared small problem, and the trainer's jobs on it, run in this process with one thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import parts
import pytest
import torch

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.progress import SilentProgress
from sweeper.trainer import prepare
from sweeper.trainer.timing import windows

HERE = str(Path(__file__).parent)
MakeJob = Callable[..., Job]

BASE = {"batch_size": 100, "device.cpu_threads": 1, "optimizer.lr": 0.01}
PLAN = {"window_seconds": 0.1, "repeats": 2, "warmup_cap_seconds": 0.1, "diagnose": False}


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no window taken again for what else this machine does: a test of something else takes its time."""
    monkeypatch.setattr(windows, "of_host", lambda window, quiet_canary_ms: ())


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache") / "digest"
    prepare.run(Job(uid="p", pipeline="parts.pipelines", prepared=str(folder)), SilentProgress())
    return folder


@pytest.fixture
def make_job(prepared: Path) -> MakeJob:
    """Returns a job on the small problem; plan values by keyword, config values by dotted name."""

    def make(config: dict | None = None, **plan) -> Job:
        return Job(
            uid="t",
            pipeline="parts.pipelines",
            import_paths=(parts.FOLDER,),
            prepared=str(prepared),
            config=TrialConfig().replace({**BASE, **(config or {})}),
            plan=MeasurePlan(**{**PLAN, **plan}),
        )

    return make


@pytest.fixture(params=[False], ids=["tensors"])
def make_sequence_job(request: pytest.FixtureRequest, tmp_path: Path) -> MakeJob:
    """Returns a job on sequences of varying length; the parameter says whether they are in a source."""
    job = Job(
        uid="s",
        pipeline="trainer_problems",
        import_paths=(HERE,),
        data={"source": request.param},
        prepared=str(tmp_path / "prepared"),
    )
    prepare.run(job, SilentProgress())

    def make(config: dict | None = None, **plan) -> Job:
        return dataclasses.replace(
            job,
            config=TrialConfig().replace({**BASE, **(config or {})}),
            plan=MeasurePlan(**{**PLAN, **plan}),
        )

    return make
