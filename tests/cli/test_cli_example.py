"""The training of `tune --example`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweeper.cli.app import app
from sweeper.errors import UserError
from sweeper.scaffold.example import FOLDER, TRAINING, write_example


def test_it_is_written_once_into_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    path = write_example(folder)
    assert path.read_text() == TRAINING
    (folder / "mlruns").mkdir()
    # The same command continues.
    assert write_example(folder) == path


@pytest.mark.parametrize("name", ["train.py", "notes.txt"])
def test_nothing_of_the_users_is_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UserError, match="`--example` needs an empty folder"):
        write_example(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("sweeper.scaffold.example.make_folder", refuse)
    folder = tmp_path / FOLDER
    with pytest.raises(UserError, match=f"writes into '{folder}': Read-only file system\\. Run it in a"):
        write_example(folder)


@pytest.mark.parametrize("words", [["--minutes", "1"], ["--minutes", "1", "--"]], ids=["bare", "--"])
def test_options_behind_a_script_are_its_own(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    heard: list[tuple[list[str], dict[str, Any]]] = []

    def of(command: list[str], **options: Any) -> None:
        heard.append((command, options))
        raise UserError("heard")

    monkeypatch.setattr("sweeper.tuning.options.TuneOptions.of", of)
    CliRunner().invoke(app, ["tune", *words, "no-such-python", "t.py", "--epochs", "3", "--name", "mine"])
    ((command, options),) = heard
    assert command == ["no-such-python", "t.py", "--epochs", "3", "--name", "mine"]
    assert (options["minutes"], options["epochs"], options["name"]) == (1.0, None, None)


def test_it_trains(tmp_path: Path) -> None:
    short = TRAINING.replace("60_000", "640").replace("range(20)", "range(2)")
    done = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--example", "--", "python", "train.py"], "brings its command"),
        ([], "the command of the script is missing"),
    ],
)
def test_a_command_is_needed_unless_it_is_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    done = CliRunner().invoke(app, ["tune", *words])
    assert isinstance(done.exception, UserError)
    assert why in str(done.exception)
    assert not (tmp_path / FOLDER).exists()
