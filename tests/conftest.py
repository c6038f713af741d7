"""What holds for every test: its environment is the tests' own, its folder is in memory.

Services are made when they are first asked for.
"""

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

pytest_plugins = ["turns", "leftovers", "services.slurm", "services.postgres", "services.mlflow_server"]

REPOSITORY = str(Path(__file__).parents[1])
KEPT = (
    # Where things are on this machine.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "CC", "CXX"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "CUDA_HOME"),
    # Where pip finds packages.
    *("PIP_*", "SSL_CERT_*"),
    # Which of its GPUs are the caller's.
    *(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if Path("/proc/driver/nvidia").exists() else ()),
    # On some processors OpenBLAS is wrong about what it runs on.
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    # For the tests themselves; SWEEPER_TESTS is guard.py's.
    *("CI", "TORCH", "CHAOS_*", "PYTEST_*", "SWEEPER_TESTS"),
)
"""What the tests see of their caller's variables. They set what else they need."""


def _make_own_environment() -> None:
    """Leaves of the caller's variables those that say where things are, before torch reads any."""
    # What is tested may have been named by its folder.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path == REPOSITORY]
    for name in [name for name in os.environ if not any(fnmatchcase(name, kept) for kept in KEPT)]:
        del os.environ[name]
    if paths:
        os.environ["PYTHONPATH"] = REPOSITORY
    # Test processes share the cores: threads that wait by spinning would keep the others from theirs.
    os.environ.update(GOMP_SPINCOUNT="1000", LANG="C.UTF-8", TERM="xterm", NETRC=os.devnull)
    # PYTHONWARNINGS, which processes inherit from here, too.
    del warnings.filters[: len(sys.warnoptions)]
    sys.warnoptions.clear()


_make_own_environment()

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


SCRIPTS = {"judging", "scaffold", "script", "tuning", "untouched"}
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
