"""Finds the environment of a script whose `python` has no torch, as where sweeper has one of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import UserError
from sweeper.script.run.command_line import parse_command

OLDEST = (3, 8)
"""Oldest Python in which a script can be watched."""
SECONDS = 20.0
"""Longest time that an interpreter, or the manager of an environment, may take to answer."""
_PROGRAMS = re.compile(r"python3?(\.\d+)?|torchrun|accelerate|deepspeed|lightning")
_PROBE = "import sys, importlib.util as u; print(*sys.version_info[:2], u.find_spec('torch') is not None)"
_OF_TORCH = re.compile(r"^\s*(import|from)\s+(torch|pytorch_lightning|lightning|accelerate)\b", re.MULTILINE)
_FOLDERS = (".venv", "venv", "env", ".pixi/envs/default")
_CONDA_FILES = ("environment.yml", "environment.yaml")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an interpreter says about itself."""

    version: tuple[int, int]
    has_torch: bool


def with_interpreter(words: Sequence[str], folder: Path) -> tuple[list[str], str]:
    """Returns a command with the program of an environment that has torch, and a line about it.

    The program that a shell would find is kept if its environment has torch, or if no other has; then the
    line is empty or says what is missing.

    Args:
        words: The command.
        folder: The folder in which it runs.

    Raises:
        UserError: The script imports torch, and no environment has it, or its Python is too old.
    """
    begins = 1 if words[:1] == ["env"] else 0
    at = next((at for at, word in enumerate(words) if at >= begins and "=" not in word), 0)
    program = words[at] if words else ""
    if not _PROGRAMS.fullmatch(program):
        return list(words), ""
    first = shutil.which(program)
    answer = _ask(_python_of(Path(first))) if first else None
    if answer is not None and answer.has_torch:
        _require_version(program, answer)
        return list(words), ""
    for path, what in _environments(folder):
        chosen = path / "bin" / program
        seen = _ask(path / "bin" / "python") if chosen.exists() else None
        if seen is not None and seen.has_torch:
            _require_version(str(chosen), seen)
            why = "is not on the PATH" if first is None else "has no torch"
            return [
                *words[:at],
                str(chosen),
                *words[at + 1 :],
            ], f"`{program}` {why}; using {chosen} ({what})."
    if answer is None:
        return list(words), ""
    _require_version(program, answer)
    lacks = f"{first} has no torch, and no environment of {folder} has it"
    if _OF_TORCH.search(_text(folder / parse_command(shlex.join(words)).script)):
        raise UserError(
            f"the command must run where torch is installed, but {lacks}."
            f" Activate the script's environment, or name its {program} by its path."
        )
    return list(words), f"Note: {lacks}."


def _require_version(program: str, seen: Interpreter) -> None:
    if seen.version < OLDEST:
        version, oldest = (".".join(map(str, pair)) for pair in (seen.version, OLDEST))
        raise UserError(
            f"the script's Python must be {oldest} or newer, but {program!r} is Python {version}."
            " Run it in a newer environment."
        )


def _python_of(program: Path) -> Path:
    """Returns the interpreter of the environment that a program belongs to."""
    return program if program.name.startswith("python") else program.with_name("python")


def _ask(python: Path) -> Interpreter | None:
    """Returns what an interpreter says about itself; None if it cannot be run."""
    answer = _answer([str(python), "-c", _PROBE]).split()
    return Interpreter((int(answer[0]), int(answer[1])), answer[2] == "True") if len(answer) == 3 else None


def _answer(command: Sequence[str]) -> str:
    """Returns what a command prints; empty if it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


def _environments(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the environments that may be the script's, and whose they are, the nearest first."""
    # Where sweeper runs in an environment of its own, that comes first on the PATH.
    for place in os.environ.get("PATH", "").split(os.pathsep):
        if place.endswith("/bin"):
            yield Path(place).parent, "next on the PATH"
    for parent in (folder, *folder.parents):
        for name in _FOLDERS:
            if (path := parent / name).is_dir():
                yield path, f"{name} of {parent}"
        yield from _of_conda(parent)
        yield from _of_poetry(parent)
        if (parent / ".git").exists() or parent == Path.home():
            break
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if path_of := os.environ.get(variable):
            yield Path(path_of), variable


def _of_conda(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields conda's environment of the name in a folder's `environment.yml`."""
    for file in _CONDA_FILES:
        match = re.search(r"^name:\s*[\"']?([\w.-]+)", _text(folder / file), re.MULTILINE)
        for line in _text(Path.home() / ".conda" / "environments.txt").splitlines() if match else ():
            if match and Path(line).name == match[1]:
                yield Path(line), f"conda, by {file}"


def _of_poetry(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields poetry's environment of a folder."""
    if "[tool.poetry" in _text(folder / "pyproject.toml") and shutil.which("poetry"):
        path = _answer(["poetry", "--directory", str(folder), "env", "info", "--path"])
        if path:
            yield Path(path), "poetry"


def _text(path: Path) -> str:
    """Returns the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
