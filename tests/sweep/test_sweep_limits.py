"""What a sweep's trials are told about how long they may take."""

from __future__ import annotations

from replays import Bench, spec_of


def test_trials_have_the_specifications_limits(bench: Bench):
    execution = {"trial_timeout_minutes": 3, "stage_timeout_minutes": {"compile": 2, "window": 0.5}}
    bench.run(spec_of(execution=execution))
    jobs = [job for stage in ("baseline", "search", "race") for job in bench.jobs(stage)]
    assert len(jobs) > 3
    assert {job.stall_seconds for job in jobs} == {60.0}
    for job in jobs:
        assert job.stage_seconds == {"compile": 120.0, "window": 30.0}
        assert job.timeout_seconds <= 180.0


def test_no_limit_where_none_is_asked_for(bench: Bench):
    bench.run(spec_of(execution={"stall_seconds": 0}))
    assert {(job.stall_seconds, len(job.stage_seconds)) for job in bench.jobs("search")} == {(0.0, 0)}
