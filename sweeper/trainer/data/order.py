"""The order of samples and their batches, the same for every loader and device.

Samples of varying length are drawn from buckets, each padded to one static length:

    epoch's order   7 2 9 4 1 8 3 ...      lengths  5 9 4 8 5 9 3 ...
    bucket <= 5     7 9 1 | 3 ...          a batch's place is that of its last sample
    bucket <= 9     2 4 8 | ...
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError

MAX_DISTINCT = 256


def epoch_seed(seed: int, epoch: int) -> int:
    """Returns the seed of an epoch's random numbers."""
    return seed * 1_000_003 + epoch


def epoch_order(seed: int, epoch: int, length: int) -> Tensor:
    """Returns the order (int64, shape [length]) in which `epoch` visits the samples.

    Drawn on the host, so that it is the same for every loader kind and device.
    """
    generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
    return torch.randperm(length, generator=generator)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Batches of samples, stored end to end.

    Attributes:
        index: Samples (int64) of all batches.
        sizes: Samples of each batch.
        lengths: Static length of each batch; 0 if samples have none.
    """

    index: Tensor
    sizes: list[int]
    lengths: list[int]

    def after(self, num_batches: int) -> Epoch:
        """Returns the rest of the epoch after `num_batches` batches."""
        done = sum(self.sizes[:num_batches])
        return Epoch(self.index[done:], self.sizes[num_batches:], self.lengths[num_batches:])

    def batches(self) -> Iterator[tuple[Tensor, int]]:
        """Yields each batch's samples and length."""
        at = 0
        for size, length in zip(self.sizes, self.lengths, strict=True):
            yield self.index[at : at + size], length
            at += size


class Order:
    """The batches of a training run.

    Args:
        length: Number of samples.
        lengths: Length of each sample (int64, shape [length]), or None.
        buckets: Maximum number of static lengths.
        drop_last: Whether to leave out an incomplete batch at the end of an epoch.
        share: `(rank, size)` of a group that takes batches together, each rank a part of them.
        begin: Number of batches taken before, after which training continues.

    Attributes:
        edges: The static lengths, ascending; empty if samples have none.

    Raises:
        TrialFailedError: There is not one full batch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = True,
        lengths: Tensor | None = None,
        buckets: int = 1,
        share: tuple[int, int] = (0, 1),
        begin: int = 0,
    ) -> None:
        together = batch_size * share[1]
        if drop_last and length < together:
            raise TrialFailedError(
                FailureKind.DATA_TOO_SMALL,
                f"a batch of {together} needs as many training samples, but there are only {length}",
            )
        self.length, self.batch_size, self.seed, self.drop_last = length, batch_size, seed, drop_last
        self._share, self._together, self._begin = share, together, begin
        self.edges: list[int] = []
        if lengths is not None:
            # A static length is at least 1; 0 means none.
            self.edges = bucket_edges(lengths.clamp(min=1), buckets, together)
            self._bucket = torch.bucketize(lengths, torch.tensor(self.edges))

    @property
    def num_ranks(self) -> int:
        """Number of ranks that take batches together."""
        return self._share[1]

    @property
    def num_shapes(self) -> int:
        """Number of static shapes of full batches."""
        return max(1, len(self.edges))

    @functools.cached_property
    def num_batches(self) -> int:
        """Batches in an epoch; each epoch has the same number of samples per bucket."""
        return len(self._whole_epoch(0).sizes)

    @property
    def first_epoch(self) -> int:
        """The epoch in which training starts."""
        return self._begin // self.num_batches if self._begin else 0

    def epoch(self, number: int) -> Epoch:
        """Returns the batches of epoch `number`, counted from the one in which training starts."""
        if not self._begin:
            return self._whole_epoch(number)
        epoch = self._whole_epoch(self.first_epoch + number)
        return epoch if number else epoch.after(self._begin % self.num_batches)

    def _whole_epoch(self, number: int) -> Epoch:
        epoch = self._make_epoch(epoch_order(self.seed, number, self.length), self.drop_last)
        rank, size = self._share
        if size == 1:
            return epoch
        index = epoch.index.view(-1, size, self.batch_size)[:, rank].reshape(-1)
        return Epoch(index, [self.batch_size] * len(epoch.sizes), epoch.lengths)

    def first_samples(self, num_samples: int) -> Epoch:
        """Returns exactly the first `num_samples` samples in batches, whatever the batch size.

        The order continues across epochs without dropping anything, so that the n-th sample is the
        same for every batch size; the last batch (of each length) may be smaller.
        """
        epochs = -(-num_samples // self.length)
        order = torch.cat([epoch_order(self.seed, epoch, self.length) for epoch in range(epochs)])
        return self._make_epoch(order[:num_samples], drop_last=False)

    def _make_epoch(self, order: Tensor, drop_last: bool) -> Epoch:
        size = self._together
        if not self.edges:
            whole = len(order) // size
            sizes = [size] * whole
            if not drop_last and len(order) % size:
                sizes.append(len(order) % size)
            return Epoch(order[: sum(sizes)], sizes, [0] * len(sizes))
        which = self._bucket[order]
        batches: list[tuple[bool, int, Tensor, int]] = []
        for bucket, edge in enumerate(self.edges):
            for places in torch.nonzero(which == bucket).squeeze(1).split(size):
                short = len(places) < size
                # split() of nothing yields one empty piece.
                if len(places) and not (short and drop_last):
                    batches.append((short, int(places[-1]), order[places], edge))
        batches.sort(key=lambda batch: batch[:2])
        return Epoch(
            torch.cat([index for _, _, index, _ in batches]) if batches else order[:0],
            [len(index) for _, _, index, _ in batches],
            [edge for _, _, _, edge in batches],
        )


def bucket_edges(lengths: Tensor, buckets: int, min_samples: int) -> list[int]:
    """Returns at most `buckets` lengths to pad to, which minimise padding over all samples.

    Solved exactly by dynamic programming over the distinct lengths (rounded up, so that there are
    about 256 at most). No bucket has fewer than `min_samples` samples, which would never fill a batch.
    """
    coarse = max(1, -(-int(lengths.max()) // MAX_DISTINCT))
    values, counts = torch.unique(lengths.div(coarse, rounding_mode="floor"), return_counts=True)
    # The longest length in each group, not the group's upper bound: the last edge is the data's maximum.
    longest = torch.zeros(int(values.max()) + 1, dtype=torch.int64)
    longest.scatter_reduce_(0, lengths.div(coarse, rounding_mode="floor"), lengths, "amax")
    ends = longest[values].double()
    below = torch.cat((torch.zeros(1), counts.cumsum(0))).double()
    held = below[None, 1:] - below[:-1, None]
    allowed = (held >= min_samples) & torch.ones_like(held, dtype=torch.bool).triu()
    cost = torch.where(allowed, held * ends[None, :], torch.inf)
    # best[j]: least padded length of the first j lengths; cuts[k][j]: where its last bucket starts.
    best = torch.full((len(ends) + 1,), torch.inf, dtype=torch.float64)
    best[0] = 0.0
    totals: list[float] = []
    cuts: list[Tensor] = []
    for _ in range(min(buckets, len(ends))):
        total, cut = (best[:-1, None] + cost).min(0)
        best[0], best[1:] = torch.inf, total
        totals.append(float(total[-1]))
        cuts.append(cut)
    count = totals.index(min(totals)) + 1
    if totals[count - 1] == torch.inf:
        return [int(lengths.max())]
    edges, j = [], len(ends)
    for cut in reversed(cuts[:count]):
        edges.append(int(ends[j - 1]))
        j = int(cut[j - 1])
    return edges[::-1]
