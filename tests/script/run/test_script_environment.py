"""Every run of a script sees the same of the user's environment: all but credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, time
path = os.path.join(os.environ["SEEN"], f"{os.environ.get('SWEEPER_INJECT', 'none')[:40]}-{os.getpid()}.json")
with open(path.replace("{", "").replace('"', ""), "w") as file:
    json.dump(dict(os.environ), file)
assert os.environ["BARS"] == "bars of the shell"
for step in range(100_000):
    time.sleep(0.001)
    print(f"step {step} samples {8 * step}", flush=True)
"""
SPACE = """
name: bars
command: [python, train.py, --x, "{x}"]
script: {samples_per_step: 8, patterns: ["step (?P<step>[0-9]+)"], watch: false, unprotected: [seen]}
space: {x: {type: categorical, choices: [1, 2]}}
baseline: {x: 1}
measure: {window_seconds: 0.3, repeats: 2, warmup_cap_seconds: 1}
search: {trials: 1, minutes: 1}
confirm: {rounds: 0}
"""
COMMANDS = {
    "watch": ("watch", "--unprotected", "seen", "--", "python", "train.py"),
    "judge": (
        *("judge", "--unprotected", "seen", "--minutes", "0.1"),
        *("--before", "python train.py", "--after", "python train.py"),
    ),
    "trial": ("run", "bars.yaml"),
}
SHELL = {
    "BARS": "bars of the shell",
    "AWS_REGION": "eu-central-1",
    "OMP_NUM_THREADS": "3",
    "MY_SECRET_TOKEN": "do-not-tell-it",
    "OTHER_TOKEN": "tell-it-to-the-script",
}


def run_there(folder: Path, *words: str) -> tuple[str, list[dict[str, str]]]:
    """Runs sweeper; returns what it printed and the environments that the script has seen."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "bars.yaml").write_text(SPACE)
    (folder / "seen").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("SWEEPER_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SEEN": str(folder / "seen"),
            "SWEEPER_HOME": str(folder / "home"),
            **SHELL,
        },
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert (folder / "seen").is_dir(), said
    seen = [json.loads(path.read_text()) for path in (folder / "seen").iterdir()]
    assert seen, said
    return " ".join(said.split()), seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["watch", pytest.param("judge", marks=pytest.mark.soak), "trial"])
def test_a_script_sees_what_the_shell_exports_but_no_credentials(kind: str, tmp_path: Path):
    command, *words = COMMANDS[kind]
    said, seen = run_there(tmp_path, command, "--pass-env", "OTHER_TOKEN", *words)
    for environment in seen:
        expected = {**SHELL, "MY_SECRET_TOKEN": None}
        assert {name: environment.get(name) for name in SHELL} == expected
    assert "not see MY_SECRET_TOKEN. To pass it on, use --pass-env NAME" in said
