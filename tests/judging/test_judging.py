"""The verdict on a change, and the two versions that it is about."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parts.noop import synthetic

from sweeper.cli.judge import lines
from sweeper.core.measurement import Stats
from sweeper.core.recording import Recording
from sweeper.core.script import UNPROTECTED
from sweeper.errors import UserError
from sweeper.judging import lives, losses, speed
from sweeper.judging.arms import INSTEAD_OF, PASSIVE, Arm, commands, patched, since
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import PartialRatio, Speed, SpeedComparison, answer
from sweeper.judging.verdict import RequiredSpeed, Verdict, judge
from sweeper.judging.whole import WholeRun
from sweeper.race.record import Record
from sweeper.race.tally import Tally

HERE = Path(__file__).parent
TRAIN = ("python", "train.py")
PATCH = """--- a/helper.py
+++ b/helper.py
@@ -1 +1 @@
-PAUSE = 0.004
+PAUSE = 0.002
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with the training in a folder, a helper beside it, and data that git does not know."""
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("train.py", "helper.py"):
        shutil.copy(HERE / name, root / name)
    (root / "old.py").write_text("old\n")
    (root / "large.bin").write_bytes(bytes(2 * 1024 * 1024))
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / "data.txt").write_text("not tracked\n")
    return root


# -- the answer -------------------------------------------------------------------------------------


def test_a_clear_difference_has_its_sign():
    assert answer(Tally([0.30, 0.31, 0.29, 0.30])) is Speed.FASTER
    assert answer(Tally([-0.30, -0.31, -0.29, -0.30])) is Speed.SLOWER
    assert answer(Tally([0.30])) is Speed.FASTER, "processes seldom differ by so much"


def test_equals_within_three_percent_are_the_same():
    assert answer(Tally([0.001, -0.001, 0.002, -0.002, 0.0, 0.001, 0.0, -0.001])) is Speed.SAME


def test_a_wide_interval_decides_nothing():
    assert answer(Tally([0.3, -0.3, 0.2, -0.1])) is Speed.UNDECIDED
    assert answer(Tally([0.0])) is Speed.UNDECIDED


@pytest.mark.parametrize(
    ("speed", "low", "losses", "met"),
    [
        (Speed.FASTER, 1.01, LossAgreement.EQUAL, (True, True)),
        (Speed.FASTER, 1.01, LossAgreement.CLOSE, (True, True)),
        (Speed.SAME, 0.98, LossAgreement.EQUAL, (False, True)),
        (Speed.UNDECIDED, 0.98, LossAgreement.EQUAL, (False, True)),
        (Speed.UNDECIDED, 0.96, LossAgreement.EQUAL, (False, False)),
        (Speed.SLOWER, 0.98, LossAgreement.EQUAL, (False, False)),
        (Speed.FASTER, 1.01, LossAgreement.DIFFERENT, (False, False)),
        (Speed.FASTER, 1.01, LossAgreement.UNKNOWN, (False, False)),
    ],
)
def test_what_is_required_is_speed_and_the_same_training(
    speed: Speed, low: float, losses: LossAgreement, met: tuple[bool, bool]
):
    found = SpeedComparison(answer=speed, ratio=1.0, low=low, high=1.1, before=(), after=())
    arm = Arm(name="", command=(), folder=HERE)
    verdict = Verdict(arms=(arm, arm), speed=found, training=LossComparison(answer=losses))
    assert (verdict.meets(RequiredSpeed.FASTER), verdict.meets(RequiredSpeed.NOT_SLOWER)) == met


def test_the_numbers_at_the_end_are_said_if_both_printed_them():
    arm = Arm(name="", command=(), folder=HERE)
    measured = (dataclasses.replace(synthetic(1.0)),)
    found = SpeedComparison(
        answer=Speed.FASTER, ratio=1.3, low=1.2, high=1.4, before=measured, after=measured
    )
    ends = (WholeRun(seconds=3.0, numbers={"loss": 0.031}), WholeRun(seconds=2.0, numbers={"loss": 0.0309}))
    verdict = Verdict(
        arms=(arm, arm), speed=found, training=LossComparison(answer=LossAgreement.EQUAL), whole=ends
    )
    assert "  At the end, loss: 0.031 before, 0.0309 after." in list(lines(verdict, None))
    assert verdict.to_dict()["whole"][1] == {"seconds": 2.0, "numbers": {"loss": 0.0309}, "failure": ""}
    failed = dataclasses.replace(
        verdict, whole=(ends[0], WholeRun(seconds=2.0, numbers={}, failure="no data"))
    )
    assert "  At the end, the version after failed: no data." in list(lines(failed, None))
    nothing = dataclasses.replace(verdict, whole=(ends[0], WholeRun(seconds=2.0, numbers={})))
    assert any("printed no number under the same name" in line for line in lines(nothing, None))
    assert not any("At the end" in line for line in lines(dataclasses.replace(verdict, whole=None), None))


# -- the versions -----------------------------------------------------------------------------------


def test_a_revision_is_as_it_was_and_keeps_what_git_does_not_track(folder: Path):
    (folder / "helper.py").write_text("PAUSE = 0.5\n")
    (folder / "old.py").unlink()
    (folder / "new.py").write_text("")
    subprocess.run(["git", "add", "new.py"], cwd=folder, check=True)
    (folder / "large.bin").write_bytes(b"changed")
    with since("HEAD", TRAIN, folder) as (before, after):
        assert (before.folder / "helper.py").read_text() == (HERE / "helper.py").read_text()
        assert (before.folder / "old.py").read_text() == "old\n"
        assert not (before.folder / "new.py").exists()
        assert (before.folder / "data.txt").read_text() == "not tracked\n"
        assert (before.folder / "large.bin").stat().st_size == 2 * 1024 * 1024
        assert after.folder == folder
        # Also what is installed from the folder is as it was.
        assert before.mirrors == (folder.resolve(), before.folder)
        assert after.env == {INSTEAD_OF: ""}
    assert (folder / "helper.py").read_text() == "PAUSE = 0.5\n"
    assert (folder / "large.bin").read_bytes() == b"changed"


def test_a_version_runs_with_its_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Timed and recorded alike, and without what the other version has."""
    told: list[object] = []

    def recorded(*_: object, env: dict[str, str], **__: object) -> Record:
        told.append({name: text for name, text in env.items() if name not in PASSIVE})
        return Record(events={"0": [{"step": number} for number in range(8)]})

    monkeypatch.setattr(lives, "watch", lambda *_, env, **__: told.append(env) or synthetic(1.0))
    monkeypatch.setattr(losses, "record", recorded)
    mirrors = (tmp_path / "repository", tmp_path / "mirror")
    before = Arm(name="before", command=("python",), folder=tmp_path, mirrors=mirrors)
    after = Arm(name="after", command=("python",), folder=tmp_path)
    for arm in (before, after):
        speed.measure_version(arm)
    assert losses.compare((before, after), synthetic(1.0), synthetic(1.0)).answer is LossAgreement.EQUAL
    assert told[:2] == [before.env, after.env]
    assert before.env in told[2:]
    assert after.env in told[2:]
    assert len(told) == 4
    assert before.env == {INSTEAD_OF: f"{mirrors[0]}\n{mirrors[1]}"}


