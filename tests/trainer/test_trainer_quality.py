"""The quality pass: the same loss for the same numerics, to the last bit."""

from __future__ import annotations

import pytest
import torch

from sweeper.core.progress import Silent, TrialFailedError
from sweeper.trainer import measure, quality
from sweeper.trainer.setup import set_up

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.usefixtures("quiet"),
]

MODEL = {"model.hidden": 8, "model.dropout": 0.3, "batch_size": 64}


SHORT = {"window_seconds": 0.02, "repeats": 1, "warmup_cap_seconds": 0.02}


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
        {"loader.kind": "stream"},
        {"loader.kind": "stream", "device.malloc": "default"},
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
    plan = {"quality_samples": 100, **SHORT}
    assert measure.run(make_job(quality_above=1e12, **plan), Silent()).quality is None
    assert measure.run(make_job(quality_above=1.0, **plan), Silent()).quality is not None
    assert measure.run(make_job(**SHORT), Silent()).quality is None


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


def test_the_same_trial_twice_has_the_same_loss(make_job):
    job = make_job({**MODEL, "loader.kind": "stream"}, quality_samples=700, **SHORT)
    assert loss_of(job) == loss_of(job)


@pytest.mark.parametrize("buckets", [1, 3])
def test_in_buckets_it_is_the_same_whatever_the_loader(make_sequence_job, buckets: int):
    common = {"batch_size": 32, "loader.buckets": buckets}
    alone = quality.run(make_sequence_job(common, quality_samples=700), Silent()).values
    for loader in (
        {"loader.kind": "resident"},
        {"loader.kind": "stream"},
        {"loader.kind": "workers", "loader.num_workers": 2},
    ):
        job = make_sequence_job({**common, **loader}, quality_samples=700, **SHORT)
        assert loss_of(job) == loss_of(job) == (alone["train_loss"], alone["val_loss"])
        assert f"{job.config.quality_key()}-700" == alone["key"]


def test_buckets_pad_less_and_train_on_other_batches(make_sequence_job):
    found = [
        quality.run(make_sequence_job({"batch_size": 32, "loader.buckets": n}, quality_samples=700), Silent())
        for n in (1, 3)
    ]
    first, second = (report.values for report in found)
    assert first["key"] != second["key"]
    assert first["val_loss"] != second["val_loss"]
    assert second["val_loss"] == pytest.approx(first["val_loss"], rel=0.5)


@pytest.mark.parametrize("buckets", [1, 3])
def test_validation_is_the_mean_over_all_samples(make_sequence_job, buckets: int):
    """Bucket by bucket, in batches which do not divide them: the same as sample by sample."""
    pipeline, stepper, _ = set_up(make_sequence_job({"batch_size": 7, "loader.buckets": buckets}))
    val = pipeline.val
    with torch.no_grad():
        losses = [
            pipeline.loss(stepper.model, val.read(val.tensors, torch.tensor([i]), int(val.lengths[i]))).item()
            for i in range(val.length)
        ]
    got = quality.validate(pipeline, stepper, stepper.model)
    assert got == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert stepper.model.training


@pytest.mark.parametrize("make_sequence_job", [True], indirect=True, ids=["source"])
def test_from_a_source_it_is_the_same_whatever_the_loader(make_sequence_job):
    alone = quality.run(make_sequence_job({"batch_size": 32}, quality_samples=700), Silent()).values
    for kind in ("rows", "workers", "stream"):
        job = make_sequence_job({"batch_size": 32, "loader.kind": kind}, quality_samples=700, **SHORT)
        assert loss_of(job) == (alone["train_loss"], alone["val_loss"])
    with pytest.raises(TrialFailedError, match="this pipeline reads from a Source") as caught:
        measure.run(make_sequence_job({"loader.kind": "resident"}), Silent())
    assert caught.value.kind == "unsupported"
