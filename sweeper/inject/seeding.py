"""Makes two runs of a script comparable: seeds at its start, and passes over its loaders cut short."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from .points import Points

MAX_LEFT_OUT = 1_000_000
"""Batches of a pass that are left out at most: a sampler may never end."""

MIN_BATCHES = 2
"""Of a pass, however large they are."""

_CUT = "_sweeper_cut"
"""Attribute of a loader's iterator: the pass that is cut, its batches so far, all that it has, and how many
it is left."""


def seed(torch: Any, number: int, shift: int, *, deterministic: bool = False) -> None:
    """Seeds the generators of torch, numpy and Python.

    Args:
        number: The seed.
        shift: Is added to it, and to each seed that the script sets itself.
        deterministic: Whether torch is asked for its deterministic algorithms.
    """
    if shift:
        for owner, name in _seeders(torch):
            setattr(owner, name, _shifted(getattr(owner, name), shift))
    for owner, name in _seeders(torch):
        getattr(owner, name)(number)
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False


def _seeders(torch: Any) -> list[tuple[Any, str]]:
    found = [(torch, "manual_seed"), (random, "seed")]
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        found.append((numpy.random, "seed"))
    return found


def _shifted(original: Callable[..., Any], shift: int) -> Callable[..., Any]:
    def seed(number: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(number, int):
            number = (number + shift) % 2**32
        return original(number, *args, **kwargs)

    return seed


def cut_passes(torch: Any, points: Points, num_batches: int) -> None:
    """Leaves a pass over a loader its first batches and its last.

    The sampler is asked for all of them, so that every later pass has the order that it would have had.

    Args:
        num_batches: As many of the loader that is used first; of one with larger batches, about as many rows.
    """
    loaders = torch.utils.data.dataloader
    stream = loaders._DatasetKind.Iterable
    first_size = 0

    def limit(iterator: Any) -> int:
        nonlocal first_size
        size = getattr(iterator._index_sampler, "batch_size", None)
        if not isinstance(size, int) or size < 1:
            return num_batches
        first_size = first_size or size
        return min(num_batches, max(MIN_BATCHES, num_batches * first_size // size))

    def cut(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_index(iterator: Any) -> Any:
            sampler = iterator._sampler_iter
            state = getattr(iterator, _CUT, None)
            if state is None or state[0] is not sampler:
                state = [sampler, 0, 0, limit(iterator)]
                setattr(iterator, _CUT, state)
            if state[1] >= state[3]:
                raise StopIteration
            found = original(iterator)
            state[1] += 1
            state[2] += 1
            if state[1] == state[3] and iterator._dataset_kind != stream:
                for _ in range(MAX_LEFT_OUT):
                    try:
                        found = original(iterator)
                    except StopIteration:
                        break
                    state[2] += 1
            return found

        return next_index

    points.replace(loaders._BaseDataLoaderIter, "_next_index", cut)


def whole_pass(iterator: Any) -> int:
    """Returns how many batches a pass has without the cut, as far as its sampler was asked."""
    state = getattr(iterator, _CUT, None)
    return state[2] if state is not None else 0
