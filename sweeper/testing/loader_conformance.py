"""Provides the conformance suite of loaders. Derive a test class and give it a `config` fixture.

class TestTurbo(LoaderConformance):
    @pytest.fixture
    def config(self):
        return LoaderConfig(kind="turbo")
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from sweeper.core.config import LoaderConfig
from sweeper.core.loaders import traits
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.pipeline import Batch, Samples, take

LENGTH, LONGEST = 103, 12
SIZE, SMALL = 20, 8
SEED = 3
END_SECONDS = 5
CPU = torch.device("cpu")


class Table:
    """A source: rows of some tensors, read by index."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def read(self, index: Tensor) -> Batch:
        """Returns the rows `index`."""
        return {name: tensor[index] for name, tensor in self.tensors.items()}


def numbered() -> Samples:
    """Returns 103 samples; `i` is a sample's number, and `x` half of it."""
    number = torch.arange(LENGTH)
    return Samples(tensors={"i": number, "x": number * 0.5}, length=LENGTH)


def padded(tensors: Mapping[str, Tensor], index: Tensor, length: int) -> Batch:
    """Gathers samples whose `x` is cut or padded to `length`."""
    return {
        name: tensor[index, :length] if name == "x" else tensor[index] for name, tensor in tensors.items()
    }


def of_lengths(**changes: Any) -> Samples:
    """Returns 103 samples of 1 to 12 elements: `x` repeats a sample's number over its length, then zeros."""
    count = 1 + torch.arange(LENGTH) * 7 % LONGEST
    x = torch.arange(LENGTH)[:, None] * (torch.arange(LONGEST) < count[:, None])
    samples = Samples(
        tensors={"x": x, "count": count, "i": torch.arange(LENGTH)},
        length=LENGTH,
        gather=padded,
        lengths=count,
    )
    return dataclasses.replace(samples, **changes)


def batches(loader: Loader, num: int) -> list[Batch]:
    """Returns the next batches, as a step gets them."""
    found = []
    for _ in range(num):
        batch, size, length = loader.next()
        batch = loader.materialise(loader.to_device(batch), length)
        assert {len(tensor) for tensor in batch.values()} == {size}
        found.append(batch)
    return found


def numbers(found: list[Batch]) -> list[list[int]]:
    """Returns the samples of each batch."""
    return [batch["i"].tolist() for batch in found]


def in_order(samples: Samples, size: int, epochs: int, *, drop_last: bool, buckets: int = 1) -> list[Any]:
    """Returns `(samples, static length)` of each batch of `epochs` epochs."""
    order = Order(samples.length, size, SEED, drop_last=drop_last, lengths=samples.lengths, buckets=buckets)
    return [
        (index.tolist(), length) for epoch in range(epochs) for index, length in order.epoch(epoch).batches()
    ]


def processes() -> set[int]:
    """Returns the processes below this one."""
    return {each.pid for each in psutil.Process().children(recursive=True)}


