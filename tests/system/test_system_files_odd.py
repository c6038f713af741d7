"""Temporary files that were left, links in their place, and JSON files that are none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sweeper.core.job import CONFIG, Job, read_job, write_job
from sweeper.errors import EnvironmentStopError
from sweeper.sweep.folder.lock import SweepLock
from sweeper.system.files import read_json, reading, remove_temporaries, write_atomic


def temporary_of(path: Path, pid: int) -> Path:
    return path.with_name(f".{path.name}.{pid}.tmp")


def gone() -> int:
    """A process number that nobody has."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_what_a_killed_process_of_this_number_left_is_no_obstacle(tmp_path: Path):
    path = tmp_path / "a.json"
    temporary_of(path, os.getpid()).write_text("half")
    write_atomic(path, "whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_through_a_link(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.json"
    temporary_of(path, os.getpid()).symlink_to(outside)
    path.symlink_to(outside)
    write_atomic(path, "whole")
    assert outside.read_text() == "mine"
    assert not path.is_symlink()
    assert path.read_text() == "whole"
    (folder / "0001").symlink_to(tmp_path)
    with pytest.raises(EnvironmentStopError, match="0001 must be a folder, but it is a link"):
        write_job(folder / "0001", Job(uid="x"))
    assert not (tmp_path / CONFIG).exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "lock").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic"):
        SweepLock(folder)
    assert outside.read_text() == "mine"


def test_temporaries_of_the_dead_go_when_a_sweep_is_opened(tmp_path: Path):
    folder = tmp_path / "sweep"
    trial = folder / "trials" / "0001"
    trial.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "elsewhere").symlink_to(outside)
    dead = gone()
    left = [temporary_of(each / "outcome.json", dead) for each in (trial, folder, outside)]
    alive = temporary_of(trial / "outcome.json", os.getppid())
    others = [trial / ".notes.tmp", trial / ".a.x.tmp", trial / f"a.{dead}.tmp"]
    for path in (*left, alive, *others):
        path.write_text("")
    SweepLock(folder).release()
    assert [path.exists() for path in left] == [False, False, True]
    assert alive.exists()
    assert all(path.exists() for path in others)
    remove_temporaries(tmp_path / "none")


@pytest.mark.parametrize("how", ["fifo", "folder", "zero", "huge"])
def test_json_is_read_from_a_file_that_ends(tmp_path: Path, how: str):
    path = tmp_path / CONFIG
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "zero":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(2**32)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        read_json(path)
    with pytest.raises(EnvironmentStopError, match="Restore it, or remove"):
        read_job(tmp_path)


def test_a_line_on_a_spoilt_file_is_short_and_one(tmp_path: Path):
    with pytest.raises(EnvironmentStopError) as caught, reading(tmp_path / "a", "Remove it"):
        raise ValueError("x\ny" * 1000)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < len(str(tmp_path)) + 300
    assert text.endswith("Nothing was changed. Remove it.")
    with pytest.raises(FileNotFoundError), reading(tmp_path / "a", "Remove it"):
        raise FileNotFoundError
