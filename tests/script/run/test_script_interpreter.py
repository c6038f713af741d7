"""The environment of a script whose `python` has no torch."""

from __future__ import annotations

import os
import stat
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.script.run import interpreter
from sweeper.script.run.interpreter import torch_of, with_interpreter

PREFIX = sys.prefix
TRAIN = "import torch\n"


def environment(path: Path, *, version: str = "3 11", has_torch: bool = True) -> Path:
    """Makes an environment whose programs answer as an interpreter would; returns its python."""
    (path / "bin").mkdir(parents=True)
    for name in ("python", "torchrun"):
        program = path / "bin" / name
        program.write_text(f"#!/bin/sh\necho a banner; echo sweeper: {version} {'2.9.1' * has_torch}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return path / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script; the shell's python has no torch."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    # Sweeper's own environment has no torch either.
    monkeypatch.setattr(interpreter.sys, "prefix", str(tmp_path / "own"))
    own = environment(tmp_path / "own", has_torch=False)
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}/usr/bin")
    made = tmp_path / "home" / "a prøject"
    (made / ".git").mkdir(parents=True)
    (made / "train.py").write_text(TRAIN)
    return made


def test_a_python_that_has_torch_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment(tmp_path / "whole").parent))
    environment(folder / ".venv")
    assert with_interpreter(["python", "train.py"], folder) == (["python", "train.py"], "")


@pytest.mark.parametrize("words", [["./train"], [sys.executable, "train.py"], ["bash", "train.sh"]])
def test_other_programs_are_not_asked(folder: Path, words: list[str]) -> None:
    environment(folder / ".venv")
    assert with_interpreter(words, folder) == (words, "")


@pytest.mark.parametrize("place", [".venv", "venv", ".pixi/envs/default"])
def test_an_environment_of_its_folder_is_taken(folder: Path, place: str) -> None:
    python = environment(folder / place)
    words, line = with_interpreter(["python", "train.py"], folder)
    assert words == [str(python), "train.py"]
    assert line == f"`python` has no torch; using {python} ({place} of {folder})."


def test_an_environment_of_a_folder_above_is_taken(folder: Path) -> None:
    python = environment(folder / ".venv")
    (folder / "src").mkdir()
    assert with_interpreter(["python", "train.py"], folder / "src")[0][0] == str(python)


def test_launchers_come_from_it_too(folder: Path) -> None:
    python = environment(folder / ".venv")
    words, _ = with_interpreter(["env", "A=1", "torchrun", "train.py"], folder)
    assert words == ["env", "A=1", str(python.with_name("torchrun")), "train.py"]


def test_the_next_python_on_the_path_comes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(folder / ".venv")
    shell = environment(tmp_path / "shell")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{shell.parent}")
    assert with_interpreter(["python", "train.py"], folder)[0][0] == str(shell)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    python = environment(tmp_path / "active")
    monkeypatch.setenv(variable, str(tmp_path / "active"))
    words, line = with_interpreter(["python", "train.py"], folder)
    assert words[0] == str(python)
    assert variable in line


def test_condas_environment_has_the_name_in_its_file(folder: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "envs" / "speech")
    environment(tmp_path / "envs" / "other")
    (folder / "environment.yml").write_text("name: speech\ndependencies: [pytorch]\n")
    listed = tmp_path / "home" / ".conda" / "environments.txt"
    listed.parent.mkdir()
    listed.write_text("".join(f"{tmp_path / 'envs' / name}\n" for name in ("other", "speech")))
    assert with_interpreter(["python", "train.py"], folder)[0][0] == str(python)


@pytest.mark.parametrize("works", [True, False])
def test_poetry_is_asked_for_its_environment(folder: Path, tmp_path: Path, works: bool) -> None:
    python = environment(tmp_path / "cache" / "poetry-env")
    (folder / "pyproject.toml").write_text("[tool.poetry]\nname = 'x'\n")
    poetry = tmp_path / "own" / "bin" / "poetry"
    poetry.write_text(f"#!/bin/sh\necho {python.parent.parent}\nexit {0 if works else 1}\n")
    poetry.chmod(0o755)
    if works:
        assert with_interpreter(["python", "train.py"], folder)[0][0] == str(python)
    else:
        with pytest.raises(UserError, match=r"no environment of .* has it \(poetry names none\)\."):
            with_interpreter(["python", "train.py"], folder)


def test_a_script_that_imports_torch_is_refused_without_it(folder: Path) -> None:
    environment(folder / ".venv", has_torch=False)
    with pytest.raises(UserError, match=r"must run where torch is installed, but .* has no torch"):
        with_interpreter(["python", "train.py"], folder)
    (folder / "train.py").write_text("import helpers\n")
    words, line = with_interpreter(["python", "train.py"], folder)
    assert words == ["python", "train.py"]
    assert line.startswith("Note: ")


def test_a_python_that_is_too_old_is_refused(folder: Path) -> None:
    environment(folder / ".venv", version="3 7")
    with pytest.raises(UserError, match=r"must be 3\.8 or newer, but .* is Python 3\.7"):
        with_interpreter(["python", "train.py"], folder)


def test_a_real_interpreter_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".venv").symlink_to(PREFIX)
    words, _ = with_interpreter(["python", "train.py"], folder)
    assert words[0] == str(folder / ".venv" / "bin" / "python")


@pytest.mark.parametrize("word", ["PATH=/opt/bin", "PYTHONPATH=lib"])
def test_a_command_that_says_where_its_modules_are_is_kept(folder: Path, word: str) -> None:
    environment(folder / ".venv")
    words = ["env", word, "python", "train.py"]
    assert with_interpreter(words, folder) == (words, "")


def test_a_program_that_does_not_answer_is_kept(folder: Path, tmp_path: Path) -> None:
    environment(folder / ".venv")
    (tmp_path / "own" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert with_interpreter(["python", "train.py"], folder) == (["python", "train.py"], "")


def test_a_folder_of_the_scripts_is_no_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "torch").mkdir()
    (folder / "types.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(folder)
    assert torch_of([sys.executable, "train.py"]) == metadata.version("torch")
    system = Path("/usr/bin/python3")
    if system.exists() and not list(Path("/usr/lib/python3").glob("dist-packages/torch")):
        answer = interpreter._ask(system)
        assert answer is not None
        assert answer.torch == ""


def test_a_launcher_is_asked_by_its_first_line(folder: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "elsewhere")
    launcher = tmp_path / "own" / "bin" / "torchrun"
    launcher.write_text(f"#!{python}\n")
    assert with_interpreter(["torchrun", "train.py"], folder) == (["torchrun", "train.py"], "")
    assert torch_of(["torchrun", "train.py"]) == "2.9.1"


def test_an_import_within_a_block_may_fail(folder: Path) -> None:
    (folder / "train.py").write_text("try:\n    import torch\nexcept ImportError:\n    pass\n")
    words, line = with_interpreter(["python", "train.py"], folder)
    assert words == ["python", "train.py"]
    assert line.startswith("Note: ")


def test_sweepers_own_environment_is_the_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.sys, "prefix", PREFIX)
    words, line = with_interpreter(["python", "train.py"], folder)
    assert words[0] == f"{PREFIX}/bin/python"
    assert line.endswith("(sweeper's own).")
    python = environment(folder / ".venv")
    assert with_interpreter(["python", "train.py"], folder)[0][0] == str(python)
