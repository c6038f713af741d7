"""Has a test that measures run last, and while no other does, of this run or of another of this user."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_BASE = Path(tempfile.gettempdir()) / f"sweeper-tests-{os.getuid()}"
GATE, ROOM = (_BASE.with_suffix(suffix) for suffix in (".gate", ".room"))


@contextlib.contextmanager
def turn(*, is_alone: bool) -> Iterator[None]:
    """Waits until a test may run, and holds that until it has run."""
    # Whoever waits for the room to be empty holds the gate, so that nobody else enters.
    with GATE.open("ab") as gate, ROOM.open("ab") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Processes that were forked have the descriptor as well: closing it is not enough.
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has tests that run alone come last: each would keep the others waiting for those that still run."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives all tests that run alone to one process; of all others, those of a file."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class AloneApart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, name = nodeid.partition("::")
            is_alone = name.partition("[")[0] in _alone_in(config.rootpath / path)
            return "alone" if is_alone else super()._split_scope(nodeid)

    return AloneApart(config, log)


@functools.cache
def _alone_in(path: Path) -> frozenset[str]:
    """Returns the names of the tests in a file that run alone; who shares tests out has no marks."""
    return frozenset(
        node.name
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "pytest.mark.alone" for decorator in node.decorator_list)
    )
