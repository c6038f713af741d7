"""What follows from the baseline for the trials after it."""

from __future__ import annotations

import dataclasses

import pytest
from measurements import THROUGHPUT, measurement, record_of
from replays import Bench, spec_of

from sweeper.core.measurement import Breakdown
from sweeper.core.record import BASELINE
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.sweep.phases.losses import num_seeds
from sweeper.sweep.workloads.pipeline import PIPELINE


@pytest.mark.parametrize("phase", ["forward_s", "graph_s"])
def test_the_loss_rests_on_what_the_baseline_computes_in_its_seconds(phase: str):
    """A captured step has one phase, which is all of its arithmetic."""
    found = dataclasses.replace(measurement(), breakdown=Breakdown(data_s=0.008, **{phase: 0.002}))
    assert PIPELINE.quality_samples(spec_of(), found, 64, 20.0) == 640_000


@pytest.mark.parametrize(
    ("seconds", "minutes", "seeds"),
    # A sixth of three minutes are 30 s.
    [(9, 3, 3), (14, 3, 2), (16, 3, 1), (100, 3, 1), (100, 60, 3), (100, None, 3)],
)
def test_the_losses_of_a_script_leave_time_for_its_search(seconds: int, minutes: int | None, seeds: int):
    pipeline = spec_of(search={"trials": 4, "minutes": minutes})
    table = TrialTable(pipeline)
    table.enter(record_of(measurement(), number=BASELINE))
    table.measure_loss_after(round((seconds - 0.5) * THROUGHPUT))
    script = pipeline.model_copy(
        update={"command": ("python", "train.py"), "pipeline": None, "workload": "script"}
    )
    assert num_seeds(script, table) == seeds
    assert num_seeds(pipeline, table) == 3


def test_an_extension_compares_losses_after_the_same_samples(bench: Bench):
    """It has no limit in time, of which the baseline's seconds are a share."""
    spec = spec_of(measure={"quality_samples": "auto"}, search={"sampler": "random", "minutes": 2})
    samples = set[int]()
    for extend in (0, 3):
        assert bench.run(spec, extend=extend).was_run
        samples |= {job.plan.quality_samples for job in bench.jobs("search")} - {0}
    # Two seconds of batches of 64, each of which takes a millisecond.
    assert samples == {128_000}


def test_only_the_first_seed_reports_the_pipelines_metrics(bench: Bench):
    bench.run()
    jobs = [job for job in bench.launcher.jobs if job.stage == "loss" and job.plan.until_loss is None]
    assert {job.plan.evaluate for job in jobs if job.config.seed == 0} == {True}
    assert {job.plan.evaluate for job in jobs if job.config.seed != 0} == {False}
