"""Gathered loaders: equal in every bit, or refused with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable
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


WITH_WORKERS = ("workers", "persistent", "prefetch", "init")


def is_slow(kind: str) -> bool:
    """Whether a kind starts processes in each pass."""
    return any(word in kind for word in WITH_WORKERS)


def marked(kinds: Iterable[str]) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) if is_slow(kind) else kind for kind in kinds]


def report_on(which: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "loaders.py"), "gathered", which]
    return completed(command).truth


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_on("none")


@pytest.fixture(scope="module")
def report_with_workers() -> dict[str, Any]:
    return report_on("workers")


@pytest.fixture
def said(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    """What the report says of a kind."""
    of_kinds = request.getfixturevalue("report_with_workers" if is_slow(kind) else "report")
    return dict(of_kinds[kind])


@pytest.mark.slow
def test_all_kinds_are_known(report, report_with_workers):
    assert {*report, *report_with_workers} == {*GATHERED, *REFUSED}
    assert {*report_with_workers} == {*filter(is_slow, (*GATHERED, *REFUSED))}


@pytest.mark.parametrize("kind", marked(GATHERED))
def test_a_gathered_loader_gives_equal_batches_and_leaves_equal_generators(said, kind):
    assert said == {"equal": True, "applied": True, "why": "", "error": ""}


@pytest.mark.parametrize("kind", marked(REFUSED))
def test_what_must_not_be_gathered_is_refused(said, kind):
    assert not said["applied"]
    assert REFUSED[kind] in said["why"]
    # It draws from the machine's own entropy: not even two runs without a change are equal.
    assert said["equal"] or kind == "own unseeded"


def test_a_broken_row_raises_in_the_script_itself(report):
    assert report["broken"]["error"] == "a broken row"
