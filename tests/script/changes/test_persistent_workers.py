"""Workers that live on: equal in every bit, or started anew in each pass, with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

pytestmark = pytest.mark.slow


SOME = "noise,seeded,lazy,batches,collate,counted,curriculum,global epoch,first row,text,no workers"
"""Of the kinds, for `make check`."""


@pytest.fixture(
    scope="module",
    params=[pytest.param((SOME,), id="some"), pytest.param((), id="all", marks=pytest.mark.soak)],
)
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    driver = str(Path(__file__).parent / "lasting_workers.py")
    return completed([sys.executable, "-W", "ignore", driver, *request.param]).truth


def test_no_kind_of_loader_changes_what_is_trained(report):
    assert [kind for kind, one in report.items() if not one["equal"]] == []


def test_workers_live_on_where_new_ones_would_read_the_same(report):
    harmless = [kind for kind, one in report.items() if not one["expected"] and kind != "no workers"]
    assert len(harmless) >= 20 or len(report) == len(SOME.split(","))
    assert {kind: report[kind]["why"] for kind in harmless if not report[kind]["applied"]} == {}


def test_workers_are_started_anew_where_they_would_read_something_else(report):
    harmful = {kind: one for kind, one in report.items() if one["expected"]}
    assert len(harmful) >= 20 or len(report) == len(SOME.split(","))
    assert [kind for kind, one in harmful.items() if one["applied"]] == []
    assert {kind: one["why"] for kind, one in harmful.items() if one["expected"] not in one["why"]} == {}


def test_a_loader_without_workers_is_left_alone(report):
    assert not report["no workers"]["applied"]
    assert not report["no workers"]["why"]
