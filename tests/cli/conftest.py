"""The command line as a person meets it: a process of its own; and a home with a finished sweep in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from replays import PIPELINE, Bench

from sweeper.cli import main

REPOSITORY = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sweeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `sweeper ARGUMENTS` in a folder of its own, with this repository's package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPER_HOME", raising=False)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"}

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sweeper", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout,
        )

    return run


@pytest.fixture
def in_process(sweeper: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs it in this process, a second faster: for what ends before anything is started."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(arguments, ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sweep `toy`, finished; read only, please."""
    folder = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("toy_pipeline.py").write_text(PIPELINE)
        Bench(folder / "home").run()
    finally:
        os.chdir(before)
    return folder / "home"


@pytest.fixture(scope="session")
def once_synced(finished_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sweeper.cli.sync import sync_command

    home = Path(shutil.copytree(finished_home, tmp_path_factory.mktemp("synced") / "home"))
    assert sync_command(home, None, None, verify=False, as_json=True) == 0
    return home


@pytest.fixture
def synced(once_synced: Path, tmp_path: Path) -> Path:
    """A copy of a home that MLflow has all of; its artifacts' places are mended when it is looked at."""
    return Path(shutil.copytree(once_synced, tmp_path / "synced"))
