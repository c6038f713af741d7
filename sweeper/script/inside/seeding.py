"""Makes two runs of a script comparable: seeds them, and cuts the passes over their loaders short."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from .points import Points

MAX_LEFT_OUT = 100_000
"""Maximum number of batches left out of a pass. A longer one, such as that of a sampler that never ends, is
not cut: a script that never reaches its end may fail there."""

MIN_BATCHES = 2
"""Minimum number of batches in a pass, however large they are."""

_CUT = "_sweeper_cut"
"""Attribute of a loader's iterator that contains its `_CutPass`."""


class _CutPass:
    """A pass that is cut.

    Attributes:
        sampler: The sampler's iterator, which is another one in each pass.
        limit: Maximum number of batches.
        batches: Number of batches so far.
        whole: Number of batches without the cut, as far as the sampler was asked.
    """

    def __init__(self, sampler: Any, limit: float) -> None:
        self.sampler, self.limit = sampler, limit
        self.batches = self.whole = 0


def seed(torch: Any, number: int, shift: int, *, deterministic: bool = False) -> None:
    """Seeds the generators of torch, numpy and Python.

    Args:
        number: The seed.
        shift: Added to the seed, and to each seed that the script sets itself.
        deterministic: Whether torch's deterministic algorithms are requested.
    """
    if shift:
        for owner, name in _seeders(torch):
            setattr(owner, name, _shift_seeder(getattr(owner, name), shift))
    for owner, name in _seeders(torch):
        getattr(owner, name)(number)
    _seed_the_unseeded(number + shift)
    if deterministic:
        # cuBLAS reads it when it starts on a GPU.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        _hold_search_off(torch)


def _seed_the_unseeded(number: int) -> None:
    """Seeds the generators of numpy that are made without a seed, such as those of environments of gym."""
    if (generators := sys.modules.get("numpy.random.bit_generator")) is not None:
        # Where `SeedSequence` takes its entropy from.
        setattr(generators, "randbits", random.Random(number).getrandbits)  # noqa: B010


def _hold_search_off(torch: Any) -> None:
    """Turns off cuDNN's search, which takes other algorithms from run to run, whatever the script sets."""
    torch.backends.cudnn.benchmark = False
    torch._C._set_cudnn_benchmark = lambda _: None
    # `cudnn` is an instance of a subclass of ModuleType, which defines the flag as a property.
    type(torch.backends.cudnn).benchmark = property(lambda _: False, lambda *_: None)


def _seeders(torch: Any) -> list[tuple[Any, str]]:
    seeders = [(torch, "manual_seed"), (random, "seed")]
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        seeders.append((numpy.random, "seed"))
    return seeders


def _shift_seeder(original: Callable[..., Any], shift: int) -> Callable[..., Any]:
    def seed(number: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(number, int):
            number = (number + shift) % 2**32
        return original(number, *args, **kwargs)

    return seed


def cut_passes(torch: Any, points: Points, num_batches: int, is_cut: Callable[[Any], bool]) -> None:
    """Cuts each pass over a loader to its first batches and its last.

    The sampler is still asked for all batches, so that the order of every later pass stays the same.

    Args:
        num_batches: Batches per pass of the loader that is used first; other loaders have about as many rows.
        is_cut: Returns whether the passes of a loader's iterator are still cut.
    """
    loaders = torch.utils.data.dataloader
    stream = loaders._DatasetKind.Iterable
    first_size = 0

    def limit(iterator: Any) -> float:
        nonlocal first_size
        sampler = iterator._index_sampler
        if not is_cut(iterator) or _length(sampler) > MAX_LEFT_OUT:
            return math.inf
        size = getattr(sampler, "batch_size", None)
        if not isinstance(size, int) or size < 1:
            return num_batches
        first_size = first_size or size
        return min(num_batches, max(MIN_BATCHES, num_batches * first_size // size))

    def cut(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_index(iterator: Any) -> Any:
            sampler = iterator._sampler_iter
            cut_pass = getattr(iterator, _CUT, None)
            if cut_pass is None or cut_pass.sampler is not sampler:
                cut_pass = _CutPass(sampler, limit(iterator))
                setattr(iterator, _CUT, cut_pass)
            if cut_pass.batches >= cut_pass.limit and is_cut(iterator):
                raise StopIteration
            index = original(iterator)
            cut_pass.batches += 1
            cut_pass.whole += 1
            if cut_pass.batches == cut_pass.limit and is_cut(iterator) and iterator._dataset_kind != stream:
                for _ in range(MAX_LEFT_OUT):
                    try:
                        index = original(iterator)
                    except StopIteration:
                        break
                    cut_pass.whole += 1
                else:
                    cut_pass.limit = math.inf
            return index

        return next_index

    points.replace(loaders._BaseDataLoaderIter, "_next_index", cut)


def _length(sampler: Any) -> int:
    """Returns the number of a sampler's batches; 0 if it is not known."""
    try:
        return len(sampler)
    except Exception:
        # It may be the script's own, and the script would fail.
        return 0


def whole_pass(iterator: Any) -> int:
    """Returns how many batches a pass would have without the cut, as far as its sampler was asked."""
    cut_pass: _CutPass | None = getattr(iterator, _CUT, None)
    return cut_pass.whole if cut_pass is not None else 0
