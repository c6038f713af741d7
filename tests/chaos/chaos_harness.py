"""Runs a script of the harness in a process of its own, as `benchmarks/chaos.py` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def harness(script: str, *words: object) -> dict[str, Any]:
    """Runs one of the harness's scripts; returns what it has printed."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
