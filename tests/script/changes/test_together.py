"""Rows that are read together: equal in every bit, or read one by one, with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["tables.py", pytest.param("loaders.py", marks=pytest.mark.soak)])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    driver = str(Path(__file__).parent / request.param)
    return completed([sys.executable, "-W", "ignore", driver, "batched"]).truth


def test_no_data_set_trains_otherwise(report):
    # It draws from the machine's own entropy: not even two runs without a change are equal.
    assert [kind for kind, one in report.items() if not one["equal"] and kind != "own unseeded"] == []


def test_rows_are_read_together_where_they_stay_the_same(report):
    harmless = {kind: one for kind, one in report.items() if one.get("expected") == ""}
    assert {kind: one["why"] for kind, one in harmless.items() if not one["applied"]} == {}
    assert "plain" not in report or report["plain"]["applied"]


def test_rows_are_read_one_by_one_where_they_would_differ(report):
    harmful = {kind: one for kind, one in report.items() if one.get("expected")}
    assert [kind for kind, one in harmful.items() if one["applied"]] == []
    assert {kind: one["why"] for kind, one in harmful.items() if one["expected"] not in one["why"]} == {}
