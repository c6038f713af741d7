"""Atomic files: a reader sees all of one or nothing, and what was acknowledged survives a power cut."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest

from sweeper.core.job import OUTCOME, read_outcome
from sweeper.system.files import read_json, write_atomic, write_json


def in_a_child(function) -> int:
    """Runs `function` in a forked child, and returns the wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


def test_killed_between_write_and_rename_the_old_file_is_whole(tmp_path: Path):
    path = tmp_path / OUTCOME
    write_atomic(path, "old")

    def killed_in_rename():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_atomic(path, "new" * 100_000)

    assert os.WTERMSIG(in_a_child(killed_in_rename)) == signal.SIGKILL
    assert path.read_text() == "old"
    assert read_outcome(tmp_path / "other") is None


def test_the_data_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path: Path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    write_atomic(tmp_path / "a", "text")
    assert calls == ["fsync", "rename", "fsync"]


def test_an_error_leaves_no_temporary_file(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(tmp_path / "a", "text")
    assert list(tmp_path.iterdir()) == []


def test_nan_never_reaches_a_file_and_odd_text_does(tmp_path: Path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a", {"x": math.nan})
    write_json(tmp_path / "a", {"x": "straße \udcff"})
    assert read_json(tmp_path / "a")["x"].startswith("straße")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
