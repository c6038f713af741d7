"""Has a node's servers import nothing: for trials that need no torch. Dask workers of tests preload it."""

from __future__ import annotations

import functools

from sweeper.launch import node
from sweeper.launch.local import LocalLauncher

QUICK = functools.partial(
    LocalLauncher, program=("-c", "from sweeper.launch.server import main; main(lambda: None)")
)


def dask_setup(worker: object) -> None:
    """Called by a Dask worker that starts with `--preload`."""
    node.LocalLauncher = QUICK  # type: ignore[assignment,misc]
