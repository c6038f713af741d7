"""Every launcher through the one suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from execution.quick_node import QUICK

from sweeper.execution.inline import InlineLauncher
from sweeper.execution.launcher import Launcher
from sweeper.execution.local import LocalLauncher
from sweeper.testing.conformance import LauncherConformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    """One for the whole suite, whose last test closes it; none of the jobs needs torch."""
    launcher = QUICK(tmp_path_factory.mktemp("home"), capacity=3)
    yield launcher
    launcher.close()


class TestInlineLauncher(LauncherConformance):
    @pytest.fixture
    def cancels(self) -> bool:
        return False

    @pytest.fixture
    def launcher(self) -> Launcher:
        return InlineLauncher()


class TestLocalLauncher(LauncherConformance):
    @pytest.fixture
    def launcher(self, server: LocalLauncher) -> Launcher:
        return server
