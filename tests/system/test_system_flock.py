"""Locks on files and folders."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.system.flock import open_locked, take_lock


def is_free(path: Path, *, shared: bool = False) -> bool:
    with contextlib.suppress(BlockingIOError), open_locked(path, wait=False, shared=shared):
        return True
    return False


def test_a_file_is_locked_until_it_is_closed_and_keeps_its_text(tmp_path: Path):
    path = tmp_path / "lock"
    path.write_text("whose it is")
    with open_locked(path):
        assert not is_free(path)
    assert is_free(path)
    assert path.read_text() == "whose it is"


def test_a_shared_lock_keeps_out_those_that_do_not_share_it(tmp_path: Path):
    path = tmp_path / "lock"
    with open_locked(path, shared=True) as file:
        assert is_free(path, shared=True)
        assert not is_free(path)
        take_lock(file, wait=False)
        assert not is_free(path, shared=True)


def test_a_process_that_inherits_the_descriptor_holds_the_lock(tmp_path: Path):
    folder = os.open(tmp_path, os.O_RDONLY)
    take_lock(folder)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[folder])
    os.close(folder)
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            take_lock(other, wait=False)
        child.communicate(b"\n")
        take_lock(other, wait=False)
    finally:
        os.close(other)
        child.kill()
        child.wait()
