"""A production run is passed what the trials were: the usual variables, and those the export names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from productions import EXPORT, export_in

from sweeper.cli.train import TrainOptions, train_command
from sweeper.production import run

NAMES = ["MYLAB_TOKEN"]


class EnoughError(Exception):
    """What was asked is known."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MYLAB_TOKEN", "AWS_SECRET_ACCESS_KEY", "CUDA_HOME"):
        monkeypatch.setenv(name, "a-long-value")
    return tmp_path


def told(printed: str) -> bool:
    line = next(line for line in printed.splitlines() if line.startswith("The run does not see "))
    return "AWS_SECRET_ACCESS_KEY" in line and "MYLAB_TOKEN" not in line


def test_a_pipeline_is(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    asked: dict[str, Any] = {}

    def launcher(home: Path, **options: Any) -> None:
        asked.update(options)
        raise EnoughError

    monkeypatch.setattr(run, "LocalLauncher", launcher)
    path = export_in(here, execution={"pass_env": NAMES})
    with pytest.raises(EnoughError):
        train_command(path, here / "home", TrainOptions(epochs=1))
    assert asked["pass_env"] == ("MYLAB_TOKEN",)
    printed = "".join(capsys.readouterr())
    assert told(printed)
    assert "a-long-value" not in printed


def test_a_command_is(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    given: dict[str, str] = {}

    def execvpe(file: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        given.update(environment)
        raise EnoughError

    monkeypatch.setattr(os, "execvpe", execvpe)
    value = {name: each for name, each in EXPORT.items() if name not in ("pipeline", "data", "config")}
    value |= {"command": ["true"], "changes": {}, "env": {"MODE": "fast"}, "files": {}, "params": {}}
    (here / "best.yaml").write_text(json.dumps({**value, "execution": {"pass_env": NAMES}}))
    with pytest.raises(EnoughError):
        train_command(here / "best.yaml", here / "home", TrainOptions())
    assert given["MYLAB_TOKEN"] == given["CUDA_HOME"] == "a-long-value"
    assert given["PATH"] == os.environ["PATH"]
    assert given["MODE"] == "fast"
    assert "AWS_SECRET_ACCESS_KEY" not in given
    assert told(capsys.readouterr().out)
