"""Reads the states of all random generators that reading a row could draw from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

DRAWS = "reading a row draws from a random generator"
"""Why rows are not read in another way."""
MAX_DEPTH = 6
MAX_OBJECTS = 10_000


def states(*owners: Any) -> list[bytes]:
    """Returns the states of torch's, numpy's and Python's own generators, and of those that `owners` hold."""
    return [*states_of_all(), *states_held(*owners)]


def states_of_all() -> list[bytes]:
    """Returns the states of torch's, numpy's and Python's own generators."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    global_states = [
        torch.get_rng_state().numpy().tobytes() if numpy else bytes(torch.get_rng_state().tolist())
    ]
    global_states.append(repr(random.getstate()).encode())
    if numpy is not None and hasattr(numpy, "random"):
        global_states.append(
            repr(numpy.random.get_state(legacy=True)[1:]).encode() + _bytes(numpy.random.get_state()[1])
        )
    return global_states


def states_held(*owners: Any) -> list[bytes]:
    """Returns the states of the generators that `owners` hold."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return [_state(generator, numpy, torch) for generator in _generators_of(owners, numpy, torch)]


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


def _generators_of(owners: tuple[Any, ...], numpy: Any, torch: Any) -> Iterator[Any]:
    kinds = _kinds(numpy, torch)
    seen: set[int] = set()
    waiting = [(owner, 0) for owner in owners]
    while waiting and len(seen) < MAX_OBJECTS:
        value, depth = waiting.pop()
        if id(value) in seen or depth > MAX_DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, kinds):
            yield value
            continue
        inner: list[Any] = []
        if isinstance(value, dict):
            inner = list(value.values())[:100]
        elif isinstance(value, (list, tuple)):
            inner = list(value[:100])
        elif not isinstance(value, type):
            inner = list(getattr(value, "__dict__", {}).values())
        waiting.extend((item, depth + 1) for item in inner)