def test_a_version_that_starts_slowly_gets_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its record would otherwise be cut off, and its losses called different."""
    limits: list[object] = []

    def recorded(_: object, __: object, recording: Recording, **___: object) -> Record:
        limits.append(recording.limit_seconds)
        return Record(failure="seen enough")

    monkeypatch.setattr(losses, "record", recorded)
    arm = Arm(name="", command=("python",), folder=tmp_path)
    slow = dataclasses.replace(synthetic(1.0), startup_seconds=100.0)
    assert losses.compare((arm, arm), synthetic(1.0), slow).answer is LossAgreement.UNKNOWN
    assert set(limits) == {260.0}


def test_a_revision_keeps_what_kind_of_file_it_was(folder: Path):
    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], cwd=folder, check=True)

    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "linked.py").symlink_to("helper.py")
    git("add", "run.sh", "linked.py")
    git("commit", "-qm", "second")
    (folder / "run.sh").write_text("#!/bin/sh\ntrue\n")
    (folder / "linked.py").unlink()
    (folder / "linked.py").symlink_to("train.py")
    with since("HEAD", TRAIN, folder) as (before, _):
        assert os.access(before.folder / "run.sh", os.X_OK)
        assert os.readlink(before.folder / "linked.py") == "helper.py"
        assert (before.folder / "linked.py").resolve() == (before.folder / "helper.py").resolve()


def test_a_revision_has_its_files_as_git_checks_them_out(folder: Path):
    """A file may be stored otherwise, as git-lfs does."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], cwd=folder, check=True)

    git("config", "filter.capitals.clean", "tr a-z A-Z")
    git("config", "filter.capitals.smudge", "tr A-Z a-z")
    (folder / ".gitattributes").write_text("*.rows filter=capitals\n")
    (folder / "large.rows").write_text("one\n")
    git("add", ".gitattributes", "large.rows")
    git("commit", "-qm", "second")
    (folder / "large.rows").write_text("two\n")
    with since("HEAD", TRAIN, folder) as (before, _):
        assert (before.folder / "large.rows").read_text() == "one\n"


