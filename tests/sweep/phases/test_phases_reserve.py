"""The time that a search leaves for what follows it, and that the rounds then take."""

from __future__ import annotations

import dataclasses

import pytest
from parts.noop import synthetic
from replays import spec_of, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.sweep.phases.reserve import run_seconds

START = {"startup_seconds": 0.25, "first_step_seconds": 0.5}


@pytest.mark.parametrize(
    ("warmup", "expected"), [(0.5, 3.75), (1.75, 4.5), (9.5, 8.25)], ids=["short", "usual", "long"]
)
def test_a_process_takes_its_start_its_warm_up_a_window_and_its_end(warmup, expected):
    """The warm-up counts from the first step, for half a second at least and five at most."""
    found = dataclasses.replace(synthetic(100.0), warmup_seconds=warmup, **START)
    record = TrialRecord(number=0, uid="", stage="search", config=TrialConfig(), outcome=found)
    spec = spec_of(measure={"window_seconds": 2.0})
    assert run_seconds(TrialTable(spec), record, spec) == pytest.approx(expected)


def test_a_round_warms_up_as_long_as_its_trial_did(bench):
    def answer(config: TrialConfig) -> Measurement:
        warmup = {"rows": 9.5, "workers": 0.5, "resident": 1.75}[config.loader.kind]
        return dataclasses.replace(synthetic(throughput(config)), warmup_seconds=warmup, **START)

    bench.run(spec_of(confirm={"rounds": 3, "top": 1}), answer)
    caps = {(job.config.loader.kind, job.plan.warmup_cap_seconds) for job in bench.jobs("race")}
    assert caps == {("rows", 5.0), ("resident", 1.25)}


def test_a_round_warms_up_no_longer_than_the_settings_allow(bench):
    def answer(config: TrialConfig) -> Measurement:
        return dataclasses.replace(synthetic(throughput(config)), warmup_seconds=4.0)

    bench.run(spec_of(confirm={"rounds": 3, "top": 1}, measure={"warmup_cap_seconds": 1.5}), answer)
    assert {job.plan.warmup_cap_seconds for job in bench.jobs("race")} == {1.5}
