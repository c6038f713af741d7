"""Loaders with other workers: equal in every bit, or as they were, with the reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

pytestmark = pytest.mark.slow

WITH_WORKERS = (
    *(
        "workers",
        "persistent",
        "prefetch",
        "lazy workers",
        "late workers",
        "hard workers",
        "shared persistent",
    ),
    *("shared workers", "in place workers"),
)
MIDWAY = ("midway workers", "midway persistent")
"""The training process changes its data set in the midst of a pass: seen at its end, and given up."""
DRAWS = "draws from a random generator"
REFUSED = {
    "init": "call a `worker_init_fn`",
    "by worker workers": "depends on the process that reads it",
    "by seed workers": "depends on the process that reads it",
    "noise workers": DRAWS,
}


SOME = "plain,batches,own order,noise,curriculum,nested,broken,prefetch,persistent"
"""Of the kinds, for `make check`."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("no_workers",), id="no_workers"),
        pytest.param(("cores", SOME), id="cores"),
        pytest.param(("cores",), id="all cores", marks=pytest.mark.soak),
    ],
)
def report(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    driver = str(Path(__file__).parent / "loaders.py")
    command = [sys.executable, "-W", "ignore", driver, *request.param]
    return request.param[0], completed(command).truth


def test_no_kind_of_loader_changes_what_is_trained(report):
    value, found = report
    # It draws from the machine's own entropy: not even two runs without a change are equal.
    differ = [kind for kind, each in found.items() if not each["equal"] and kind != "own unseeded"]
    assert differ == (sorted(MIDWAY) if value == "no_workers" else [])


def test_loaders_with_workers_read_their_rows_inline(report):
    value, found = report
    if value == "no_workers":
        assert {kind for kind, each in found.items() if each["applied"]} == {*WITH_WORKERS}


def test_changes_that_persistent_workers_do_not_see_are_given_up(report):
    value, found = report
    if value == "no_workers":
        for kind in ("late persistent", "hard persistent", "in place persistent", *MIDWAY):
            assert "the training changes its data set" in found[kind]["why"]


def test_loaders_without_workers_get_as_many_as_there_are_cores(report):
    value, found = report
    if value == "cores":
        assert found["plain"]["applied"]
        assert found["prefetch"]["applied"] == (len(os.sched_getaffinity(0)) != 1)
        assert DRAWS in found["noise"]["why"]


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_that_depend_on_their_reader_are_read_as_before(report, kind):
    value, found = report
    if value == "no_workers":
        assert not found[kind]["applied"]
        assert REFUSED[kind] in found[kind]["why"]
