"""The action for GitHub: its steps, run as GitHub would, in a local clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
EXAMPLE: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples/github-action.yml").read_text())
TRAINING = REPOSITORY / "tests" / "judging"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")


def step(name: str) -> dict[str, Any]:
    return next(step for step in ACTION["runs"]["steps"] if step.get("name") == name)


def run(
    name: str, inputs: dict[str, str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """Runs a step in a folder; its variables come from the action's inputs."""
    given = {key: value["default"] for key, value in ACTION["inputs"].items() if "default" in value} | inputs
    variables = {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], value)
        for key, value in step(name)["env"].items()
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]]
    return subprocess.run(
        command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose working tree is twice as slow as the commit before it."""
    root = tmp_path / "a clone"
    root.mkdir()
    for name in ("train.py", "helper.py"):
        shutil.copy(TRAINING / name, root / name)
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*GIT, *words], cwd=root, check=True)
    (root / "helper.py").write_text("PAUSE = 0.012\n")
    subprocess.run([*GIT, "commit", "-qam", "slower"], cwd=root, check=True)
    return root


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What GitHub gives to a step, with this environment in place of the one that the action installs."""
    runner = tmp_path / "runner"
    (runner / "sweeper" / "bin").mkdir(parents=True)
    (runner / "sweeper" / "bin" / "sweeper").symlink_to(Path(sys.executable).with_name("sweeper"))
    (tmp_path / "home").mkdir()
    return {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "RUNNER_TEMP": str(runner),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


@pytest.mark.slow
def test_a_slower_commit_fails_with_a_summary_and_a_history(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    inputs = {"command": f"{sys.executable} train.py", "ref": "HEAD~1", "minutes": "0.15"}
    done = run("Judge", inputs, clone, environment)
    assert done.returncode == 1, done.stdout + done.stderr
    head = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True)
    summary = (tmp_path / "summary.md").read_text()
    assert f"**Slower since `{head.stdout[:9]}`**" in summary
    assert (tmp_path / "home" / ".sweeper-history.json").exists()


def test_a_wrong_input_fails_without_a_summary(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = run("Judge", {"command": "python train.py", "ref": "nowhere"}, clone, environment)
    assert done.returncode == 2
    assert "`--ref` must be a revision" in done.stderr
    assert not (tmp_path / "summary.md").exists()


def test_the_comment_is_made_where_there_is_one(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gh"
    # It answers a question for comments with what `found` has.
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\ncase "$*" in *--paginate*) cat {tmp_path}/found;; esac\n'
    )
    program.chmod(0o755)
    (tmp_path / "found").write_text("")
    environment |= {"PATH": f"{tmp_path / 'bin'}:{environment['PATH']}", "GITHUB_REPOSITORY": "a/b"}
    comment = step("Comment on the pull request")
    comment["env"] = {**comment["env"], "NUMBER": "7", "JOB": "judge", "GH_TOKEN": "x"}

    def said() -> str:
        done = run("Comment on the pull request", {}, clone, environment)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / "said").read_text().splitlines() if (tmp_path / "said").exists() else [""]
        return lines[-1]

    assert said() == ""
    (Path(environment["RUNNER_TEMP"]) / "sweeper.md").write_text("### slower\n")
    assert said().startswith("api --method POST repos/a/b/issues/7/comments ")
    written = (Path(environment["RUNNER_TEMP"]) / "comment.md").read_text()
    assert written == "<!-- sweeper judge, job judge -->\n### slower\n"
    (tmp_path / "found").write_text("12\n")
    assert said().startswith("api --method PATCH repos/a/b/issues/comments/12 ")


def test_the_example_uses_inputs_that_the_action_has() -> None:
    used = next(step for step in EXAMPLE["jobs"]["judge"]["steps"] if "sweeper@" in step.get("uses", ""))
    assert used["with"].keys() <= ACTION["inputs"].keys()
    required = {name for name, given in ACTION["inputs"].items() if given.get("required")}
    assert required <= used["with"].keys()