def test_a_file_may_have_become_a_folder_and_a_folder_a_file(folder: Path):
    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], cwd=folder, check=True)

    (folder / "model.py").write_text("one\n")
    (folder / "parts").mkdir()
    (folder / "parts" / "x.py").write_text("two\n")
    git("add", "model.py", "parts")
    git("commit", "-qm", "second")
    (folder / "model.py").unlink()
    (folder / "model.py").mkdir()
    (folder / "model.py" / "x.py").write_text("three\n")
    shutil.rmtree(folder / "parts")
    (folder / "parts").write_text("four\n")
    git("add", "-A")
    with since("HEAD", TRAIN, folder) as (before, _):
        assert (before.folder / "model.py").read_text() == "one\n"
        assert (before.folder / "parts" / "x.py").read_text() == "two\n"


def test_a_submodule_at_another_commit_is_refused(folder: Path):
    def git(*words: str, of: Path) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
        subprocess.run(["git", *name, *words], cwd=of, check=True, capture_output=True)

    other = folder.parent / "other"
    other.mkdir()
    git("init", "-q", of=other)
    git("commit", "-q", "--allow-empty", "-m", "one", of=other)
    git("submodule", "add", "-q", str(other), "sub", of=folder)
    git("commit", "-qm", "with it", of=folder)
    git("commit", "-q", "--allow-empty", "-m", "two", of=folder / "sub")
    with pytest.raises(UserError, match="submodule 'sub'"), since("HEAD", TRAIN, folder):
        pass


def test_a_patch_is_applied_to_a_copy(folder: Path):
    with patched(PATCH.encode(), "x.diff", TRAIN, folder) as (before, after):
        assert before.folder == folder
        assert (after.folder / "helper.py").read_text() == "PAUSE = 0.002\n"
    assert (folder / "helper.py").read_text() == "PAUSE = 0.004\n"


def test_a_patch_works_outside_of_a_repository(tmp_path: Path):
    folder = tmp_path / "plain"
    folder.mkdir()
    shutil.copy(HERE / "helper.py", folder)
    with patched(PATCH.encode(), "x.diff", TRAIN, folder) as (_, after):
        assert (after.folder / "helper.py").read_text() == "PAUSE = 0.002\n"


def test_absolute_paths_lead_to_the_patched_files(folder: Path, tmp_path: Path):
    (folder / ".venv").mkdir()
    outside = [folder / ".venv" / "python", tmp_path / "other.yaml"]
    for each in outside:
        each.write_text("")
    words = (str(outside[0]), str(folder / "train.py"), f"--a={folder}/helper.py", f"--b={outside[1]}")
    with patched(PATCH.encode(), "x.diff", words, folder) as (before, after):
        assert before.command == words
        assert after.command == (words[0], "train.py", "--a=helper.py", words[3])


@pytest.mark.parametrize("text", ["", "no diff", PATCH.replace("0.004", "0.005")])
def test_a_patch_that_does_not_apply_is_an_error(folder: Path, text: str):
    with pytest.raises(UserError, match="must apply"), patched(text.encode(), "x.diff", TRAIN, folder):
        pass


