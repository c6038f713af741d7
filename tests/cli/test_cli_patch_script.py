"""`sweeper export --format patch`: its comments, what it says of a patch, and the command that applies it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parts.noop import synthetic

from sweeper.cli import patch_script
from sweeper.cli.patch_script import NOT_FASTER, _comment, _gains, apply_command, why_not_faster, write_patch
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.script import Script
from sweeper.errors import NothingFeasibleError
from sweeper.exports.verification import VerifiedChange
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.results.numbers.confirmation import Ratio
from sweeper.script.patch.patch import Patch
from sweeper.tuning.gains import ChangeGain

HUNK = "@@ -1 +1 @@\n-a = 1\n+a = 2\n"
HEAD = "--- a/train.py\n+++ b/train.py\n"


def undecided(hunks: int) -> Patch:
    rounds = [synthetic(1.0)] * 5
    speed = SpeedComparison(
        answer=Speed.UNDECIDED, ratio=1.012, low=0.981, high=1.044, before=rounds, after=rounds
    )
    return Patch(text=HEAD + hunks * HUNK, left_out={}, speed=speed)


@pytest.mark.parametrize("here", [".", "jobs", ".."])
def test_the_command_applies_the_patch_from_where_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
):
    root = tmp_path / "repository"
    (root / "jobs").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    names = ("jobs/train.py", "library.py")
    for name in names:
        (root / name).write_text("a = 1\n")
    monkeypatch.chdir(root / here)
    path = Path("the best.patch")
    path.write_text("".join(f"--- a/{name}\n+++ b/{name}\n{HUNK}" for name in names))
    subprocess.run(shlex.split(apply_command(path, root)), check=True)
    assert [(root / name).read_text() for name in names] == ["a = 2\n"] * 2


def test_a_patch_that_is_not_faster_has_its_figures_and_a_remedy():
    path, command = Path("/home/x.patch"), ("python", "train.py")
    judge = "sweeper judge --minutes=15 --patch=/home/x.patch -- python train.py"
    figures = "1.01x (95% interval [0.981, 1.04], 5 starts)"
    why = f"it runs at {figures}, so it is not shown to be faster. To judge it"
    assert (
        why_not_faster(undecided(1), path, command, Path("/src")) == f"{why} for longer, run in /src: {judge}"
    )
    assert why_not_faster(undecided(2), path, command, Path("/src")) == (
        f"{why}, or some of its hunks alone, for longer, run in /src: {judge}"
    )


def test_a_patch_that_is_not_faster_is_kept_to_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A tune with the script's own options has a template for each of them.
    script = Script(command=("python", "train.py", "--bs={batch_size}"), folder=str(tmp_path))
    sweep = SimpleNamespace(journal=SimpleNamespace(folder=tmp_path, trial_folder=lambda number: tmp_path))
    for name, found in {
        "find_sweep": None,
        "load_sweep": sweep,
        "_patched_changes": [],
        "read_job": Job(uid="u", script=script, config=TrialConfig(args={"batch_size": 64})),
        "make": undecided(1),
    }.items():
        monkeypatch.setattr(patch_script, name, lambda *_, found=found: found)
    with pytest.raises(NothingFeasibleError, match=r"not shown to be faster\..* train\.py --bs=64"):
        write_patch(tmp_path, "tune-train", None)
    assert (tmp_path / NOT_FASTER).read_text() == undecided(1).text
    assert not (tmp_path / patch_script.FILE).exists()


def sweep_of(ratio: Ratio | None) -> Any:
    return SimpleNamespace(summary=SimpleNamespace(ratio=ratio), journal=SimpleNamespace(schema=2))


@pytest.mark.parametrize(
    ("rounds", "high", "gain"),
    [
        (3, 1.46, "1.3x as fast (95% interval for a later run [1.16, 1.46], 3 rounds)"),
        (1, 1.46, "1.3x as fast (95% interval for a later run [1.16, 1.46], 1 round)"),
        (1, None, "1.3x as fast (1 round, too few for an interval)"),
    ],
)
def test_the_gain_of_one_change_has_the_interval_of_later_runs(rounds: int, high: Any, gain: str):
    speeds = (9.0,) * rounds
    ratio = Ratio(trial=1, ratio=1.3, low=1.16, high=high, throughput=9.0, rounds=speeds, sitting_low=1.2)
    assert _gains(sweep_of(ratio), ["optimizer"]) == {"optimizer": gain}
    assert _gains(sweep_of(None), ["optimizer"]) == {}


def test_gains_of_several_changes_have_no_interval(monkeypatch: pytest.MonkeyPatch):
    found = (1.2, 1.1, 1.3)
    rungs = [
        ChangeGain(name="optimizer", value="fused", alone=(1.5, 1.4, 1.6), stacked=found, is_kept=True),
        ChangeGain(name="threads", value="one", alone=found, stacked=None, is_kept=True),
        ChangeGain(name="tf32", value="on", alone=None, stacked=None, is_kept=True),
    ]
    monkeypatch.setattr(patch_script, "gains_of", lambda sweep: rungs)
    assert _gains(sweep_of(None), ["optimizer", "threads", "tf32"]) == {
        "optimizer": "1.2x as fast on top of the other changes",
        "threads": "1.2x as fast alone",
    }


def test_a_comment_says_why_and_what_it_brought():
    change = VerifiedChange(name="optimizer", value="fused", original="original", why="one call updates all")
    assert _comment(change, "1.2x as fast", "a CPU") == "One call updates all: 1.2x as fast, on a CPU."
    assert _comment(change, "", "a CPU") == "One call updates all."
