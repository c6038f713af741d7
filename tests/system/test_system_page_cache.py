"""What is dropped from the kernel's memory is read from the disk again."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sweeper.system.files import drop_from_page_cache


def in_memory(path: Path) -> int:
    """Returns how many bytes of a file the kernel has in memory."""
    found = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True)
    return int(found.stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore")
def test_files_are_dropped_from_memory_and_stay_on_the_disk(tmp_path: Path):
    path = tmp_path / "deep" / "a"
    path.parent.mkdir()
    path.write_bytes(b"a" * 1_000_000)
    os.sync()
    assert in_memory(path) >= 1_000_000
    drop_from_page_cache(tmp_path)
    if in_memory(path):
        pytest.skip("this file system is memory")
    assert path.read_bytes() == b"a" * 1_000_000
    assert in_memory(path) >= 1_000_000
    drop_from_page_cache(path)
    assert in_memory(path) == 0


def test_what_is_not_there_is_no_fault(tmp_path: Path):
    drop_from_page_cache(tmp_path / "none")
