"""Commands as people type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.script.run.command_line import as_typed, without_search_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "train.py", "--x", "1"], ["python", "train.py", "--x", "1"]),
        (["python train.py --name 'a b'"], ["python", "train.py", "--name", "a b"]),
        (["A=0", "B=", "python", "train.py"], ["env", "A=0", "B=", "python", "train.py"]),
        (["A=0 python train.py"], ["env", "A=0", "python", "train.py"]),
        (["train.py", "lr=0.1"], ["python", "train.py", "lr=0.1"]),
        (["A=0", "train.py"], ["env", "A=0", "python", "train.py"]),
        (["A=0"], ["A=0"]),
    ],
)
def test_what_is_meant_is_understood(
    words: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert as_typed(words) == expected


def test_a_script_that_can_be_run_needs_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch(0o755)
    assert as_typed(["./train.py"]) == ["./train.py"]


def test_a_program_with_a_space_in_its_name_is_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("my program").touch(0o755)
    assert as_typed(["my program"]) == ["my program"]


def test_quotes_must_match():
    with pytest.raises(UserError, match="Fix its quotes"):
        as_typed(["python 'train.py"])


@pytest.mark.parametrize(
    ("words", "expected", "path"),
    [
        (["env", "PYTHONPATH=lib:", "A=0", "python", "t.py"], ["env", "A=0", "python", "t.py"], "lib:"),
        (["env", "PYTHONPATH=", "python", "t.py"], ["python", "t.py"], ""),
        (["env", "A=0", "python", "t.py", "PYTHONPATH=x"], None, None),
        (["python", "t.py"], None, None),
        (["env"], None, None),
    ],
)
def test_a_search_path_goes_into_the_environment(
    words: list[str], expected: list[str] | None, path: str | None
):
    assert without_search_path(words) == (words if expected is None else expected, path)


def test_the_commands_take_it(tmp_path: Path):
    (tmp_path / "train.py").write_text("import os, sys; sys.exit(f'{os.environ[\"A\"]} {sys.argv[1:]}')")
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "watch", "--", "A=7 train.py --x 1"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert "7 ['--x', '1']" in done.stdout, done.stdout + done.stderr


def test_a_search_path_in_the_command_does_not_hide_the_hook(tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("NAME = 'helped'\n")
    text = "import os, sys, helper; sys.exit(f'{helper.NAME} {sys.modules[\"sitecustomize\"].__file__}')"
    (tmp_path / "train.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "watch", "--", "PYTHONPATH=lib", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert re.search(r"helped .*sweeper/script/inside/site", done.stdout), done.stdout + done.stderr
