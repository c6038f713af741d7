"""System calls that fail, and processes that are left behind: a few of each."""

from __future__ import annotations

import shutil

import pytest
from chaos.chaos_harness import harness


@pytest.mark.parametrize("count", [2])
def test_a_leak_zoo(count: int):
    found = harness("chaos_zoo.py", count, 1)
    assert found["violations"] == []
    assert found["count"] == count


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no `cc` to compile the shim with")
def test_system_calls_that_fail():
    found = harness("chaos_syscalls.py", "ALL", 400, 60)
    assert found["violations"] == []
    assert found["met"] >= found["count"] - 1 >= 2
