"""The quality pass: the same loss for the same numerics, to the last bit."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from sweeper.core.job import MeasurePlan
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.errors import UserError
from sweeper.trainer import measure, quality
from sweeper.trainer.setup import set_up

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.usefixtures("quiet"),
]

MODEL = {"model.hidden": 8, "model.dropout": 0.3, "batch_size": 64}


SHORT = {"window_seconds": 0.02, "repeats": 1, "warmup_cap_seconds": 0.02}


def loss_of(job) -> tuple[float, float]:
    result = measure.run(job, SilentProgress()).quality
    return result.train_loss, result.val_loss


@pytest.fixture
def alone(make_job):
    """The pass alone, as a job of its own, over 1,000 samples."""
    return quality.run(make_job(MODEL, quality_samples=1000), SilentProgress()).values


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


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, [576, 1088, 1600, 2100]),
        # At the optimiser steps: of nine micro-batches the last is not in the weights.
        ({"accumulate_steps": 2}, [640, 1152, 1664, 2100]),
        ({"batch_size": 1200}, [1200, 2100]),
    ],
)
def test_its_curve_is_what_shorter_passes_end_with(make_job, changes: dict, places: list[int]):
    """To the last bit, with dropout: no validation changes anything of what follows it."""
    config = {**MODEL, **changes}
    found = quality.run(make_job(config, quality_samples=2100), SilentProgress()).values
    assert [samples for samples, _ in found["curve"]] == places
    assert found["curve"][-1] == [2100, found["val_loss"]]
    for samples, loss in found["curve"][:-1]:
        shorter = quality.run(make_job(config, quality_samples=samples), SilentProgress()).values
        assert shorter["curve"][-1] == [samples, loss]


def test_validations_on_the_way_change_nothing_of_what_follows(make_job):
    """Not even where the loss draws random numbers in evaluation."""
    found = []
    for parts in (4, 1):
        pipeline, stepper, _ = set_up(make_job(MODEL))

        def noisy(model, batch, loss=pipeline.loss):
            return loss(model, batch) * (1 + torch.rand(()) + np.random.rand() + random.random())

        stepper.pipeline = pipeline = dataclasses.replace(pipeline, loss=noisy)
        result = quality.measure(pipeline, stepper, MeasurePlan(quality_samples=2100, quality_parts=parts))
        found.append((result.train_loss, result.val_loss, [p.tolist() for p in stepper.parameters]))
        assert (len(result.curve) > 1) == (parts > 1)
    assert found[0] == found[1]


def test_a_validation_that_is_expensive_is_at_the_end_only(make_job):
    """There are 500 validation samples."""
    points = {
        samples: len(quality.run(make_job(MODEL, quality_samples=samples), SilentProgress()).values["curve"])
        for samples in (999, 1999, 2000)
    }
    assert points == {999: 1, 1999: 3, 2000: 4}


def test_it_ends_once_the_loss_is_reached(make_job):
    plan = {"quality_samples": 20_000, "quality_parts": 40}
    whole = quality.run(make_job(MODEL, **plan), SilentProgress()).values
    until = whole["curve"][10][1]
    found = quality.run(make_job(MODEL, until_loss=until, **plan), SilentProgress()).values
    assert found["curve"] == whole["curve"][: len(found["curve"])]
    assert found["val_loss"] <= until < found["curve"][-2][1]
    assert found["samples"] == found["curve"][-1][0] < 20_000


def test_it_is_told_apart_by_its_key(make_job, alone):
    again = quality.run(make_job(MODEL, quality_samples=1000), SilentProgress()).values
    assert {**again, "seconds": 0} == {**alone, "seconds": 0}
    assert alone["key"].endswith("-1000")
    assert alone["constant_loss"] > alone["val_loss"] > alone["best_loss"] == pytest.approx(0.01)
    for change in ({"seed": 1}, {"batch_size": 65}, {"precision.amp": "bf16"}, {"optimizer.lr": 0.02}):
        other = quality.run(make_job({**MODEL, **change}, quality_samples=1000), SilentProgress()).values
        assert other["key"] != alone["key"]
        assert other["val_loss"] != alone["val_loss"]
    fewer = quality.run(make_job(MODEL, quality_samples=999), SilentProgress()).values
    assert fewer["key"] != alone["key"]
    assert fewer["val_loss"] != alone["val_loss"]


def test_it_is_left_out_below_the_mark(make_job):
    plan = {"quality_samples": 100, **SHORT}
    assert measure.run(make_job(quality_above=1e12, **plan), SilentProgress()).quality is None
    assert measure.run(make_job(quality_above=1.0, **plan), SilentProgress()).quality is not None
    assert measure.run(make_job(**SHORT), SilentProgress()).quality is None


def test_a_loss_that_is_not_finite_is_a_finding(make_job):
    job = make_job({"model.fault": "nan", "model.fault_at": 2}, quality_samples=1000)
    with pytest.raises(TrialFailedError, match="not finite after 1000 samples") as caught:
        quality.run(job, SilentProgress())
    assert caught.value.kind == "non_finite"


def test_micro_batches_left_over_at_the_end_are_learnt_from(make_job):
    """Three micro-batches of an accumulation of two: the third has its optimiser step, too."""
    losses = {}
    for samples in (200, 300):
        pipeline, stepper, _ = set_up(make_job({"accumulate_steps": 2}))
        quality.measure(pipeline, stepper, MeasurePlan(quality_samples=samples))
        losses[samples] = stepper.updates
    assert losses == {200: 1, 300: 2}


def test_the_same_trial_twice_has_the_same_loss(make_job):
    job = make_job({**MODEL, "loader.kind": "stream"}, quality_samples=700, **SHORT)
    assert loss_of(job) == loss_of(job)


@pytest.mark.parametrize("buckets", [1, 3])
def test_in_buckets_it_is_the_same_whatever_the_loader(make_sequence_job, buckets: int):
    common = {"batch_size": 32, "loader.buckets": buckets}
    alone = quality.run(make_sequence_job(common, quality_samples=700), SilentProgress()).values
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
        quality.run(
            make_sequence_job({"batch_size": 32, "loader.buckets": n}, quality_samples=700), SilentProgress()
        )
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
    alone = quality.run(make_sequence_job({"batch_size": 32}, quality_samples=700), SilentProgress()).values
    for kind in ("rows", "workers", "stream"):
        job = make_sequence_job({"batch_size": 32, "loader.kind": kind}, quality_samples=700, **SHORT)
        assert loss_of(job) == (alone["train_loss"], alone["val_loss"])
    with pytest.raises(TrialFailedError, match="this pipeline reads from a Source") as caught:
        measure.run(make_sequence_job({"loader.kind": "resident"}), SilentProgress())
    assert caught.value.kind == "unsupported"


def test_the_pipeline_is_asked_about_each_validation_sample_once(make_job, monkeypatch):
    """In evaluation mode, without gradients; what it tells is in the result, if it is finite."""
    seen: list[torch.Tensor] = []

    def evaluate(model, batches):
        for batch in batches:
            assert not model.training
            assert not model(batch["x"]).requires_grad
            seen.append(batch["y"])
        return {"error": 0.25, "lost": float("nan"), "whole": 3}

    job = make_job(MODEL)
    pipeline, stepper, _ = set_up(job)
    pipeline = dataclasses.replace(pipeline, evaluate=evaluate)
    assert quality.measure(pipeline, stepper, MeasurePlan(quality_samples=200)).metrics == {
        "error": 0.25,
        "whole": 3.0,
    }
    plan = MeasurePlan(quality_samples=200, evaluate=False)
    assert quality.measure(pipeline, stepper, plan).metrics == {}
    assert torch.equal(torch.cat(seen), pipeline.val.tensors["y"])
    assert stepper.model.training


@pytest.mark.parametrize("told", [None, 0.5, {"error": "much"}, {"error": None}])
def test_an_evaluation_that_returns_no_numbers_is_the_users_mistake(make_job, told):
    pipeline, stepper, _ = set_up(make_job(MODEL))
    pipeline = dataclasses.replace(pipeline, evaluate=lambda model, batches: told)
    with pytest.raises(UserError, match="`evaluate` must return numbers by name"):
        quality.measure(pipeline, stepper, MeasurePlan(quality_samples=100))


def test_validation_samples_that_do_not_fit_together_come_in_batches_of_the_trainings_size(make_job):
    pipeline, stepper, _ = set_up(make_job(MODEL))
    whole = quality.validate(pipeline, stepper, stepper.model), quality.metrics_of(pipeline, stepper)
    sizes = []

    def fitting(batch):
        sizes.append(len(batch["x"]))
        if sizes[-1] > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    small = dataclasses.replace(
        pipeline,
        loss=lambda model, batch: pipeline.loss(model, fitting(batch)),
        evaluate=lambda model, batches: pipeline.evaluate(model, map(fitting, batches)),
    )
    assert quality.validate(small, stepper, stepper.model) == pytest.approx(whole[0])
    assert quality.metrics_of(small, stepper) == pytest.approx(whole[1])
    # There are 500 of them.
    assert sizes == 2 * [500, *[64] * 7, 52]
    assert stepper.model.training