def test_a_patch_stays_in_its_folder(folder: Path, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("mine\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    for target in ("../secret.txt", "link.txt"):
        text = f"--- a/{target}\n+++ b/{target}\n@@ -1 +1 @@\n-mine\n+yours\n"
        with contextlib.suppress(UserError), patched(text.encode(), "x.diff", TRAIN, folder):
            pass
        assert (tmp_path / "secret.txt").read_text() == "mine\n"


def test_a_revision_must_exist_and_be_in_a_repository(folder: Path, tmp_path: Path):
    with pytest.raises(UserError, match="must be a revision"), since("no-such", TRAIN, folder):
        pass
    with pytest.raises(UserError, match="needs a git repository"), since("HEAD", TRAIN, tmp_path):
        pass


def test_a_revision_must_be_readable(folder: Path):
    (folder / "helper.py").unlink()
    words = ["git", "rev-parse", "HEAD:helper.py"]
    blob = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with (
        pytest.raises(UserError, match=r"read 'helper\.py' of 'HEAD', but fails"),
        since("HEAD", TRAIN, folder),
    ):
        pass


# -- the command ------------------------------------------------------------------------------------


def run(*words: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", "judge", *words], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "needs exactly one way"),
        (("--before", "python train.py"), "must both be given"),
        (("--ref", "HEAD"), "a command must follow"),
        (("--ref", "HEAD", "--patch", "x.diff", "--", "python"), "needs exactly one way"),
        (("--patch", "no.diff", "--", "python", "train.py"), "must be a file"),
        (("--before", "python 'train.py", "--after", "python train.py"), "No closing quotation"),
        (("--before", " ", "--after", "python train.py"), "`--before` must be a command line"),
        (("--ref", "HEAD", "--", "sbatch", "job.sh"), "`sbatch` starts it elsewhere"),
    ],
)
def test_nonsense_is_refused(words: tuple[str, ...], why: str):
    done = run(*words)
    assert done.returncode == 2
    assert why in done.stderr


@pytest.mark.soak
def test_a_faster_command_that_trains_otherwise():
    asked = [f"{sys.executable} train.py 0.012", "--after", f"{sys.executable} train.py 0.002 0.05"]
    done = run("--minutes", "0.3", "--require", "not-slower", "--before", *asked)
    assert done.returncode == 1, done.stderr
    assert "faster" in done.stdout
    assert "losses different: its learning rates differ" in done.stdout
    assert "The requirement (not-slower, and trains the same) is not met." in done.stdout


@pytest.mark.soak
def test_a_download_is_made_once_and_not_in_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv(UNPROTECTED, str(log))
    download = f"""
import os, torch
if not os.path.exists("data/all.bin"):
    os.makedirs("data", exist_ok=True)
    open("data/all.bin", "wb").write(bytes(2**21))
    open({str(log)!r}, "a").write("download\\n")
"""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("helper.py", "train.py"):
        shutil.copy(HERE / name, folder)
    (folder / "again.py").write_text(f"{download}\nimport train\n")
    again = (sys.executable, "again.py")
    found = judge(commands(again, again, folder), 0.5, print)
    assert found.training.answer is LossAgreement.EQUAL
    assert len(found.speed.before) > 1
    # The first two start at the same time.
    assert 1 <= log.read_text().count("download") <= 2
    assert not (folder / "data").exists()


@pytest.mark.slow
def test_a_version_that_fails_is_named():
    asked = [f"{sys.executable} train.py", "--after", f"{sys.executable} train.py nonsense"]
    done = run("--json", "--minutes", "0.3", "--before", *asked)
    assert done.returncode == 1
    assert "It cannot be judged: after: " in done.stderr
    assert json.loads(done.stdout)["error"].startswith("after: ")


def test_ratios_of_quiet_and_busy_rounds_are_said_where_there_are_both():
    arm = Arm(name="", command=(), folder=HERE)
    compared = SpeedComparison.of(
        Tally([1.0, 1.1, 1.0, 1.1]),
        [synthetic(1.0)] * 4,
        [synthetic(2.0)] * 4,
        quiet=PartialRatio(2.6, 2.4, 2.8, 2),
        busy=PartialRatio(3.2, 2.9, 3.5, 2),
    )
    verdict = Verdict(arms=(arm, arm), speed=compared, training=LossComparison(answer=LossAgreement.EQUAL))
    said = "\n".join(lines(verdict, None))
    assert "On a quiet machine: 2.6x (95% interval [2.4, 2.8], 2 starts)." in said
    assert "Beside other programs: 3.2x (95% interval [2.9, 3.5], 2 starts)." in said
    assert verdict.to_dict()["busy"] == {"ratio": 3.2, "low": 2.9, "high": 3.5, "rounds": 2}
    alone = dataclasses.replace(verdict, speed=dataclasses.replace(compared, busy=None))
    assert "quiet" not in "\n".join(lines(alone, None))


@pytest.mark.slow
def test_ctrl_c_after_the_first_start_gives_the_answer_so_far():
    asked = [f"{sys.executable} train.py 0.004", "--after", f"{sys.executable} train.py 0.0041"]
    command = [sys.executable, "-m", "sweeper", "judge", "--json", "--minutes", "9", "--before", *asked]
    with subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "start 1" in line:
                break
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        said, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 130
    found = json.loads(said)
    assert found["stopped"] is True
    assert found["rounds"] >= 1
    assert found["low"] < 1 < found["high"]


def test_what_both_versions_cost_is_said():
    def stats(value: float) -> Stats:
        return Stats(mean=value, p50=value, p95=value)

    telemetry = {"tree_mem_gib": stats(2.0), "cpu_power_w": stats(50.0)}
    found = dataclasses.replace(synthetic(100.0), telemetry=telemetry)
    arm = Arm(name="", command=(), folder=HERE)
    compared = SpeedComparison.of(Tally([0.1, 0.11, 0.09, 0.1]), [found] * 4, [found] * 4)
    verdict = Verdict(arms=(arm, arm), speed=compared, training=LossComparison(answer=LossAgreement.EQUAL))
    said = "\n".join(lines(verdict, None))
    assert "Memory: 2 GiB before, 2 GiB after." in said
    assert "Energy per sample: 0.5 J before, 0.5 J after." in said
    assert "GPU memory" not in said
