"""The empty store of scripts that log to MLflow."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweeper.tracking.script_store import empty_store


@pytest.mark.slow
def test_sweeps_that_begin_at_the_same_moment_share_one_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(empty_store, [tmp_path] * 2)
    assert first == second
    database, run_id = first
    with contextlib.closing(sqlite3.connect(database)) as store:
        assert store.execute("SELECT run_uuid FROM runs").fetchall() == [(run_id,)]
