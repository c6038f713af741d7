"""Temporary folders of runs: removed at their end, or at the next start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweeper.script.run.scratch import PREFIX, scratch_folder, sweep

HOLD = "from sweeper.script.run.scratch import *\nwith scratch_folder() as f: print(f, flush=True); input()"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_at_its_end(place: Path):
    with scratch_folder() as folder:
        (folder / "locked").mkdir()
        (folder / "locked" / "file").touch()
        (folder / "locked").chmod(0o500)
        sweep()
        assert (folder / "locked" / "file").exists()
    assert list(place.iterdir()) == []


def test_a_folder_whose_process_was_killed_is_removed_at_the_next_start(place: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        with scratch_folder():
            assert folder.is_dir()
        process.kill()
        process.wait()
        with scratch_folder() as other:
            assert list(place.iterdir()) == [other]


def test_what_others_made_stays(place: Path):
    (place / f"{PREFIX}file").touch()
    (place / "sweeper-other").mkdir()
    (place / f"{PREFIX}link").symlink_to(place / "sweeper-other")
    sweep()
    assert len(list(place.iterdir())) == 3
