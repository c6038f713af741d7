"""The folder of a job: what is written there is read back."""

from __future__ import annotations

from pathlib import Path

from parts import noop

from sweeper.core.config import TrialConfig
from sweeper.core.job import CONFIG, RETRIED, Job, read_job, read_outcome, write_job, write_outcome
from sweeper.core.measurement import INFEASIBLE, Failure, FailureKind, Report
from sweeper.system.files import read_json


def test_job_and_outcome_come_back_from_their_folder(tmp_path: Path):
    folder = tmp_path / "trials" / "0007"
    job = Job(uid="u", config=TrialConfig(batch_size=3, model={"h": 1}))
    write_job(folder, job)
    assert read_job(folder) == job
    assert read_json(folder / CONFIG)["schema"] == 2
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


def test_a_finding_about_the_configuration_is_not_retried():
    assert not INFEASIBLE & RETRIED
    assert FailureKind.USER_ERROR not in INFEASIBLE | RETRIED