class LoaderConformance:
    """Override the fixture `config`; pytest collects the rest."""

    @pytest.fixture
    def index_only(self) -> bool:
        """Returns whether indices are requested; override it for a loader that `gathers_in_step`."""
        return False

    @pytest.fixture
    def start(self, config: LoaderConfig, index_only: bool) -> Iterator[Any]:
        """Returns a function that starts a loader of `config` on samples and closes it after the test."""
        with contextlib.ExitStack() as held:

            def make(
                samples: Samples, size: int = SIZE, *, begin: int = 0, seed: int = SEED, **more: Any
            ) -> Loader:
                changed = dataclasses.replace(config, **more)
                loader = make_loader(samples, changed, size, seed, CPU, index_only=index_only, begin=begin)
                held.callback(loader.close)
                loader.start()
                return loader

            yield make

    @pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
    def test_batches_are_those_of_the_order(self, start: Any, drop_last: bool) -> None:
        """Three epochs have the same samples in the same batches as from every other loader."""
        want = in_order(numbered(), SIZE, 3, drop_last=drop_last)
        got = batches(start(numbered(), drop_last=drop_last), len(want))
        assert numbers(got) == [index for index, _ in want]
        assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)

    def test_an_epoch_has_every_sample_once(self, start: Any) -> None:
        """The last batch is ragged, and nothing is dropped or repeated."""
        loader = start(numbered(), drop_last=False)
        for _ in range(2):
            epoch = numbers(batches(loader, -(-LENGTH // SIZE)))
            assert [len(batch) for batch in epoch] == [SIZE] * (LENGTH // SIZE) + [LENGTH % SIZE]
            assert sorted(itertools.chain(*epoch)) == list(range(LENGTH))

    def test_a_seed_decides_the_batches(self, start: Any) -> None:
        """The same seed gives the same batches, and another seed gives others."""
        first, again, other = (numbers(batches(start(numbered(), seed=seed), 7)) for seed in (5, 5, 6))
        assert first == again
        assert first != other

    def test_it_goes_on_after_the_batches_that_were_taken_before(self, start: Any) -> None:
        """Skips batches as a production run resumed mid-epoch does."""
        # Five batches are an epoch.
        want = in_order(numbered(), SIZE, 4, drop_last=True)[13:]
        got = batches(start(numbered(), begin=13), len(want))
        assert numbers(got) == [index for index, _ in want]

    def test_the_models_random_numbers_are_left_alone(self, start: Any) -> None:
        """Training does not depend on the loader."""
        torch.manual_seed(1)
        want = torch.rand(3)
        torch.manual_seed(1)
        batches(start(numbered()), 12)
        assert torch.equal(torch.rand(3), want)

    @pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
    def test_buckets_are_those_of_the_order(self, start: Any, drop_last: bool) -> None:
        """Samples of varying length are padded to the static length of their batch."""
        samples = of_lengths()
        want = in_order(samples, SMALL, 3, drop_last=drop_last, buckets=4)
        loader = start(samples, SMALL, drop_last=drop_last, buckets=4)
        assert loader.num_shapes == 4
        got = batches(loader, len(want))
        assert [(batch["i"].tolist(), batch["x"].shape[1]) for batch in got] == want
        for batch in got:
            there = torch.arange(batch["x"].shape[1]) < batch["count"][:, None]
            assert torch.equal(batch["x"], batch["i"][:, None] * there)

    def test_one_bucket_pads_to_the_longest(self, start: Any) -> None:
        """All batches have one static shape."""
        loader = start(of_lengths())
        assert loader.num_shapes == 1
        assert {batch["x"].shape for batch in batches(loader, 8)} == {(SIZE, LONGEST)}

    @pytest.mark.parametrize("subset", [None, torch.arange(LENGTH) * 2 + 5], ids=["all", "subset"])
    def test_a_source_gives_the_batches_that_its_tensors_would(
        self, start: Any, config: LoaderConfig, subset: Tensor | None
    ) -> None:
        """A loader that keeps its samples on the device refuses a source instead."""
        many = torch.arange(LENGTH if subset is None else 300)
        samples = Samples.of(Table({"i": many, "x": many * 0.5}), subset)
        if traits(config.kind).is_resident:
            with pytest.raises(TrialFailedError, match="needs samples in tensors") as caught:
                start(samples)
            assert caught.value.kind == "unsupported"
            return
        want = in_order(numbered(), SIZE, 3, drop_last=True)
        got = batches(start(samples), len(want))
        picked = torch.arange(LENGTH) if subset is None else subset
        assert numbers(got) == [picked[index].tolist() for index, _ in want]
        assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)

    def test_it_says_how_its_work_repeats(self, start: Any) -> None:
        """Timed windows cover whole multiples of these steps."""
        loader = start(numbered())
        assert loader.drain_steps >= 1
        assert loader.period_steps >= 1
        assert loader.order.num_batches == LENGTH // SIZE

    def test_what_cannot_be_read_is_raised(self, start: Any) -> None:
        """The error is raised by `start` or instead of a batch."""
        bad = in_order(numbered(), SIZE, 1, drop_last=True)[3][0][0]

        def gather(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
            if bad in index.tolist():
                raise OSError("the disk is gone")
            return take(tensors, index)

        samples = dataclasses.replace(numbered(), gather=gather, row=lambda i: _one(gather, i))

        def three_epochs() -> None:
            batches(start(samples), 15)

        with pytest.raises(OSError, match="the disk is gone"):
            three_epochs()

    def test_a_closed_loader_has_no_processes_threads_or_batches(self, start: Any) -> None:
        """`close` ends whatever `start` began."""
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

    def test_it_may_be_closed_before_it_was_started_and_twice(
        self, config: LoaderConfig, index_only: bool
    ) -> None:
        """`close` may be called from more than one clean-up."""
        loader = make_loader(numbered(), config, SIZE, SEED, CPU, index_only=index_only)
        loader.close()
        loader.close()
        with pytest.raises(StopIteration):
            loader.next()


def _one(gather: Any, number: int) -> Mapping[str, Any]:
    batch = gather(numbered().tensors, torch.tensor([number]))
    return {name: tensor[0] for name, tensor in batch.items()}
