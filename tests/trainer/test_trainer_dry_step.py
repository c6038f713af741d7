"""The trying job: what two steps tell of a configuration, with every loader, and what ends it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from trainer_problems import LONGEST, ROWS

from sweeper.core.loaders import BUILTIN
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.trainer import dry_step
from sweeper.trainer.setup import set_up


def values_of(job):
    return dry_step.run(job, SilentProgress()).values


@pytest.mark.parametrize("kind", BUILTIN)
def test_what_it_tells_is_the_pipelines_own(make_job, kind):
    job = make_job({"loader.kind": kind, "batch_size": 50})
    values = values_of(job)
    pipeline, _, _ = set_up(job)
    train = pipeline.train
    assert (values["train_samples"], values["val_samples"]) == (train.length, pipeline.val.length)
    assert values["data_bytes"] == sum(tensor.nbytes for tensor in train.tensors.values())
    assert values["parameters"] == sum(parameter.numel() for parameter in pipeline.model.parameters())
    batch = train.read(train.tensors, torch.arange(50), 0)
    assert values["batch"] == {
        name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype)[len("torch.") :]}
        for name, tensor in batch.items()
    }
    assert values["batch_bytes"] == sum(tensor.nbytes for tensor in batch.values())
    assert 0 < values["peak_gib"] < 64
    assert all(seconds > 0 for seconds in values["step_seconds"])


def test_it_trains(make_job):
    first, second = values_of(make_job({"optimizer.lr": 0.1}))["losses"]
    assert first != second
    # With no learning to speak of the two losses differ by their batches alone.
    still = values_of(make_job({"optimizer.lr": 1e-12}))["losses"]
    assert first == still[0]
    assert second != still[1]


def test_a_step_is_of_all_its_micro_batches(make_job, monkeypatch):
    taken = []
    step = dry_step.Stepper.step
    monkeypatch.setattr(
        dry_step.Stepper, "step", lambda self, *args: (taken.append(self), step(self, *args))[1]
    )
    values_of(make_job({"accumulate_steps": 3, "batch_size": 20}))
    assert len(taken) == 6
    assert taken[0].updates == 2


def test_samples_of_varying_length(make_sequence_job):
    values = values_of(make_sequence_job({"batch_size": 10}))
    assert values["batch"]["x"]["shape"] == [10, LONGEST]


@pytest.mark.parametrize("make_sequence_job", [True], indirect=True, ids=["source"])
def test_what_is_read_from_a_source_has_no_size(make_sequence_job):
    values = values_of(make_sequence_job({"loader.kind": "stream", "batch_size": 10}))
    assert values["data_bytes"] is None
    assert values["train_samples"] == ROWS


def test_what_the_pipeline_refuses_is_told(make_job):
    job = dataclasses.replace(make_job(), pipeline="no_such_pipeline")
    assert values_of(job).keys() == {"refused"}
    assert "no_such_pipeline" in values_of(job)["refused"]


def test_a_loss_that_is_not_finite_is_a_failure(make_job):
    with pytest.raises(TrialFailedError, match="the training loss became") as caught:
        values_of(make_job({"optimizer.name": "sgd", "optimizer.lr": 1e30, "batch_size": 10}))
    assert caught.value.kind is FailureKind.NON_FINITE


def test_a_batch_larger_than_the_data_is_a_failure(make_job):
    with pytest.raises(TrialFailedError):
        values_of(make_job({"batch_size": 10**7}))
