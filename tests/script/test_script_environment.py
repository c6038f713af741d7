"""Every run of a script sees the same of the user's environment: all but credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, time
assert os.environ["BARS"] == "bars of the shell"
assert "MY_SECRET_TOKEN" not in os.environ
for step in range(100_000):
    time.sleep(0.001)
    print(f"step {step} samples {8 * step}", flush=True)
"""
SPACE = """
name: bars
command: [python, train.py, --x, "{x}"]
script: {samples_per_step: 8, patterns: ["step (?P<step>[0-9]+)"], watch: false}
space: {x: {type: categorical, choices: [1, 2]}}
baseline: {x: 1}
measure: {window_seconds: 0.3, repeats: 2, warmup_cap_seconds: 1}
search: {trials: 2, minutes: 1}
confirm: {rounds: 0}
"""


@pytest.mark.slow
def test_a_trial_sees_what_the_shell_exports(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "bars.yaml").write_text(SPACE)
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "run", "bars.yaml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "BARS": "bars of the shell",
            "MY_SECRET_TOKEN": "do-not-tell-it",
            "SWEEPER_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Trials do not see MY_SECRET_TOKEN" in done.stdout + done.stderr
