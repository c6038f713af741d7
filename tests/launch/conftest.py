"""Real launchers with real servers; every process they start is looked for by its mark afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import parts
import pytest
from launch.quick_node import QUICK

from sweeper.launch.local import LocalLauncher, leftovers


@pytest.fixture(autouse=True, scope="package")
def parts_in_trials() -> Iterator[None]:
    """Has the trials of this folder's servers find the runners in `parts`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", parts.FOLDER, prepend=os.pathsep)
        yield


def wait_for(holds: Callable[[], object], seconds: float = 30.0) -> bool:
    """Waits until `holds()` is true; the bound is generous, the machine may be busy."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., bool]:
    return wait_for


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", params=["fork", pytest.param("exec", marks=pytest.mark.slow)])
def shared(request: pytest.FixtureRequest, server_home: Path) -> Iterator[LocalLauncher]:
    """One launcher for the tests of a module that leave its server alone; by both isolations."""
    launcher = LocalLauncher(server_home, capacity=2, isolation=request.param)
    yield launcher
    launcher.close()
    assert leftovers(server_home) == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalLauncher]:
    """A launcher whose server the test may kill; it imports no torch, which none of the jobs needs."""
    launcher = QUICK(tmp_path, capacity=2)
    yield launcher
    launcher.close()
    assert wait_for(lambda: leftovers(tmp_path) == [])
