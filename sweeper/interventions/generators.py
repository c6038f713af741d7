"""Reads the states of all random generators that reading a row could draw from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 6
MAX_OBJECTS = 10_000


def states(*owners: Any) -> list[bytes]:
    """Returns the states of torch's, numpy's and Python's own generators, and of those that `owners` hold."""
    return [*states_of_all(), *states_held(*owners)]


def states_of_all() -> list[bytes]:
    """Returns the states of torch's, numpy's and Python's own generators."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    found = [torch.get_rng_state().numpy().tobytes() if numpy else bytes(torch.get_rng_state().tolist())]
    found.append(repr(random.getstate()).encode())
    if numpy is not None and hasattr(numpy, "random"):
        found.append(
            repr(numpy.random.get_state(legacy=True)[1:]).encode() + _bytes(numpy.random.get_state()[1])
        )
    return found


def states_held(*owners: Any) -> list[bytes]:
    """Returns the states of the generators that `owners` hold."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return [_state(each, numpy, torch) for each in _held(owners, numpy, torch)]


def _bytes(array: Any) -> bytes:
    return bytes(array.tobytes())


def _kinds(numpy: Any, torch: Any) -> tuple[type, ...]:
    kinds = [random.Random, torch.Generator]
    if numpy is not None and hasattr(numpy, "random"):
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    return tuple(kinds)


def _state(generator: Any, numpy: Any, torch: Any) -> bytes:
    if isinstance(generator, random.Random):
        return repr(generator.getstate()).encode()
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().tolist())
    if isinstance(generator, numpy.random.Generator):
        return repr(generator.bit_generator.state).encode()
    return _bytes(generator.get_state()[1]) + repr(generator.get_state()[2:]).encode()


def _held(owners: tuple[Any, ...], numpy: Any, torch: Any) -> Iterator[Any]:
    kinds = _kinds(numpy, torch)
    seen: set[int] = set()
    waiting = [(each, 0) for each in owners]
    while waiting and len(seen) < MAX_OBJECTS:
        found, depth = waiting.pop()
        if id(found) in seen or depth > MAX_DEPTH:
            continue
        seen.add(id(found))
        if isinstance(found, kinds):
            yield found
            continue
        inner: list[Any] = []
        if isinstance(found, dict):
            inner = list(found.values())[:100]
        elif isinstance(found, (list, tuple)):
            inner = list(found[:100])
        elif not isinstance(found, type):
            inner = list(getattr(found, "__dict__", {}).values())
        waiting.extend((each, depth + 1) for each in inner)
