"""What holds for every test: its folder is in memory, and services are made when they are first asked for."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["leftovers", "services.slurm", "services.postgres", "services.mlflow_server"]

# Test processes share the cores, and threads of one that wait by spinning would keep the others from theirs.
# It is read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Puts the tests' folders where an fsync costs nothing, if there is room and programs may run there.

    A TMPDIR of the user's own is where they are otherwise.
    """
    if "TMPDIR" not in os.environ and _serves(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _serves(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    has_room = found.f_bavail * found.f_frsize >= ROOM_BYTES
    return has_room and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)


SCRIPTS = {"inject", "interventions", "judging", "patching", "scaffold", "script", "tuning", "untouched"}
"""Folders of tests that run scripts. In shared memory, where every script may write, none is guarded."""


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; on a disk if it may run scripts."""
    if SCRIPTS.isdisjoint(request.path.parts) or not tmp_path.is_relative_to(MEMORY):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="sweeper-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def pytest_collection_finish() -> None:
    """Has the garbage collector pass over what is there by now, a million objects that stay to the end."""
    gc.collect()
    gc.freeze()
