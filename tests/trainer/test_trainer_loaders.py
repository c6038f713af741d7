"""What every built-in loader does; `test_trainer_data` has what single ones do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor
from trainer_problems import Table
from trainer_samples import LENGTH, LONGEST, batches, numbered, of_lengths

from sweeper.core.config import LoaderConfig
from sweeper.core.loaders import BUILTIN, traits
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.pipeline import Batch, Samples, take

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIZE, SMALL, SEED = 20, 8, 3
END_SECONDS = 5
CPU = torch.device("cpu")

IN_WORKERS = {"num_workers": 2, "prefetch_factor": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {"kind": "rows"},
    "rows-2": {"kind": "rows", **IN_WORKERS},
    "rows-2-anew": {"kind": "rows", **IN_WORKERS, "persistent_workers": False},
    "workers": {"kind": "workers"},
    "workers-2": {"kind": "workers", **IN_WORKERS},
    "workers-2-anew": {"kind": "workers", **IN_WORKERS, "persistent_workers": False},
    "resident": {"kind": "resident"},
    "stream": {"kind": "stream"},
}
# Of processes that are started anew for each epoch, one kind tells.
SLOW = ("workers-2-anew",)
INDEX_ONLY = [f"{kind}, indices" for kind, row in BUILTIN.items() if row.gathers_in_step]

Start = Callable[..., Loader]


def numbers(found: list[Batch]) -> list[list[int]]:
    return [batch["i"].tolist() for batch in found]


def in_order(samples: Samples, size: int, epochs: int, *, drop_last: bool, buckets: int = 1) -> list[Any]:
    """`(samples, static length)` of each batch of `epochs` epochs."""
    order = Order(samples.length, size, SEED, drop_last=drop_last, lengths=samples.lengths, buckets=buckets)
    return [
        (index.tolist(), length) for epoch in range(epochs) for index, length in order.epoch(epoch).batches()
    ]


def test_no_kind_is_left_out():
    assert {options["kind"] for options in OPTIONS.values()} == set(BUILTIN)


@pytest.fixture(
    params=[
        *(pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in OPTIONS),
        *INDEX_ONLY,
    ]
)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    name, _, indices = request.param.partition(", ")
    return {**OPTIONS[name], "index_only": bool(indices)}


@pytest.fixture
def start(options: dict[str, Any]) -> Iterator[Start]:
    """Starts a loader on samples and closes it after the test."""
    with contextlib.ExitStack() as held:

        def make(
            samples: Samples, size: int = SIZE, *, begin: int = 0, seed: int = SEED, **more: Any
        ) -> Loader:
            given = {**options, **more}
            index_only = given.pop("index_only")
            config = LoaderConfig(**given)
            loader = make_loader(samples, config, size, seed, CPU, index_only=index_only, begin=begin)
            held.callback(loader.close)
            loader.start()
            return loader

        yield make


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
def test_batches_are_those_of_the_order(start: Start, drop_last: bool):
    want = in_order(numbered(), SIZE, 3, drop_last=drop_last)
    loader = start(numbered(), drop_last=drop_last)
    got = batches(loader, len(want))
    assert numbers(got) == [index for index, _ in want]
    assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)
    assert loader.drain_steps >= 1
    assert loader.period_steps >= 1
    assert loader.order.num_batches == LENGTH // SIZE + (not drop_last)
    if not drop_last:
        epoch = numbers(got)[: loader.order.num_batches]
        assert sorted(itertools.chain(*epoch)) == list(range(LENGTH))


def test_a_seed_decides_the_batches(start: Start):
    first, again, other = (numbers(batches(start(numbered(), seed=seed), 7)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_it_goes_on_after_the_batches_that_were_taken_before(start: Start):
    # Five batches are an epoch.
    want = in_order(numbered(), SIZE, 4, drop_last=True)[13:]
    got = batches(start(numbered(), begin=13), len(want))
    assert numbers(got) == [index for index, _ in want]


def test_the_models_random_numbers_are_left_alone(start: Start):
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    batches(start(numbered()), 12)
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
def test_buckets_are_those_of_the_order(start: Start, drop_last: bool):
    samples = of_lengths()
    want = in_order(samples, SMALL, 3, drop_last=drop_last, buckets=4)
    loader = start(samples, SMALL, drop_last=drop_last, buckets=4)
    assert loader.num_shapes == 4
    got = batches(loader, len(want))
    assert [(batch["i"].tolist(), batch["x"].shape[1]) for batch in got] == want
    for batch in got:
        there = torch.arange(batch["x"].shape[1]) < batch["count"][:, None]
        assert torch.equal(batch["x"], batch["i"][:, None] * there)


def test_one_bucket_pads_to_the_longest(start: Start):
    loader = start(of_lengths())
    assert loader.num_shapes == 1
    assert {batch["x"].shape for batch in batches(loader, 8)} == {(SIZE, LONGEST)}


@pytest.mark.parametrize("subset", [None, torch.arange(LENGTH) * 2 + 5], ids=["all", "subset"])
def test_a_source_gives_the_batches_that_its_tensors_would(
    start: Start, options: dict[str, Any], subset: Tensor | None
):
    many = torch.arange(LENGTH if subset is None else 300)
    samples = Samples.of(Table({"i": many, "x": many * 0.5}), subset)
    if traits(options["kind"]).is_resident:
        with pytest.raises(TrialFailedError, match="needs samples in tensors") as caught:
            start(samples)
        assert caught.value.kind == "unsupported"
        return
    want = in_order(numbered(), SIZE, 3, drop_last=True)
    got = batches(start(samples), len(want))
    picked = torch.arange(LENGTH) if subset is None else subset
    assert numbers(got) == [picked[index].tolist() for index, _ in want]
    assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)


def test_what_cannot_be_read_is_raised(start: Start):
    """By `start`, or instead of a batch."""
    bad = in_order(numbered(), SIZE, 1, drop_last=True)[3][0][0]

    def gather(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
        if bad in index.tolist():
            raise OSError("the disk is gone")
        return take(tensors, index)

    def row(number: int) -> Mapping[str, Any]:
        batch = gather(numbered().tensors, torch.tensor([number]))
        return {name: tensor[0] for name, tensor in batch.items()}

    samples = dataclasses.replace(numbered(), gather=gather, row=row)
    with pytest.raises(OSError, match="the disk is gone"):
        batches(start(samples), 15)


def test_a_closed_loader_has_no_processes_threads_or_batches(start: Start):
    def processes() -> set[int]:
        return {each.pid for each in psutil.Process().children(recursive=True)}

    threads, before = set(threading.enumerate()), processes()
    loader = start(numbered())
    batches(loader, 3)
    loader.close()
    assert processes() - before == set()
    for thread in set(threading.enumerate()) - threads:
        # The feeder of a multiprocessing queue ends soon after the queue is closed.
        thread.join(END_SECONDS)
        assert not thread.is_alive(), thread
    with pytest.raises(StopIteration):
        loader.next()


def test_it_may_be_closed_before_it_was_started_and_twice(options: dict[str, Any]):
    index_only = options.pop("index_only")
    loader = make_loader(numbered(), LoaderConfig(**options), SIZE, SEED, CPU, index_only=index_only)
    loader.close()
    loader.close()
    with pytest.raises(StopIteration):
        loader.next()
