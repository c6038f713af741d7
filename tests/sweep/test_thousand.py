"""A thousand trials in one sweep: what a person waits for, and that nothing is lost in it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from thousand import write_sweep

TRIALS = 1000
SECONDS = 5.0
"""Of processor time for a whole process, twice what it takes: the clock would tell of the others' load."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("thousand")
    write_sweep(made, trials=TRIALS)
    write_sweep(made, "again", trials=TRIALS, seed=1, with_series=False)
    return made


def taken() -> float:
    """Processor seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best_of(home: Path, *arguments: str) -> tuple[str, float]:
    """What a command prints, and the processor seconds of the faster of two processes."""
    found = []
    for _ in range(2):
        start = taken()
        command = [sys.executable, "-m", "sweeper", *arguments, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
        found.append((done.stdout, taken() - start))
        assert done.returncode == 0, done.stderr
    return min(found, key=lambda each: each[1])


def test_list(home):
    out, seconds = best_of(home, "list")
    assert out.count(f"{TRIALS - 1} trials") == 2
    assert seconds < SECONDS


def test_show(home):
    out, seconds = best_of(home, "show", "thousand")
    assert len([line for line in out.splitlines() if line[:2] == "  " and line[2:5].isdigit()]) == TRIALS
    assert "What matters" in out
    assert seconds < SECONDS


def test_show_json(home):
    out, seconds = best_of(home, "show", "thousand", "--json")
    assert len(json.loads(out)["trials"]) == TRIALS
    assert seconds < SECONDS


def test_table(home):
    out, seconds = best_of(home, "show", "thousand", "--format", "csv")
    assert len(out.splitlines()) == TRIALS + 1
    assert seconds < SECONDS


def test_compare(home):
    out, seconds = best_of(home, "compare", "thousand", "again")
    assert "B's best and A's cannot be told apart" in out
    assert seconds < SECONDS
