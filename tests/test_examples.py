"""The examples run as their README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        # As in a shell where the environment is active: the script's `python` is this one.
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "space"), [pytest.param("script", "train", marks=pytest.mark.soak), ("pipeline", "moons")]
)
def test_an_example_is_swept_and_its_results_are_read(name: str, space: str, tmp_path: Path):
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    folder = tmp_path / "examples" / name
    shortly = (
        *("search.trials=1", "confirm.rounds=0", "measure.warmup_cap_seconds=1"),
        *("measure.window_seconds=0.5", "measure.repeats=1", "measure.quality_samples=2000"),
    )
    sets = [word for each in shortly for word in ("--set", each)]
    said = run(folder, "-m", "sweeper", "run", f"{space}.yaml", *sets)
    assert f"example-{name}: " in said
    table = run(folder, "../results.py", f"example-{name}")
    assert "throughput" in table
    assert len(table.splitlines()) > 2
