"""Loaders: the same batches in the same order, whatever the kind."""

from __future__ import annotations

import itertools

import pytest
import torch

from sweeper.core.config import LoaderConfig
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data import Loader, epoch_order, fixed_batches
from sweeper.trainer.pipeline import Samples

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CPU = torch.device("cpu")
LENGTH = 103
SAMPLES = Samples(tensors={"i": torch.arange(LENGTH), "x": torch.arange(LENGTH) * 0.5}, length=LENGTH)

KINDS = [
    pytest.param({"kind": "rows"}, id="rows-0"),
    pytest.param({"kind": "rows", "num_workers": 2}, id="rows-2"),
    pytest.param({"kind": "rows", "num_workers": 2, "persistent_workers": False}, id="rows-2-anew"),
    pytest.param({"kind": "workers"}, id="workers-0"),
    pytest.param({"kind": "workers", "num_workers": 2}, id="workers-2"),
    pytest.param({"kind": "workers", "num_workers": 2, "persistent_workers": False}, id="workers-2-anew"),
    pytest.param({"kind": "resident"}, id="resident"),
]


def expected(seed: int, batch: int, epochs: int, drop_last: bool) -> list[list[int]]:
    found = []
    for epoch in range(epochs):
        order = epoch_order(seed, epoch, LENGTH).tolist()
        batches = [order[i : i + batch] for i in range(0, LENGTH, batch)]
        found += [b for b in batches if len(b) == batch or not drop_last]
    return found


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
@pytest.mark.parametrize("options", KINDS)
def test_three_epochs_have_the_same_batches(options: dict, drop_last: bool):
    want = expected(3, 20, 3, drop_last)
    loader = Loader(SAMPLES, LoaderConfig(drop_last=drop_last, **options), 20, 3, CPU)
    try:
        got = [loader.next() for _ in want]
    finally:
        loader.close()
    assert [batch["i"].tolist() for batch in got] == want
    assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)


def test_an_epoch_visits_every_sample_once_in_an_order_of_its_own():
    orders = [epoch_order(seed, epoch, 50).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == epoch_order(0, 0, 50).tolist()


def test_drain_steps_is_what_all_queues_hold():
    for options, steps in (
        ({"kind": "resident", "num_workers": 4}, 1),
        ({"kind": "workers"}, 1),
        ({"kind": "workers", "num_workers": 3, "prefetch_factor": 4}, 12),
    ):
        loader = Loader(SAMPLES, LoaderConfig(**options), 20, 0, CPU)
        assert loader.drain_steps == steps
        loader.close()


@pytest.mark.parametrize("kind", ["rows", "workers", "resident"])
def test_a_batch_larger_than_the_data_is_said(kind: str):
    with pytest.raises(TrialFailedError) as caught:
        Loader(SAMPLES, LoaderConfig(kind=kind), LENGTH + 1, 0, CPU)
    assert caught.value.kind == "data_too_small"
    assert str(caught.value) == "a batch of 104 needs as many training samples, but there are 103"
    ragged = Loader(SAMPLES, LoaderConfig(kind=kind, drop_last=False), LENGTH + 1, 0, CPU)
    assert len(ragged.next()["i"]) == LENGTH


def test_a_row_function_of_the_pipelines_own_is_used():
    samples = Samples(tensors=SAMPLES.tensors, length=LENGTH, row=lambda i: {"double": 2 * i})
    batch = Loader(samples, LoaderConfig(kind="rows"), 20, 0, CPU).next()
    assert batch["double"].tolist() == [2 * i for i in epoch_order(0, 0, LENGTH)[:20].tolist()]


@pytest.mark.parametrize("num_samples", [1, 20, 103, 250])
@pytest.mark.parametrize("batch_size", [1, 7, 20, 200])
def test_fixed_batches_are_exactly_so_many_samples_in_one_order(batch_size: int, num_samples: int):
    batches = list(fixed_batches(SAMPLES, batch_size, num_samples, 5, CPU))
    assert all(len(batch["i"]) == batch_size for batch in batches[:-1])
    got = torch.cat([batch["i"] for batch in batches])
    want = torch.cat([epoch_order(5, epoch, LENGTH) for epoch in range(3)])[:num_samples]
    assert torch.equal(got, want)


def test_a_closed_loader_has_no_workers_and_no_batches():
    loader = Loader(SAMPLES, LoaderConfig(kind="workers", num_workers=2), 20, 0, CPU)
    loader.next()
    workers = list(loader._loader._iterator._workers)
    assert all(worker.is_alive() for worker in workers)
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    assert list(itertools.islice(loader._batches, 1)) == []
