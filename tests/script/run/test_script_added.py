"""What a script adds before it trains is there for later runs, and what it adds later is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sweeper.core.script import Script
from sweeper.script.run.added import MIN_BYTES, Store
from sweeper.script.run.sandbox import Sandbox, make_sandbox


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "source"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "own.bin").write_text("the user's")
    (folder / "train.py").touch()
    return folder


def box_of(source: Path) -> Sandbox:
    scratch = source.parent.parent
    cache = scratch / "state" / "compile"
    cache.mkdir(parents=True, exist_ok=True)
    return make_sandbox(Script(command=(), folder=str(source)), {}, scratch / "work", scratch, str(cache))


def write(path: Path, num_bytes: int = MIN_BYTES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(num_bytes))


def step() -> int:
    """The time of a first step, as far from what was written as the clock of files tells."""
    time.sleep(0.02)
    now_ns = time.time_ns()
    time.sleep(0.02)
    return now_ns


def test_what_was_added_before_the_first_step_is_there_in_later_runs(source: Path):
    box = box_of(source)
    write(box.folder / "data" / "set" / "raw" / "rows.bin")
    write(box.folder / "cache.bin")
    write(box.folder / "small.bin", 10)
    write(box.folder / "runs" / "prepared" / "x.bin")
    write(box.folder / "runs" / "log.txt")
    moment_ns = step()
    write(box.folder / "runs" / "log.txt")
    write(box.folder / "ckpt" / "last.pt")
    kept = box.keep_added(moment_ns)
    paths = ["cache.bin", "data/set", "runs/prepared"]
    assert [(str(addition.path), addition.num_bytes) for addition in kept] == [
        (f"source/{path}", MIN_BYTES) for path in paths
    ]
    # The run's own files stay complete.
    assert (box.folder / "cache.bin").stat().st_size == MIN_BYTES
    box.remove()
    later = box_of(source)
    assert all((later.folder / path).exists() for path in paths)
    assert not (later.folder / "data").is_symlink()
    names = {path.name for path in later.folder.iterdir()}
    assert names == {"train.py", "data", "cache.bin", "runs"}
    assert {path.name for path in source.iterdir()} == {"train.py", "data"}
    assert later.keep_added(time.time_ns()) == []


def test_what_the_user_has_by_now_is_the_users(source: Path):
    box = box_of(source)
    write(box.folder / "cache.bin")
    box.keep_added(step())
    (source / "cache.bin").write_text("the user's")
    assert (box_of(source).folder / "cache.bin").read_text() == "the user's"


def test_what_changed_of_the_users_is_not_kept(source: Path):
    box = box_of(source)
    os.unlink(box.folder / "data" / "own.bin")
    write(box.folder / "data" / "own.bin")
    assert box.keep_added(step()) == []


def test_nothing_is_kept_twice(source: Path):
    first, second = box_of(source), box_of(source)
    write(first.folder / "cache.bin")
    moment_ns = step()
    assert len(first.keep_added(moment_ns)) == 1
    write(second.folder / "cache.bin")
    assert second.keep_added(step()) == []


def test_a_store_without_an_index_is_empty(tmp_path: Path):
    assert Store(tmp_path / "compile", tmp_path).paths() == []
