"""The folder of a job: what is written there is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import CONFIG, Job, read_job, read_outcome, write_job, write_outcome
from sweeper.core.measurement import INFEASIBLE, Failure, FailureKind, Report
from sweeper.core.retries import RETRIED
from sweeper.system.files import read_json
from sweeper.testing import noop
from sweeper.worker.runners import RUNNERS


def test_job_and_outcome_come_back_from_their_folder(tmp_path: Path):
    folder = tmp_path / "trials" / "0007"
    job = Job(uid="u", config=TrialConfig(batch_size=3, model={"h": 1}))
    write_job(folder, job)
    assert read_job(folder) == job
    assert read_json(folder / CONFIG)["schema"] == 1
    assert read_outcome(folder) is None
    for outcome in (
        Failure(kind=FailureKind.OOM, message="m"),
        Report(values={"a": [1]}),
        noop.run(job, progress=_Deaf()),
    ):
        write_outcome(folder, outcome)
        assert read_outcome(folder) == outcome


class _Deaf:
    def device(self, info):
        pass


@pytest.mark.parametrize(
    ("old", "runner"),
    [
        ("sweeper.trainer.measure:run", "trial"),
        ("sweeper.trainer.quality:run", "quality"),
        ("sweeper.trainer.prepare:run", "prepare"),
        ("sweeper.trainer.probe:run", "probe"),
        ("sweeper.trainer.tracing:run", "trace"),
        ("sweeper.trainer.trying:run", "dry_step"),
        ("sweeper.trainer.preflight:run", "preflight"),
        ("sweeper.trainer.ceilings:run", "ceilings"),
        ("sweeper.script.trial:run", "script"),
        ("sweeper.script.trial:run_for_loss", "script_quality"),
        ("sweeper.trainer.production:run", "training"),
    ],
)
def test_runners_that_0_1_0_stored_are_read_wherever_their_modules_are_now(tmp_path: Path, old, runner):
    write_job(tmp_path, Job(uid="u", runner=old))
    assert read_job(tmp_path).runner == runner
    assert runner in RUNNERS


def test_a_finding_about_the_configuration_is_not_retried():
    assert not INFEASIBLE & RETRIED
    assert FailureKind.USER_ERROR not in INFEASIBLE | RETRIED
