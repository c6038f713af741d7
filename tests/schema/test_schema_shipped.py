"""Which file the name of a search space means, and what comes with sweeper."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.core.modules import shipped_folder
from sweeper.errors import UserError
from sweeper.schema.shipped import shipped_spaces, space_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_users_own_file_comes_first():
    shipped = shipped_folder("search_spaces") / "quick.yaml"
    assert space_file("quick") == space_file("quick.yaml") == shipped
    Path("quick").mkdir()
    assert space_file("quick") == shipped
    Path("search_spaces").mkdir()
    Path("search_spaces/quick.yaml").touch()
    assert space_file("quick") == space_file("quick.yaml") == Path("search_spaces/quick.yaml")
    Path("quick.yaml").touch()
    assert space_file("quick") == space_file("quick.yaml") == Path("quick.yaml")
    Path("quick").rmdir()
    Path("quick").touch()
    assert space_file("quick") == Path("quick")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("quik", "Did you mean `quick`?"),
        ("search_spaces/quick.yaml", "Did you mean `quick`?"),
        ("../quick", "Did you mean `quick`?"),
        ("a10.yml", "Did you mean `a10`?"),
        ("nothing at all", "but got 'nothing at all'. `sweeper spaces` lists them."),
        ("", "but got ''"),
        ("x" * 5000, "xxx'. `sweeper spaces` lists them."),
    ],
)
def test_what_is_neither_is_one_line(name: str, hint: str):
    with pytest.raises(UserError) as caught:
        space_file(name)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_there_but_no_file_is_left_to_whoever_reads_it():
    os.mkfifo("pipe")
    assert space_file("pipe") == Path("pipe")
    Path("folder").mkdir()
    assert space_file("folder") == Path("folder")


def test_each_says_what_it_is_for_in_a_line():
    spaces = shipped_spaces()
    assert {"quick", "a10", "stocks"} <= spaces.keys()
    assert all(about.endswith(".") and 20 < len(about) <= 100 for about in spaces.values()), spaces
