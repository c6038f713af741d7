"""What every launcher does, of those that run on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launch.every_launcher import EveryLauncher
from launch.quick_node import QUICK

from sweeper.launch.inline import InlineLauncher
from sweeper.launch.launcher import Launcher
from sweeper.launch.local import LocalLauncher


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    """One for all tests, whose last one closes it; none of the jobs needs torch."""
    launcher = QUICK(tmp_path_factory.mktemp("home"), capacity=3)
    yield launcher
    launcher.close()


class TestInlineLauncher(EveryLauncher):
    CANCELS = False

    @pytest.fixture
    def launcher(self) -> Launcher:
        return InlineLauncher()


class TestLocalLauncher(EveryLauncher):
    @pytest.fixture
    def launcher(self, server: LocalLauncher) -> Launcher:
        return server
