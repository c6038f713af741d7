"""Which folder a run is in: gone on with, shown, refused, or another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from productions import block, commit, values_of, write

from sweeper.core.job import write_outcome
from sweeper.core.measurement import Failure, FailureKind, Report
from sweeper.core.training import HISTORY
from sweeper.errors import EnvironmentStopError, SweepConflictError
from sweeper.production.folder import RUN, SYSTEM, RunFolder, open_run
from sweeper.production.request import RunRequest


def begun(home: Path, wanted: RunRequest, *, new: bool = False, ended: str = "") -> RunFolder:
    """The folder of a run which has ended like this; empty: that was killed."""
    folder = open_run(home, wanted, new=new)
    if ended:
        folder.job.mkdir()
        write_outcome(folder.job, Report(values=values_of(ended=ended)))
    folder.lock.release()
    return folder


@pytest.mark.parametrize("ended", ["", "stopped", "time"])
def test_the_same_again_goes_on(ended: str, here: Path, ask: Any):
    first = begun(here / "home", ask(), ended=ended)
    assert (first.name, first.continued) == ("lines-007", False)
    assert first.path == here / "home" / "train" / "lines-007"
    again = begun(here / "home", ask(max_minutes=9.0))
    assert (again.path, again.uid, again.began_at, again.continued) == (
        first.path,
        first.uid,
        first.began_at,
        True,
    )
    assert not again.is_finished(0.0)


@pytest.mark.parametrize(
    ("ended", "max_seconds", "finished"),
    [
        ("epochs", 0.0, True),
        ("epochs", 99.0, True),
        ("patience", 0.0, True),
        ("stopped", 0.0, False),
        # It took 12 seconds.
        ("time", 12.0, True),
        ("time", 5.0, True),
        ("time", 12.1, False),
        ("time", 0.0, False),
    ],
)
def test_whether_anything_is_left_to_train(
    ended: str, max_seconds: float, finished: bool, here: Path, ask: Any
):
    assert begun(here / "home", ask(), ended=ended).is_finished(max_seconds) == finished


def test_one_that_failed_is_not_finished(folder: RunFolder):
    folder.job.mkdir()
    write_outcome(folder.job, Failure(kind=FailureKind.NON_FINITE, message="inf"))
    assert folder.report() is None
    assert not folder.is_finished(0.0)


@pytest.mark.parametrize("ended", ["", "stopped"])
def test_an_unfinished_one_of_another_configuration_is_refused(ended: str, here: Path, ask: Any):
    begun(here / "home", ask(), ended=ended)
    with pytest.raises(SweepConflictError) as caught:
        open_run(
            here / "home", ask("config.batch_size=96", "config.loader.kind=workers", epochs=5), new=False
        )
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "`lines-007` is unfinished and has another configuration:\n"
        "  config.batch_size: 48 -> 96\n"
        '  config.loader.kind: "resident" -> "workers"\n'
        "  train.epochs: 3 -> 5\n"
        "Resume it with its own configuration, or start another run with --new."
    )
    assert [path.name for path in (here / "home" / "train").iterdir()] == ["lines-007"]


@pytest.mark.parametrize("ended", ["epochs", "patience", "time"])
def test_beside_a_finished_one_another_configuration_is_another_run(ended: str, here: Path, ask: Any):
    first = begun(here / "home", ask(), ended=ended)
    other = begun(here / "home", ask(epochs=5))
    assert (other.name, other.continued) == ("lines-007-2", False)
    assert other.uid != first.uid
    assert begun(here / "home", ask(epochs=5)).uid == other.uid
    # The first one is still found by what it was.
    assert begun(here / "home", ask()).uid == first.uid


def test_new_is_another_one_whatever_is_there(here: Path, ask: Any):
    home = here / "home"
    names = [begun(home, ask(), new=True).name for _ in range(3)]
    assert names == ["lines-007", "lines-007-2", "lines-007-3"]
    assert begun(home, ask(epochs=5), new=True).name == "lines-007-4"


@pytest.mark.parametrize(("ended", "schema"), [("", 1), ("epochs", 1), ("", 3)])
def test_one_of_another_version_does_not_go_on_unless_a_later_one_is_there(
    ended: str, schema: int, here: Path, ask: Any
):
    home = here / "home"
    first = begun(home, ask(), ended=ended)
    path = first.path / RUN
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    with pytest.raises(SweepConflictError, match=r"`lines-007` was written by another version .* Add --new"):
        open_run(home, ask(), new=False)
    second = begun(home, ask(), new=True)
    assert (begun(home, ask()).uid, second.name) == (second.uid, "lines-007-2")
    assert begun(home, ask(epochs=5), new=True).name == "lines-007-3"


@pytest.mark.parametrize("ended", ["", "epochs"])
def test_of_several_of_the_same_the_latest_goes_on(ended: str, here: Path, ask: Any):
    begun(here / "home", ask(), ended=ended)
    latest = begun(here / "home", ask(), new=True)
    again = begun(here / "home", ask())
    assert (again.uid, again.continued) == (latest.uid, True)


def test_one_that_is_held_is_refused(folder: RunFolder, here: Path, ask: Any):
    before = (folder.path / RUN).read_text()
    with pytest.raises(SweepConflictError, match="is being run by process") as caught:
        open_run(here / "home", ask(), new=False)
    assert caught.value.exit_code == 3
    assert (folder.path / RUN).read_text() == before


def test_a_folder_in_which_nothing_has_begun_is_free(here: Path, ask: Any):
    # Killed between making it and saying what it is for.
    (here / "home" / "train" / "lines-007").mkdir(parents=True)
    assert begun(here / "home", ask()).name == "lines-007"


def test_outcomes_are_put_aside_and_none_is_lost(folder: RunFolder):
    folder.job.mkdir()
    folder.reopen()
    for number in range(2):
        write_outcome(folder.job, Report(values=values_of(ended="stopped", epochs=number)))
        (folder.job / "worker.log").write_text(f"log {number}")
        folder.reopen()
        assert folder.report() is None
    logs = sorted(folder.job.glob("attempt-*-worker.log"))
    assert [path.read_text() for path in logs] == ["log 0", "log 1"]


def test_only_what_a_checkpoint_knows_of_is_history(folder: RunFolder):
    assert (folder.committed_bytes(), list(folder.history())) == (0, [])
    write(folder, block(1, 1.0))
    assert list(folder.history()) == []
    commit(folder)
    write(folder, block(2, 2.0))
    assert [line["steps"] for line in folder.history()] == [1]
    commit(folder)
    assert [line["steps"] for line in folder.history()] == [1, 2]


def test_what_is_not_committed_is_forgotten_and_half_lines_with_it(folder: RunFolder):
    folder.forget_uncommitted()
    write(folder, block(1, 1.0))
    commit(folder)
    write(folder, block(2, 2.0))
    write(folder, {"means": {}}, name=SYSTEM)
    with open(folder.path / SYSTEM, "a") as file:
        file.write('{"means": {"cpu')
    assert len(list(folder.system())) == 1
    folder.forget_uncommitted()
    assert (folder.path / HISTORY).stat().st_size == folder.committed_bytes()
    write(folder, {"means": {}}, name=SYSTEM)
    assert len(list(folder.system())) == 2


def test_before_the_first_checkpoint_nothing_is_kept(folder: RunFolder):
    write(folder, block(1, 1.0))
    folder.forget_uncommitted()
    assert (folder.path / HISTORY).read_text() == ""


def test_a_file_in_the_place_of_a_run_is_one_line_and_stays(here: Path, ask: Any):
    path = here / "home" / "train" / "lines-007"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(EnvironmentStopError, match=r"train/lines-007: File exists.*Move away the file"):
        begun(here / "home", ask())
    assert path.read_text() == "mine"
