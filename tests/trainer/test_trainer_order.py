"""Which samples make up which batch, and the static lengths they are padded to."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data.order import MAX_DISTINCT, Order, bucket_edges, epoch_order

NUM = 301


def drawn(seed: int, num: int, longest: int) -> torch.Tensor:
    """Lengths of which short ones are the most."""
    generator = torch.Generator().manual_seed(seed)
    return (1 + (longest - 1) * torch.rand(num, generator=generator) ** 3).round().long()


LENGTHS = drawn(0, NUM, 40)


def in_words(order: list[int], edges: list[int], size: int, drop_last: bool) -> list[tuple[list[int], int]]:
    """The batches of `order` by their definition, one sample after the other."""
    found = []
    filling: dict[int, list[int]] = {}
    for i in order:
        edge = next(edge for edge in edges if LENGTHS[i] <= edge)
        filling.setdefault(edge, []).append(i)
        if len(filling[edge]) == size:
            found.append((filling.pop(edge), edge))
    if not drop_last:
        found += sorted(((b, e) for e, b in filling.items()), key=lambda batch: order.index(batch[0][-1]))
    return found


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
@pytest.mark.parametrize("buckets", [1, 2, 5, 64])
@pytest.mark.parametrize("size", [1, 7, 32, 301])
def test_an_epoch_in_buckets_is_the_one_defined(size: int, buckets: int, drop_last: bool):
    order = Order(NUM, size, 3, drop_last=drop_last, lengths=LENGTHS, buckets=buckets)
    assert 1 <= len(order.edges) == order.num_shapes <= buckets
    assert order.edges == sorted(set(order.edges))
    for number in (0, 1):
        epoch = order.epoch(number)
        drawn_order = epoch_order(3, number, NUM).tolist()
        got = [(index.tolist(), length) for index, length in epoch.batches()]
        assert got == in_words(drawn_order, order.edges, size, drop_last)
        # What follows from the definition, said apart from it.
        visited = Counter(epoch.index.tolist())
        assert set(visited.values()) == {1}
        held = Counter(next(edge for edge in order.edges if length <= edge) for length in LENGTHS.tolist())
        dropped = sum(count % size for count in held.values()) if drop_last else 0
        assert len(visited) == NUM - dropped
        assert min(held.values()) >= size
        if drop_last:
            assert set(epoch.sizes) == {size}
        place = {i: at for at, i in enumerate(drawn_order)}
        whole = [place[index[-1]] for index, _ in got if len(index) == size]
        assert whole == sorted(whole)
        assert all(LENGTHS[index].max() <= length for index, length in got)


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "ragged"])
@pytest.mark.parametrize("size", [1, 7, 20, 103])
def test_an_epoch_without_lengths_is_cut_as_it_comes(size: int, drop_last: bool):
    order = Order(103, size, 5, drop_last=drop_last)
    want = [part.tolist() for part in epoch_order(5, 2, 103).split(size)]
    epoch = order.epoch(2)
    got = [(index.tolist(), length) for index, length in epoch.batches()]
    assert got == [(index, 0) for index in want if len(index) == size or not drop_last]
    assert (order.edges, order.num_shapes) == ([], 1)


def test_a_whole_batch_is_asked_for_only_where_the_rest_is_dropped():
    with pytest.raises(TrialFailedError, match="a batch of 302 needs as many training samples") as caught:
        Order(NUM, NUM + 1, 0, lengths=LENGTHS, buckets=3)
    assert caught.value.kind == "data_too_small"
    ragged = Order(NUM, NUM + 1, 0, drop_last=False, lengths=LENGTHS, buckets=3)
    assert ragged.edges == [40]
    assert ragged.epoch(0).sizes == [NUM]


@pytest.mark.parametrize("buckets", [None, 1, 4])
@pytest.mark.parametrize("size", [1, 7, 20])
def test_those_who_share_take_a_larger_batch_together(size: int, buckets: int | None):
    lengths = {} if buckets is None else {"lengths": LENGTHS, "buckets": buckets}
    whole = Order(NUM, 3 * size, 5, **lengths)
    shares = [Order(NUM, size, 5, share=(rank, 3), **lengths) for rank in range(3)]
    assert {tuple(order.edges) for order in (whole, *shares)} == {tuple(whole.edges)}
    for number in (0, 1):
        together = [list(order.epoch(number).batches()) for order in shares]
        want = list(whole.epoch(number).batches())
        assert [len(batches) for batches in together] == [len(want)] * 3
        for (index, length), *parts in zip(want, *together, strict=True):
            assert torch.equal(torch.cat([part for part, _ in parts]), index)
            assert {length_ for _, length_ in parts} == {length}
    with pytest.raises(TrialFailedError, match="a batch of 306 needs as many training samples"):
        Order(NUM, 102, 0, share=(1, 3), **lengths)


@pytest.mark.parametrize("buckets", [None, 1, 4])
@pytest.mark.parametrize("num_samples", [1, 20, 301, 750])
@pytest.mark.parametrize("size", [1, 7, 20, 400])
def test_the_first_samples_are_the_same_for_every_batch_size(
    size: int, num_samples: int, buckets: int | None
):
    lengths = {} if buckets is None else {"lengths": LENGTHS, "buckets": buckets}
    # What is dropped from an epoch is not dropped from these.
    order = Order(NUM, size, 5, drop_last=size < NUM, **lengths)
    found = order.first_samples(num_samples)
    want = torch.cat([epoch_order(5, epoch, NUM) for epoch in range(3)])[:num_samples]
    if buckets is None:
        assert torch.equal(found.index, want)
        assert set(found.sizes[:-1]) <= {size}
    assert Counter(found.index.tolist()) == Counter(want.tolist())
    assert sum(found.sizes) == num_samples
    for index, length in found.batches():
        assert len(index) <= size
        assert length in (order.edges or [0])
        if length:
            assert LENGTHS[index].max() <= length
    short = [length for size_, length in zip(found.sizes, found.lengths, strict=True) if size_ < size]
    assert len(short) == len(set(short))


# -- where to cut ---------------------------------------------------------------------------------------


def padded_total(lengths: list[int], edges: tuple[int, ...]) -> int:
    return sum(next(edge for edge in edges if length <= edge) for length in lengths)


def brute_force(lengths: list[int], buckets: int, least: int) -> tuple[int, int]:
    """The least padded total of all ways to cut, and the fewest edges that reach it."""
    *inner, last = sorted(set(lengths))
    ways = []
    for count in range(min(buckets, len(inner) + 1)):
        for some in itertools.combinations(inner, count):
            edges = (*some, last)
            held = Counter(next(edge for edge in edges if length <= edge) for length in lengths)
            if min(held.values()) >= least:
                ways.append((padded_total(lengths, edges), len(edges)))
    return min(ways, default=(last * len(lengths), 1))


@pytest.mark.parametrize("least", [1, 3, 8, 100])
@pytest.mark.parametrize("buckets", [1, 2, 3, 9])
def test_edges_pad_as_little_as_any(buckets: int, least: int):
    for seed in range(12):
        lengths = drawn(seed, 30, 4 + seed)
        edges = bucket_edges(lengths, buckets, least)
        assert edges[-1] == lengths.max()
        assert (padded_total(lengths.tolist(), tuple(edges)), len(edges)) == brute_force(
            lengths.tolist(), buckets, least
        )


@pytest.mark.parametrize("longest", [255, 256, 257, 5000, 100_003])
def test_very_many_lengths_are_rounded_and_still_covered(longest: int):
    lengths = torch.cat((drawn(1, 2000, longest), torch.tensor([longest])))
    edges = bucket_edges(lengths, 8, 50)
    assert edges[-1] == longest
    assert len(edges) == 8
    assert set(edges) <= set(lengths.tolist())
    held = torch.bucketize(lengths, torch.tensor(edges)).bincount()
    assert len(held) == 8
    assert held.min() >= 50
    # Rounding costs less than a step of it for each sample.
    total = padded_total(lengths.tolist(), tuple(edges))
    for shift in (1.0, 0.97, 1.03):
        others = sorted({*(round(edge * shift) for edge in edges[:-1]), longest})
        assert total <= padded_total(lengths.tolist(), tuple(others)) + len(lengths) * longest / MAX_DISTINCT


def test_equal_lengths_need_one_edge():
    assert bucket_edges(torch.full((10,), 7), 5, 1) == [7]
    assert bucket_edges(torch.tensor([3]), 5, 8) == [3]


@pytest.mark.parametrize("buckets", [0, 4])
@pytest.mark.parametrize(
    ("share", "drop_last"),
    [((0, 1), True), ((0, 1), False), ((1, 2), True)],
    ids=["alone", "ragged", "second of two"],
)
def test_what_begins_after_some_batches_goes_on_with_the_next(
    drop_last: bool, buckets: int, share: tuple[int, int]
):
    about = {"drop_last": drop_last, "lengths": LENGTHS if buckets else None, "buckets": buckets or 1}

    def batches(begin: int, epochs: range) -> list[tuple[list[int], int]]:
        order = Order(NUM, 20, 3, share=share, begin=begin, **about)
        return [(i.tolist(), length) for number in epochs for i, length in order.epoch(number).batches()]

    each = Order(NUM, 20, 3, share=share, **about).num_batches
    whole = batches(0, range(4))
    assert len(whole) == 4 * each
    for begin in (1, each - 1, each, each + 1, 2 * each + 5):
        order = Order(NUM, 20, 3, share=share, begin=begin, **about)
        assert (order.first_epoch, order.num_batches) == (begin // each, each)
        assert batches(begin, range(4 - begin // each)) == whole[begin:]
