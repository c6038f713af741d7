"""Call 5: a script that nobody edits is tuned; what was found is run by `exec`, and written down."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_day.product import run_sweeper, shown_as_it_comes
from gpu_day.steps import ROOT, Day, FailedError

FOLDER = ROOT / "benchmarks" / "unedited"
SCRIPT = "pictures.py"
NAME = "tune-pictures"
MINUTES, REHEARSED_MINUTES = 4.0, 1.0
JUDGE_MINUTES, REHEARSED_JUDGE_MINUTES = 1.0, 0.3
RESERVE_SECONDS = 60.0


def tune(day: Day) -> str:
    """Tunes a script, as a newcomer would; measures `exec`; has the patch made and proved."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        options = (f"--home={home}", f"--minutes={REHEARSED_MINUTES if day.rehearse else MINUTES:g}")
        command = [sys.executable, "-m", "sweeper", "tune", *options, "--", sys.executable, SCRIPT]
        status, text = shown_as_it_comes(command, day.left() - RESERVE_SECONDS, FOLDER)
        proof = _read(home / "sweeps" / NAME / "proof.json")
        day.found(kind="tune", status=status, said=text[-8000:], proof=proof)
        if "left out" not in text and "equal" not in text:
            raise FailedError(f"exit {status}: nothing was proved or refused")
        if not proof or proof["fault"]:
            return f"exit {status}; {proof.get('fault') or 'nothing is handed over'}"
        found = json.loads(run_sweeper("show", NAME, f"--home={home}", "--json"))
        winner = found["winner"]
        _figure(day, "tuned / as it is", winner["ratio"], winner["ratio_low"], winner["ratio_high"])
        _run_again(day, home / "sweeps" / NAME / "best.yaml")
        _write_down(day, home)
        changes = " ".join(f"{name}={value}" for name, value in proof["changes"].items())
        return f"exit {status}; {winner['ratio']:.3g}x by {changes}"


def _run_again(day: Day, best: Path) -> None:
    minutes = REHEARSED_JUDGE_MINUTES if day.rehearse else JUDGE_MINUTES
    own = f"{sys.executable} {SCRIPT}"
    tuned = f"{sys.executable} -m sweeper exec {best} -- {own}"
    arguments = ("judge", f"--minutes={minutes:g}", "--json", f"--before={own}", f"--after={tuned}")
    judged: dict[str, Any] = json.loads(run_sweeper(*arguments, ok=(0, 1), folder=FOLDER))
    day.found(kind="judged", **judged)


def _write_down(day: Day, home: Path) -> None:
    command = [sys.executable, "-m", "sweeper", "export", NAME, f"--home={home}", "--format=patch", "--out=-"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    print(done.stderr[-3000:])
    day.found(kind="patch", status=done.returncode, text=done.stdout, said=done.stderr[-3000:])


def _figure(day: Day, name: str, value: float, low: float, high: float) -> None:
    from common import Figure

    day.figure(
        "tune", Figure(figure=f"{SCRIPT}: {name}", value=value, low=low, high=high, unit="x", repeats=1)
    )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
