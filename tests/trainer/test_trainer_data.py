"""What single loaders do beyond `test_trainer_loaders`: rows, chunks, threads, and what gathers."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
import torch
from trainer_problems import Table
from trainer_samples import LENGTH, batches, numbered, of_lengths, padded

from sweeper.core.config import LoaderConfig
from sweeper.core.loaders import BUILTIN
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data import make_loader, resident, stream
from sweeper.trainer.data.order import Order, epoch_order
from sweeper.trainer.data.resident import INDEX, BatchReader
from sweeper.trainer.pipeline import Samples, Source, take, take_windows

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CPU = torch.device("cpu")
SAMPLES = numbered()
SIZE_BYTES = 20 * (8 + 4)

AT_ONCE = ["resident", "stream"]
ALL_KINDS = list(BUILTIN)


def started(samples: Samples, options: dict, size: int = 20, seed: int = 3, **more):
    options = {**options, **more}
    index_only, begin = options.pop("index_only", False), options.pop("begin", 0)
    loader = make_loader(
        samples, LoaderConfig(**options), size, seed, CPU, index_only=index_only, begin=begin
    )
    loader.start()
    return loader


def expected(seed: int, size: int, epochs: int, drop_last: bool) -> list[list[int]]:
    found = []
    for epoch in range(epochs):
        order = epoch_order(seed, epoch, LENGTH).tolist()
        cut = [order[i : i + size] for i in range(0, LENGTH, size)]
        found += [b for b in cut if len(b) == size or not drop_last]
    return found


def set_chunk_bytes(monkeypatch, limit: int) -> None:
    monkeypatch.setattr(resident, "CHUNK_BYTES", limit)
    monkeypatch.setattr(stream, "CHUNK_BYTES", {"cpu": limit})


def test_an_epoch_visits_every_sample_once_in_an_order_of_its_own():
    orders = [epoch_order(seed, epoch, 50).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == epoch_order(0, 0, 50).tolist()


def test_drain_steps_is_what_all_queues_hold(monkeypatch):
    set_chunk_bytes(monkeypatch, 3 * SIZE_BYTES)
    for options, steps, period in (
        ({"kind": "resident", "num_workers": 4}, 1, 3),
        ({"kind": "resident", "index_only": True}, 1, 1),
        ({"kind": "workers"}, 1, 1),
        ({"kind": "workers", "num_workers": 3, "prefetch_factor": 4}, 12, 1),
        ({"kind": "rows", "num_workers": 2}, 4, 1),
        ({"kind": "stream", "num_workers": 4}, 6, 3),
    ):
        loader = started(SAMPLES, options)
        assert (loader.drain_steps, loader.period_steps, loader.num_shapes) == (steps, period, 1)
        loader.close()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_batch_larger_than_the_data_is_said(kind: str):
    with pytest.raises(TrialFailedError) as caught:
        started(SAMPLES, {"kind": kind}, LENGTH + 1)
    assert caught.value.kind == "data_too_small"
    assert str(caught.value) == "a batch of 104 needs as many training samples, but there are only 103"
    ragged = started(SAMPLES, {"kind": kind}, LENGTH + 1, drop_last=False)
    assert [len(batch["i"]) for batch in batches(ragged, 2)] == [LENGTH, LENGTH]
    ragged.close()


def test_a_row_function_of_the_pipelines_own_is_used():
    samples = Samples(tensors=SAMPLES.tensors, length=LENGTH, row=lambda i: {"double": 2 * i})
    (batch,) = batches(started(samples, {"kind": "rows"}, seed=0), 1)
    assert batch["double"].tolist() == [2 * i for i in epoch_order(0, 0, LENGTH)[:20].tolist()]


@pytest.mark.parametrize("num_samples", [1, 20, 103, 250])
@pytest.mark.parametrize("size", [1, 7, 20, 200])
def test_the_first_batches_are_exactly_so_many_samples_in_one_order(size: int, num_samples: int):
    read = BatchReader(SAMPLES, CPU)
    first = Order(LENGTH, size, 5, drop_last=False).first_samples(num_samples)
    got = [read(index, length) for index, length in first.batches()]
    assert all(len(batch["i"]) == size for batch in got[:-1])
    want = torch.cat([epoch_order(5, epoch, LENGTH) for epoch in range(3)])[:num_samples]
    assert torch.equal(torch.cat([batch["i"] for batch in got]), want)
    assert torch.equal(torch.cat([batch["x"] for batch in got]), want * 0.5)


# -- samples of varying length --------------------------------------------------------------------------


GATHERED = [pytest.param({"kind": kind, "bytes": n}, id=f"{kind}-{n}") for kind in AT_ONCE for n in (1, 2000)]


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
@pytest.mark.parametrize("options", GATHERED)
def test_buckets_gathered_at_once_have_the_same_batches(options: dict, drop_last: bool, monkeypatch):
    options = dict(options)
    set_chunk_bytes(monkeypatch, options.pop("bytes", 2**22))
    samples = of_lengths()
    order = Order(LENGTH, 8, 3, drop_last=drop_last, lengths=samples.lengths, buckets=4)
    want = [batch for epoch in range(3) for batch in order.epoch(epoch).batches()]
    loader = started(samples, options, size=8, drop_last=drop_last, buckets=4)
    assert loader.num_shapes == len(order.edges) == 4
    got = batches(loader, len(want))
    loader.close()
    assert [batch["i"].tolist() for batch in got] == [index.tolist() for index, _ in want]
    assert [batch["x"].shape[1] for batch in got] == [length for _, length in want]
    for batch in got:
        there = torch.arange(batch["x"].shape[1]) < batch["count"][:, None]
        assert torch.equal(batch["x"], batch["i"][:, None] * there)


def test_a_row_function_is_told_the_length():
    def row(i: int, length: int) -> dict:
        return {"i": i, "length": length}

    samples = of_lengths(row=row)
    loader = started(samples, {"kind": "rows"}, size=8, buckets=4)
    order = Order(LENGTH, 8, 3, lengths=samples.lengths, buckets=4).epoch(0)
    for batch, (index, length) in zip(batches(loader, len(order.sizes)), order.batches(), strict=True):
        assert batch["i"].tolist() == index.tolist()
        assert set(batch["length"].tolist()) == {length}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_samples_of_no_length_may_have_a_bucket_of_their_own(kind: str):
    count = torch.tensor([0, 6] * 8)
    samples = Samples(
        tensors={"x": torch.zeros(16, 6), "count": count}, length=16, gather=padded, lengths=count
    )
    loader = started(samples, {"kind": kind}, size=4, buckets=2)
    got = batches(loader, 4)
    loader.close()
    assert all(batch["x"].shape[1] >= batch["count"].max() for batch in got)


# -- sources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subset", [None, torch.arange(LENGTH) * 2 + 5], ids=["all", "subset"])
def test_a_source_is_read_by_index(subset):
    many = torch.arange(LENGTH if subset is None else 300)
    source = Table({"i": many})
    assert isinstance(source, Source)
    samples = Samples.of(source, subset)
    assert (samples.length, samples.on_host, samples.nbytes) == (LENGTH, True, 0)
    picked = torch.arange(LENGTH) if subset is None else subset
    assert BatchReader(samples, CPU)(torch.tensor([4, 1]), 0)["i"].tolist() == picked[[4, 1]].tolist()


def test_what_is_no_source():
    assert not isinstance(SAMPLES, Source)
    assert not isinstance([1, 2], Source)


# -- several batches at once ----------------------------------------------------------------------------


def counting(samples: Samples) -> tuple[Samples, list[int]]:
    """The same samples, and a list of how many were gathered at each call."""
    seen: list[int] = []
    gather = samples.gather

    def spy(tensors, index, **more):
        seen.append(len(index))
        return gather(tensors, index, **more)

    return dataclasses.replace(samples, gather=spy), seen


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
@pytest.mark.parametrize(("limit", "period"), [(1, 1), (3 * SIZE_BYTES, 3), (2**20, None)])
@pytest.mark.parametrize("kind", AT_ONCE)
def test_batches_gathered_at_once_are_the_same(kind: str, limit: int, period, drop_last: bool, monkeypatch):
    set_chunk_bytes(monkeypatch, limit)
    samples, seen = counting(SAMPLES)
    whole = 6 if kind == "resident" else 8
    loader = started(samples, {"kind": kind}, drop_last=drop_last)
    assert loader.period_steps == (period or whole)
    want = expected(3, 20, 3, drop_last)
    got = batches(loader, len(want))
    loader.close()
    assert [batch["i"].tolist() for batch in got] == want
    assert all(torch.equal(batch["x"], batch["i"] * 0.5) for batch in got)
    # One sample was read to learn its size; never more at once than fit.
    assert seen[0] == 1
    in_epoch = 100 if drop_last else LENGTH
    assert max(seen[1:]) == (min(20 * period, in_epoch) if period else in_epoch)


def test_a_chunk_is_measured_by_its_longest_batches(monkeypatch):
    # 8 samples of (12 + 1 + 1) * 8 bytes at most.
    set_chunk_bytes(monkeypatch, 3 * 8 * 14 * 8)
    for kind in AT_ONCE:
        samples, seen = counting(of_lengths())
        loader = started(samples, {"kind": kind}, size=8, buckets=4)
        assert loader.period_steps == 3
        batches(loader, 30)
        loader.close()
        assert set(seen[1:]) <= {8, 16, 24}


@pytest.mark.parametrize(("num_threads", "cores", "is_ahead"), [(1, 2, True), (2, 2, False), (1, 1, False)])
def test_a_core_that_no_step_uses_gathers_the_next_batches(
    num_threads: int, cores: int, is_ahead: bool, monkeypatch
):
    monkeypatch.setattr(resident.torch, "get_num_threads", lambda: num_threads)
    monkeypatch.setattr(resident, "usable_cpus", lambda: cores)
    gatherers = []

    def spy(tensors, index):
        gatherers.append(threading.current_thread().name)
        return take(tensors, index)

    loader = started(dataclasses.replace(SAMPLES, gather=spy), {"kind": "resident"})
    want = expected(3, 20, 3, drop_last=True)
    assert [batch["i"].tolist() for batch in batches(loader, len(want))] == want
    assert {name.startswith("ahead") for name in gatherers[1:]} == {is_ahead}
    loader.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_what_a_gatherer_ahead_raises_is_raised(monkeypatch):
    monkeypatch.setattr(resident.torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(resident, "usable_cpus", lambda: 2)

    def fails(tensors, index):
        if len(index) > 1:
            raise OSError("no such disk")
        return take(tensors, index)

    loader = started(dataclasses.replace(SAMPLES, gather=fails), {"kind": "resident"})
    with pytest.raises(OSError, match="no such disk"):
        loader.next()
    loader.close()


def test_indices_alone_are_handed_over_where_the_step_gathers():
    samples, seen = counting(SAMPLES)
    loader = started(samples, {"kind": "resident", "index_only": True})
    batch, size, length = loader.next()
    assert (list(batch), size, length) == ([INDEX], 20, 0)
    assert seen == []
    assert loader.materialise(batch, 0)["i"].tolist() == batch[INDEX].tolist()
    assert seen == [20]


# -- ends -----------------------------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stream"]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", ["rows", "workers"])
def test_a_closed_loader_has_no_workers_and_no_batches(kind: str, persistent: bool, monkeypatch):
    made = []
    make = torch.multiprocessing.get_context().Process

    def spy(*args, **more):
        made.append(make(*args, **more))
        return made[-1]

    monkeypatch.setattr("torch.multiprocessing.Process", spy)
    loader = started(SAMPLES, {"kind": kind, "num_workers": 2, "persistent_workers": persistent})
    loader.next()
    assert len(made) == 2
    assert all(worker.is_alive() for worker in made)
    loader.close()
    assert not any(worker.is_alive() for worker in made)
    with pytest.raises(StopIteration):
        loader.next()


def test_a_closed_stream_has_no_thread_though_its_queue_was_full(monkeypatch):
    set_chunk_bytes(monkeypatch, 1)
    loader = started(SAMPLES, {"kind": "stream"})
    (thread,) = threads()
    deadline = time.monotonic() + 10
    while not loader._queue.full() and time.monotonic() < deadline:
        time.sleep(0.001)
    # A moment more, in which the thread waits with the chunk that no longer fits.
    time.sleep(0.05)
    assert loader._queue.full()
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5
    assert not thread.is_alive()
    assert threads() == []
    with pytest.raises(StopIteration):
        loader.next()


def test_what_a_stream_cannot_gather_is_raised_in_its_place(monkeypatch):
    set_chunk_bytes(monkeypatch, 1)
    calls = 0

    def gather(tensors, index):
        nonlocal calls
        calls += 1
        if calls == 4:  # one sample, two batches
            raise OSError("the disk is gone")
        return take(tensors, index)

    loader = started(dataclasses.replace(SAMPLES, gather=gather), {"kind": "stream"})
    want = expected(3, 20, 1, True)
    assert [batch["i"].tolist() for batch in batches(loader, 2)] == want[:2]
    with pytest.raises(OSError, match="the disk is gone"):
        loader.next()
    loader.close()
    assert threads() == []


def test_what_a_stream_cannot_gather_at_first_is_raised_by_start():
    def gather(tensors, index):
        if len(index) > 1:
            raise OSError("the disk is gone")
        return take(tensors, index)

    loader = make_loader(dataclasses.replace(SAMPLES, gather=gather), LoaderConfig(kind="stream"), 20, 0, CPU)
    with pytest.raises(OSError, match="the disk is gone"):
        loader.start()
    loader.close()
    assert threads() == []


# -- what gathers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 10])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bfloat16])
def test_windows_are_slices(length: int, width: int, dtype: torch.dtype):
    series = torch.arange(10 * width).view(10, width).to(dtype)
    start = torch.tensor([10 - length, 0, 0, (10 - length) // 2])
    got = take_windows(series, start, length)
    assert torch.equal(got, torch.stack([series[s : s + length] for s in start.tolist()]))
    got.zero_()
    assert series.float().sum() > 0


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(9,), (9, 3), (9, 2, 2)])
def test_rows_are_taken_by_index(shape: tuple[int, ...], dtype: torch.dtype, num_threads: int):
    torch.set_num_threads(num_threads)
    try:
        tensor = torch.arange(9 * 4)[: torch.Size(shape).numel()].view(shape).to(dtype)
        # A view of every other column is not contiguous.
        for source in (tensor, tensor.repeat_interleave(2, -1)[..., ::2] if len(shape) > 1 else tensor):
            index = torch.tensor([8, 0, 0, 3])
            got = take({"a": source}, index)["a"]
            assert got.dtype == dtype
            assert torch.equal(got, source[index])
            assert torch.equal(take({"a": source}, index[:0])["a"], source[:0])
    finally:
        torch.set_num_threads(1)
