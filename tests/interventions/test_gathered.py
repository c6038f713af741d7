"""Gathered loaders: equal in every bit, or refused with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

GATHERED = (
    *("plain", "tensors", "workers", "persistent", "prefetch", "init", "in order", "drop last", "own order"),
    *("weighted", "subset", "batches", "lazy", "lazy workers", "negative", "single", "keys", "named"),
    *("nested", "keyed", "midway workers"),
    # Persistent workers keep the data set as it was in the first pass.
    *("late persistent", "hard persistent", "in place persistent", "midway persistent"),
)
DRAWS = "draws from a random generator"
DIFFERS = "differs when it is read again"
REFUSED = {
    **dict.fromkeys(("rows", "stream"), "come as a stream"),
    **dict.fromkeys(
        ("noise", "noise workers", "numpy noise", "python noise", "own generator", "mixed"), DRAWS
    ),
    **dict.fromkeys(
        (
            "by worker workers",
            "by seed workers",
            "curriculum",
            "by_length",
            "normalised",
            "rotated",
            "turned",
            *("late workers", "hard workers", "in place workers", "shared workers", "shared persistent"),
        ),
        DIFFERS,
    ),
    "own unseeded": DIFFERS,
    "ragged": "expects each tensor to be equal size",
    "odd keys": "parts of type dict",
    "text": "parts of type str",
    "with_size": "parts of type int",
    "broken": "a broken row",
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "loaders.py"), "gathered"]
    return completed(command).truth


def test_all_kinds_are_known(report):
    assert {*report} == {*GATHERED, *REFUSED}


@pytest.mark.parametrize("kind", GATHERED)
def test_a_gathered_loader_gives_equal_batches_and_leaves_equal_generators(report, kind):
    assert report[kind] == {"equal": True, "applied": True, "why": "", "error": ""}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_must_not_be_gathered_is_refused(report, kind):
    found = report[kind]
    assert not found["applied"]
    assert REFUSED[kind] in found["why"]
    # It draws from the machine's own entropy: not even two runs without a change are equal.
    assert found["equal"] or kind == "own unseeded"


def test_a_broken_row_raises_in_the_script_itself(report):
    assert report["broken"]["error"] == "a broken row"
