"""Nothing of the user's is changed by any command that runs a script, whatever the script does."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ways
from folder import Project, make_project
from runner import sweeper, wait_until_alone
from snapshot import changes, snapshot

SCRIPT = ("python", "train.py", "train", "all")
SPACE = """
name: ways
command: [python, train.py, train, all]
script: {env: {OMP_NUM_THREADS: "{threads}"}, samples_per_step: 64}
space: {threads: {type: categorical, choices: [1, 2]}}
baseline: {threads: 1}
measure: {window_seconds: 0.5, repeats: 1, warmup_cap_seconds: 1}
search: {trials: 1, minutes: 1}
"""
REDIRECTED = [
    name
    for name in ways.WAYS
    if name not in ways.ABSOLUTE | ways.EITHER | ways.UNSURE | ways.TORCH | ways.LATE
]
"""Ways that a guarded script goes as by hand, so that it trains afterwards."""


@pytest.fixture
def project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="sweeper-test-") as base:
        yield make_project(Path(base))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("watch", "--", *SCRIPT),
        ("watch", "--", "python", "train.py", "train", *REDIRECTED),
        ("tune", "--minutes", "1", "--", *SCRIPT),
        pytest.param(
            ("tune", "--dry-run", "--", "python", "train.py", "train", *REDIRECTED), marks=pytest.mark.soak
        ),
        pytest.param(
            ("tune", "--minutes", "1", "--", "python", "train.py", "train", *REDIRECTED),
            marks=pytest.mark.soak,
        ),
        ("judge", "--minutes", "0.1", "--before", shlex.join(SCRIPT), "--after", shlex.join(SCRIPT)),
        ("run", "{state}/ways.yaml"),
        ("check", "{state}/ways.yaml", "--deep"),
        ("init", "--command", shlex.join(SCRIPT), "--out", "{state}/init.yaml"),
    ],
    ids=lambda words: f"{words[0]}-{len(words)}",
)
def test_a_command_changes_nothing(project: Project, tmp_path: Path, words: Sequence[str]):
    (tmp_path / "ways.yaml").write_text(SPACE)
    look = (project.home, project.data)
    # MLflow loads matplotlib into sweeper's own process, which makes its caches.
    caches = [project.home / name / "matplotlib" for name in (".cache", ".config")]
    for cache in caches:
        cache.mkdir(parents=True)
    ignoring = (*project.allowed, *caches)
    before = snapshot(*look, ignoring=ignoring)
    state = tmp_path / "state"
    done = sweeper(project.folder, state, *(word.format(state=tmp_path) for word in words), home=project.home)
    wait_until_alone(project)
    if words[0] == "tune" and "--dry-run" not in words:
        sweeper(project.folder, state, "export", "tune-train", "--format", "patch", home=project.home)
    assert changes(before, snapshot(*look, ignoring=ignoring)) == []
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "started again too often" in said, said[-3000:]
