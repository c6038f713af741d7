"""The quality pass: the same loss for the same numerics, to the last bit."""

from __future__ import annotations

import pytest

from sweeper.core.progress import Silent, TrialFailedError
from sweeper.trainer import measure, quality
from sweeper.trainer.setup import set_up

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

MODEL = {"model.hidden": 8, "model.dropout": 0.3, "batch_size": 64}


def loss_of(job) -> tuple[float, float]:
    result = measure.run(job, Silent()).quality
    return result.train_loss, result.val_loss


@pytest.fixture
def alone(make_job):
    """The pass alone, as a job of its own, over 1,000 samples."""
    return quality.run(make_job(MODEL, quality_samples=1000), Silent()).values


@pytest.mark.parametrize(
    "loader",
    [
        {"loader.kind": "rows"},
        {"loader.kind": "workers", "loader.num_workers": 2},
        {"loader.kind": "resident", "loader.drop_last": False},
        {"loader.kind": "resident", "device.memory_fraction": 0.5},
    ],
)
def test_it_does_not_depend_on_the_loader_nor_on_what_ran_before(make_job, alone, loader: dict):
    for seconds in (0.02, 0.1):
        plan = {"window_seconds": seconds, "repeats": 1, "warmup_cap_seconds": seconds}
        job = make_job({**MODEL, **loader}, quality_samples=1000, **plan)
        assert loss_of(job) == (alone["train_loss"], alone["val_loss"])


def test_it_is_told_apart_by_its_key(make_job, alone):
    again = quality.run(make_job(MODEL, quality_samples=1000), Silent()).values
    assert {**again, "seconds": 0} == {**alone, "seconds": 0}
    assert alone["key"].endswith("-1000")
    assert alone["constant_loss"] > alone["val_loss"] > alone["best_loss"] == pytest.approx(0.01)
    for change in ({"seed": 1}, {"batch_size": 65}, {"precision.amp": "bf16"}, {"optimizer.lr": 0.02}):
        other = quality.run(make_job({**MODEL, **change}, quality_samples=1000), Silent()).values
        assert other["key"] != alone["key"]
        assert other["val_loss"] != alone["val_loss"]
    fewer = quality.run(make_job(MODEL, quality_samples=999), Silent()).values
    assert fewer["key"] != alone["key"]
    assert fewer["val_loss"] != alone["val_loss"]


def test_it_is_left_out_below_the_mark(make_job):
    assert measure.run(make_job(quality_samples=100, quality_above=1e12), Silent()).quality is None
    assert measure.run(make_job(quality_samples=100, quality_above=1.0), Silent()).quality is not None
    assert measure.run(make_job(), Silent()).quality is None


def test_a_loss_that_is_not_finite_is_a_finding(make_job):
    job = make_job({"model.fault": "nan", "model.fault_at": 2}, quality_samples=1000)
    with pytest.raises(TrialFailedError, match="not finite after 1000 samples") as caught:
        quality.run(job, Silent())
    assert caught.value.kind == "non_finite"


def test_micro_batches_left_over_at_the_end_are_learnt_from(make_job):
    """Three micro-batches of an accumulation of two: the third has its optimiser step, too."""
    losses = {}
    for samples in (200, 300):
        pipeline, stepper, _ = set_up(make_job({"accumulate_steps": 2}))
        quality.measure(pipeline, stepper, samples)
        losses[samples] = stepper.updates
    assert losses == {200: 1, 300: 2}
