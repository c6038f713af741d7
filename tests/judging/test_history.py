"""What the latest commits were judged, since when a training is slower, and the comment that says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from parts.noop import synthetic
from typer.testing import CliRunner

from sweeper.cli import judge as command
from sweeper.cli.app import app
from sweeper.cli.judge_comment import comment
from sweeper.errors import UserError
from sweeper.judging.arms import Arm, commits_of
from sweeper.judging.history import (
    MAX_JUDGEMENTS,
    JudgedCommit,
    judgement_of,
    read_history,
    slower_since,
    with_judgement,
    write_history,
)
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.judging.verdict import Verdict

HERE = Path(__file__).parent


def verdict(answer: Speed = Speed.SLOWER) -> Verdict:
    measured = (synthetic(100.0), synthetic(101.0))
    speed = SpeedComparison(answer=answer, ratio=0.87, low=0.85, high=0.9, before=measured, after=measured)
    arm = Arm(name="", command=("python", "train.py", "--name", "a|b"), folder=HERE)
    return Verdict(arms=(arm, arm), speed=speed, training=LossComparison(answer=LossAgreement.EQUAL))


def judged(commit: str, base: str, speed: str) -> JudgedCommit:
    ratio = {"slower": 0.9, "faster": 1.2, "little": 1.04}.get(speed, 1.0)
    speed = "faster" if speed == "little" else speed
    return JudgedCommit(
        commit=commit, base=base, speed=speed, ratio=ratio, low=0.88, high=1.3, losses="equal"
    )


@pytest.mark.parametrize(
    ("history", "since"),
    [
        # Each is compared with the one before it.
        ([("b", "a", "slower"), ("c", "b", "same"), ("d", "c", "undecided")], "b"),
        ([("b", "a", "slower"), ("c", "b", "slower")], "b"),
        ([("b", "a", "slower"), ("c", "b", "faster")], None),
        ([("b", "a", "slower"), ("c", "b", "little")], "b"),
        ([("b", "a", "same"), ("c", "b", "slower")], "c"),
        # All are compared with `main`.
        ([("b", "main", "slower"), ("c", "main", "slower")], "b"),
        ([("b", "main", "slower"), ("c", "main", "same")], None),
        ([("b", "main", "slower"), ("c", "main", "same"), ("d", "main", "slower")], "d"),
        ([("b", "main", "slower"), ("c", "main", "undecided")], None),
        # Files that differ from a commit are those of its successor.
        ([("b+", "a", "slower"), ("c", "b", "same")], "b+"),
        ([], None),
    ],
)
def test_the_first_of_the_slower_commits_is_named(history: list[tuple[str, str, str]], since: str | None):
    first = slower_since([judged(*one) for one in history])
    assert (first.commit if first else None) == since


def test_a_commit_that_is_judged_again_replaces_what_was_judged():
    history = [judged("b", "a", "slower"), judged("c", "b", "same")]
    again = judged("b", "a", "same")
    assert with_judgement(history, again) == [history[1], again]
    assert len(with_judgement(history, judged("b", "main", "same"))) == 3


def test_the_latest_are_kept(tmp_path: Path):
    history: list[JudgedCommit] = []
    for number in range(MAX_JUDGEMENTS + 5):
        history = with_judgement(history, judged(str(number), "main", "same"))
    write_history(tmp_path / "history.json", history)
    kept = read_history(tmp_path / "history.json")
    assert [one.commit for one in kept] == [str(number) for number in range(5, MAX_JUDGEMENTS + 5)]
    assert read_history(tmp_path / "none.json") == []


@pytest.mark.parametrize("text", ["", "[]", '{"judgements": [{"commit": 1}]}', '{"other": []}'])
def test_a_file_with_other_content_is_refused(tmp_path: Path, text: str):
    (tmp_path / "history.json").write_text(text)
    with pytest.raises(UserError, match=r"`--history` must be a file that .* has written"):
        read_history(tmp_path / "history.json")


def test_the_comment_names_the_slower_commit_and_lists_the_latest():
    history = [judged("a1" * 20, "f0" * 20, "same"), judgement_of(verdict(), "b2" * 20 + "+", "a1" * 20)]
    lines = comment(verdict(), history).splitlines()
    assert lines[0] == "### slower: 0.87x"
    assert r"| command | `python train.py --name 'a\|b'` |" in lines
    assert "**Slower since `b2b2b2b2b+`** (0.87x)." in lines
    assert "| `b2b2b2b2b+` | `a1a1a1a1a` | slower, 0.87x | [0.85, 0.9] | equal |" in lines
    assert "Slower since" not in comment(verdict(), [])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "train.py").write_text("pass\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], cwd=root, check=True)
    (root / "train.py").write_text("print()\n")
    subprocess.run([*git, "commit", "-qam", "second"], cwd=root, check=True)
    monkeypatch.chdir(root)
    return root


def test_commits_are_those_of_the_tree_and_of_the_revision(repository: Path):
    here, base = commits_of("HEAD~1", repository)
    assert (len(here), len(base)) == (40, 40)
    assert here != base
    (repository / "train.py").write_text("print(1)\n")
    assert commits_of("HEAD~1", repository) == (f"{here}+", base)


def test_the_command_writes_both_files(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "judge_change", lambda *_, **__: verdict())
    files = ["--comment", str(tmp_path / "comment.md"), "--history", str(tmp_path / "history.json")]
    done = CliRunner().invoke(app, ["judge", "--ref", "HEAD~1", *files, "--", "python", "train.py"])
    assert done.exit_code == 0, done.output
    here, base = commits_of("HEAD~1", repository)
    assert f"**Slower since `{here[:9]}`**" in (tmp_path / "comment.md").read_text()
    (kept,) = json.loads((tmp_path / "history.json").read_text())["judgements"]
    assert (kept["commit"], kept["base"], kept["speed"]) == (here, base, "slower")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--before", "python a.py", "--after", "python b.py", "--history", "h.json"), "needs `--ref`"),
        (
            ("--ref", "HEAD~1", "--comment", "none/c.md", "--", "python", "train.py"),
            "in a folder that exists",
        ),
    ],
)
def test_files_are_checked_before_anything_runs(repository: Path, words: tuple[str, ...], why: str):
    done = CliRunner().invoke(app, ["judge", *words])
    assert isinstance(done.exception, UserError)
    assert why in str(done.exception)
