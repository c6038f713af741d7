"""What the tests themselves run on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = {
    "OMP_NUM_THREADS": "1",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:1",
    "SWEEPER_HOME": "/nowhere",
    "PYTHONWARNINGS": "error",
    "PYTHONPATH": "/nowhere",
    "http_proxy": "http://127.0.0.1:1",
    "WORLD_SIZE": "2",
    "LC_ALL": "C",
}


@pytest.mark.skipif(
    os.environ.get("CI") != "true" or "TORCH" in os.environ,
    reason="only where CI installs the versions of constraints.txt, without a GPU",
)
def test_ci_has_a_cpu_build_of_torch():
    import torch

    assert torch.version.cuda is None, "several GB of CUDA packages were installed for nothing"


def test_nothing_is_left_of_the_callers_variables():
    assert not HOSTILE.items() & os.environ.items()
    assert sys.warnoptions == []


def test_a_run_does_not_depend_on_its_callers_variables():
    """Nor do the processes that run its tests."""
    this = f"{Path(__file__)}::{test_nothing_is_left_of_the_callers_variables.__name__}"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", this],
        capture_output=True,
        text=True,
        env={**os.environ, **HOSTILE},
        cwd=Path(__file__).parents[1],
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
