"""Fifty canaries in environment, addresses and command line: none is in what a sweep leaves or says."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import REPOSITORY, job_of

from sweeper.core.job import LOG, write_job
from sweeper.core.measurement import Failure
from sweeper.core.script import Script
from sweeper.launch.local import LocalLauncher
from sweeper.system.environment import PASS_ENV

YAML = """\
name: tiny
pipeline: talkative
data: {rows: 2000, features: 4}
space:
  batch_size: {type: int, low: 32, high: 256, log: true}
fix: {model.hidden_size: 8}
baseline: {loader.kind: rows, batch_size: 32, loader.drop_last: true}
also_try: [{loader.kind: rows, batch_size: 48, loader.drop_last: false}]
measure: {window_seconds: 0.05, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.1, trace: false}
search: {trials: 2, minutes: 5}
confirm: {top: 1, rounds: 2, precision: 0.9}
execution: {pass_env: [MYLAB_*, GIVEN]}
"""

TALKATIVE = """\
import os, sys, urllib.request
from pathlib import Path
from pipelines.tabular import build as _build
from pipelines.tabular import prepare as _prepare

def prepare(data):
    print(dict(os.environ))
    return _prepare(data)

def build(config, prepared):
    parent = os.getppid()
    above = [Path(f"/proc/{pid}/environ").read_bytes() for pid in (parent, _parent(parent))]
    seen = Path(os.environ["MYLAB_SEEN"])
    seen.write_bytes(b"\\0".join([*above, *(f"{k}={v}".encode() for k, v in os.environ.items())]))
    for name, value in os.environ.items():
        print(name, value)
        print(repr(value), file=sys.stderr)
        # As a pipe may cut it.
        for half in (value[:7], value[7:]):
            os.write(1, half.encode())
    if not config.loader.drop_last:
        values = " ".join(os.environ.values())
        try:
            raise OSError(f"no answer, tried {values}")
        except OSError as error:
            raise RuntimeError(f"cannot log in with {values}") from error
    return _build(config, prepared)

def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
"""

WRITERS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "SLURM_JWT", "SWEEPER_TOKEN", "TORCH_HUB_TOKEN"),
)


def planted() -> tuple[dict[str, str], list[str], list[str]]:
    """Returns variables with 50 canaries, the canaries, and the names that trials are given."""
    canaries = [f"cAnArY{secrets.token_hex(8)}" for _ in range(50)]
    values = iter(canaries)
    hidden = dict(zip((*WRITERS, *(f"OTHER_{i}_SECRET" for i in range(10))), values, strict=False))
    hidden |= {f"PYTHON_INDEX_{i}": f"https://me:{next(values)}@host/simple" for i in range(5)}
    hidden |= {f"DATABASE_{i}": f"postgresql://me:{next(values)}@host/x" for i in range(5)}
    given = {f"GIVEN_{i}_KEY": next(values) for i in range(12)}
    given |= {f"GIVEN_STORE_{i}": f"postgresql://me:{next(values)}@host/x" for i in range(6)}
    last = list(values)
    assert len(last) == 2
    return {**hidden, **given}, canaries, [*given]


def hits(folder: Path, canaries: list[str]) -> list[str]:
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        found += [f"{path}: {canary}" for canary in canaries if canary.encode() in data]
        found += [f"{path}: {canary}" for canary in canaries if canary in str(path)]
    return found


@pytest.mark.slow
def test_nothing_secret_is_left_behind_or_printed(tmp_path: Path):
    environ, canaries, given = planted()
    work, home, seen = tmp_path / "work", tmp_path / "work" / "mlruns", tmp_path / "seen"
    work.mkdir()
    shutil.copytree(
        REPOSITORY / "pipelines", work / "pipelines", ignore=shutil.ignore_patterns("__pycache__")
    )
    (work / "talkative.py").write_text(TALKATIVE)
    (work / "tiny.yaml").write_text(YAML.replace("GIVEN", ", ".join(given)))
    said: list[str] = []

    def sweeper(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", *arguments],
            cwd=work,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "MYLAB_SEEN": str(seen), **environ},
            capture_output=True,
            text=True,
            timeout=300,
        )
        said.append(done.stdout + done.stderr)
        assert done.returncode in codes, said[-1]
        return said[-1]

    on_command_line, in_address = canaries[-2:]
    sweeper("run", "tiny.yaml", "--set", f"data.path=postgresql://me:{on_command_line}@h/x", codes=(2,))
    told = sweeper("run", "tiny.yaml")
    for form in ("html", "md"):
        sweeper("report", "tiny", "--format", form)
    for form in ("yaml", "json", "sbatch"):
        sweeper("export", "tiny", "--format", form, "--out", f"best.{form}")
    shown = sweeper("show", "tiny", "--json")
    sweeper("show", "tiny", "--trial", "1")
    sweeper("sync", "tiny", "--tracking-uri", f"http://me:{in_address}@127.0.0.1:9", codes=(5, 7))
    sweeper("ui", "tiny", "--tracking-uri", f"http://me:{in_address}@127.0.0.1:9", codes=(5,))

    # They were all where they could have leaked from: the trial had what it was given, and printed it.
    present = seen.read_bytes()
    for name, value in environ.items():
        assert (f"{name}={value}".encode() in present) == (name in given), name
    assert json.loads(shown)["trials"][1]["outcome"] == "user_error"
    logs = [path.read_bytes() for path in home.glob("sweeps/tiny/trials/*/" + LOG)]
    assert len(logs) >= 3
    assert all(log.count(b"GIVEN_3_KEY ***") == 1 for log in logs)
    assert b"cannot log in with" in b"".join(logs)
    assert "***" in (home / "sweeps/tiny/trials/0001/outcome.json").read_text()
    assert (home / "mlflow.db").stat().st_size > 100_000
    # And none did.
    assert hits(work, canaries) == []
    assert [canary for canary in canaries for text in said if canary in text] == []

    line = next(text for text in told.splitlines() if text.startswith("Trials do not see "))
    assert "AWS_SECRET_ACCESS_KEY" in line
    assert "GIVEN" not in line
    assert "pass_env" in (work / "best.yaml").read_text()


DUMPING = """\
import os, pathlib
pathlib.Path(os.environ["MYLAB_SEEN"]).write_text(repr(dict(os.environ)))
raise SystemExit("RuntimeError: cannot log in with " + os.environ["MYLAB_TOKEN"])
"""


@pytest.mark.slow
def test_a_script_gets_as_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    canary, token = (f"cAnArY{secrets.token_hex(8)}" for _ in range(2))
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, canary)
    monkeypatch.setenv("MYLAB_TOKEN", token)
    monkeypatch.setenv("MYLAB_SEEN", str(tmp_path / "seen"))
    (tmp_path / "dump.py").write_text(DUMPING)
    script = Script(command=(sys.executable, str(tmp_path / "dump.py"), "{batch_size}"))
    folder = tmp_path / "home" / "job"
    names = ["MYLAB_SEEN", "MYLAB_TOKEN"]
    write_job(folder, job_of(script, {"batch_size": 1}, env={PASS_ENV: "\n".join(names)}))
    launcher = LocalLauncher(tmp_path / "home", pass_env=names)
    try:
        outcome: Any = launcher.submit(folder).result(timeout=120)
        server = Path(f"/proc/{launcher.pid}/environ").read_bytes()
    finally:
        launcher.close()
    assert isinstance(outcome, Failure)
    assert "cannot log in with ***" in outcome.message
    seen = (tmp_path / "seen").read_text()
    assert token in seen
    assert canary not in seen
    assert canary.encode() not in server
    assert hits(tmp_path / "home", [canary, token]) == []
