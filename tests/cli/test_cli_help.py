"""Help, its speed, and what the supervisor's process does not import."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.cli.app import COMMANDS, Commands
from sweeper.cli.options import with_paths
from sweeper.core.home import DEFAULT_HOME, home_option

HELP_CPU_SECONDS = 0.4


def command_of(name: str) -> Any:
    return Commands().get_command(None, name)


def options_of(command: str) -> set[str]:
    return {option for each in command_of(command).params for option in each.opts} | {"--help", "-h"}


def own(words: list[str]) -> list[str]:
    """The words before `--`: what follows belongs to the command that is watched."""
    return words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(command):
    text = command_of(command).help
    assert text.partition("\n\n")[0] == COMMANDS[command]
    (example,) = re.findall(r"Example: (sweeper .*)", text)
    words = shlex.split(example)
    assert words[1] == command
    assert {word for word in own(words) if word.startswith("--")} <= options_of(command)


def test_help_is_printed(sweeper):
    done = sweeper("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
    assert done.stderr == ""
    assert "Example:" in sweeper("run", "--help").stdout


def test_help_answers_in_little_cpu_time():
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "sweeper", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(once() for _ in range(5)) <= HELP_CPU_SECONDS


def test_the_supervisor_imports_no_torch():
    modules = [
        "sweeper.cli.run",
        "sweeper.cli.show",
        "sweeper.cli.ui",
        "sweeper.sweep.run",
        "sweeper.search",
        "sweeper.tracking.mlflow",
        "sweeper.launch.local",
        "sweeper.launch.inline",
        "sweeper.exports",
        "sweeper.results.numbers.summary",
    ]
    code = f"import sys, {', '.join(modules)}; import mlflow; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_a_command_to_go_on_with_can_be_pasted_into_a_shell():
    assert home_option(DEFAULT_HOME) == ""
    assert shlex.split(f"sweeper show x{home_option(Path('my runs'))}")[3:] == ["--home", "my runs"]


@pytest.mark.parametrize("module", ["list", "show", "report", "export"])
def test_whoever_looks_at_a_sweep_waits_for_no_search_and_no_tracking(module: str):
    code = f"import sys, sweeper.cli.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"optuna", "sqlalchemy", "mlflow", "pandas", "torch"} & set(done.stdout.split())


README = Path(__file__).parents[2] / "README.md"
LINES = re.findall(r"^ {4}(?:\S*/)?(sweeper (?!>).*?)(?: {2,}.*)?$", README.read_text(), re.MULTILINE)


def test_the_readme_shows_commands():
    assert len(LINES) >= 5


@pytest.mark.parametrize("line", LINES)
def test_what_the_readme_shows_exists(line):
    words = shlex.split(line)
    assert words[1] in COMMANDS
    assert {word for word in own(words) if word.startswith("-")} <= options_of(words[1])
    for word in words:
        if word.startswith("search_spaces/"):
            assert (README.parent / word).exists()


@pytest.mark.parametrize(
    ("words", "complete"),
    [
        ("watch --unprotected -- python x", "watch --unprotected . -- python x"),
        ("watch --unprotected --json -- python x", "watch --unprotected . --json -- python x"),
        ("watch --unprotected a --unprotected b -- p", "watch --unprotected a --unprotected b -- p"),
        ("run x.yaml --unprotected", "run x.yaml --unprotected ."),
        ("watch -- p --unprotected -- q", "watch -- p --unprotected -- q"),
    ],
)
def test_unprotected_without_a_path_is_the_current_folder(words: str, complete: str):
    assert with_paths(words.split()) == complete.split()


def test_without_a_command_five_lines_say_what_to_do(sweeper):
    done = sweeper()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 5
    named = re.findall(r"^  sweeper (\w+)", done.stdout, re.M)
    assert set(named) <= set(COMMANDS)
