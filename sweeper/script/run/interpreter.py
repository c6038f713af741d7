"""Finds the environment of a script where the `python` of the shell has no torch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
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
_MARK = "sweeper:"
_PROBE = f"""
import sys
# A folder `torch` or a file `types.py` of the script's says nothing about its environment.
sys.path = [path for path in sys.path if path]
from importlib.util import find_spec
version = ""
if find_spec("torch") is not None:
    try:
        from importlib.metadata import version as version_of
        version = version_of("torch")
    except ImportError:
        version = "?"
print("{_MARK}", *sys.version_info[:2], version)
"""
_PLACES = ("PATH", "PYTHONPATH", "PYTHONHOME")
"""Variables that decide which program runs, and with which modules."""
_OF_TORCH = re.compile(r"^(import|from)\s+(torch|pytorch_lightning|lightning|accelerate)\b", re.MULTILINE)
_FOLDERS = (".venv", "venv", "env", ".pixi/envs/default")
_CONDA_FILES = ("environment.yml", "environment.yaml")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an interpreter says about itself.

    Attributes:
        torch: Version of its torch, `?` if that is not known; empty without one.
    """

    version: tuple[int, int]
    torch: str


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
    at = _program_at(words)
    program = words[at] if words else ""
    if not _PROGRAMS.fullmatch(program) or any(word.split("=")[0] in _PLACES for word in words[:at]):
        return list(words), ""
    first = shutil.which(program)
    answer = _ask(_python_of(Path(first))) if first else None
    if answer is not None and answer.torch:
        _require_version(program, answer)
    if first is not None and (answer is None or answer.torch):
        return list(words), ""
    silent: list[str] = []
    for path, what in _environments(folder, silent):
        chosen = path / "bin" / program
        seen = _ask(_python_of(chosen)) if chosen.exists() and _is_ours(chosen) else None
        if seen is not None and seen.torch:
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
    lacks += f" ({silent[0]} names none)" if silent else ""
    if _OF_TORCH.search(_text(folder / _script(words))):
        raise UserError(
            f"the command must run where torch is installed, but {lacks}."
            f" Activate the script's environment, or name its {program} by its path."
        )
    return list(words), f"Note: {lacks}."


def torch_of(words: Sequence[str]) -> str:
    """Returns the version of torch that a command's interpreter has; empty if that is not known."""
    program = words[_program_at(words)]
    path = shutil.which(program)
    if path is None or not _PROGRAMS.fullmatch(Path(program).name):
        return ""
    answer = _ask(_python_of(Path(path)))
    return "" if answer is None else answer.torch.strip("?")


def _program_at(words: Sequence[str]) -> int:
    """Returns where the program is in a command, after `env` and its variables."""
    begins = 1 if words[:1] == ["env"] else 0
    return next((at for at, word in enumerate(words) if at >= begins and "=" not in word), 0)


def _script(words: Sequence[str]) -> str:
    try:
        return parse_command(shlex.join(words)).script
    except UserError:
        return ""


def _is_ours(program: Path) -> bool:
    """Returns whether a program belongs to the user or to the system: anybody may put one into /tmp."""
    return program.stat().st_uid in (0, os.getuid())


def _require_version(program: str, seen: Interpreter) -> None:
    if seen.version < OLDEST:
        version, oldest = (".".join(map(str, pair)) for pair in (seen.version, OLDEST))
        raise UserError(
            f"the script's Python must be {oldest} or newer, but {program!r} is Python {version}."
            " Run it in a newer environment."
        )


def _python_of(program: Path) -> Path:
    """Returns the interpreter of the environment that a program belongs to."""
    if program.name.startswith("python"):
        return program
    first = re.match(r"#!\s*(/\S*python[\d.]*)", _text(program))
    return Path(first[1]) if first else program.with_name("python")


def _ask(python: Path) -> Interpreter | None:
    """Returns what an interpreter says about itself; None if it cannot be run."""
    lines = _answer([str(python), "-c", _PROBE]).splitlines()
    fields = next((line.split()[1:] for line in reversed(lines) if line.startswith(_MARK)), [])
    return Interpreter((int(fields[0]), int(fields[1])), "".join(fields[2:])) if len(fields) >= 2 else None


def _answer(command: Sequence[str]) -> str:
    """Returns what a command prints; empty if it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


def _environments(folder: Path, silent: list[str]) -> Iterator[tuple[Path, str]]:
    """Yields the environments that may be the script's, and whose they are, the nearest first.

    Args:
        silent: Receives the managers of environments that name none.
    """
    # `uvx` puts sweeper's environment first on the PATH.
    for place in os.environ.get("PATH", "").split(os.pathsep):
        if place.endswith("/bin"):
            yield Path(place).parent, "next on the PATH"
    for parent in (folder, *folder.parents):
        for name in _FOLDERS:
            if (path := parent / name).is_dir():
                yield path, f"{name} of {parent}"
        yield from _of_conda(parent)
        yield from _of_poetry(parent, silent)
        if (parent / ".git").exists() or parent == Path.home():
            break
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if path_of := os.environ.get(variable):
            yield Path(path_of), variable
    yield Path(sys.prefix), "sweeper's own"


def _of_conda(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields conda's environment of the name in a folder's `environment.yml`."""
    for file in _CONDA_FILES:
        match = re.search(r"^name:\s*[\"']?([\w.-]+)", _text(folder / file), re.MULTILINE)
        for line in _text(Path.home() / ".conda" / "environments.txt").splitlines() if match else ():
            if match and Path(line).name == match[1]:
                yield Path(line), f"conda, by {file}"


def _of_poetry(folder: Path, silent: list[str]) -> Iterator[tuple[Path, str]]:
    """Yields poetry's environment of a folder, or tells `silent` that it names none."""
    if "[tool.poetry" in _text(folder / "pyproject.toml") and shutil.which("poetry"):
        path = _answer(["poetry", "--directory", str(folder), "env", "info", "--path"])
        if path:
            yield Path(path), "poetry"
        else:
            silent.append("poetry")


def _text(path: Path) -> str:
    """Returns the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
