"""Every search space we ship loads, its references build, and the quick one runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.errors import UserError
from sweeper.spec import load
from sweeper.sweep.fingerprint import fingerprint

REPOSITORY = Path(__file__).parents[1]
SPACES = sorted((REPOSITORY / "search_spaces").glob("*.yaml"))


@pytest.fixture(params=SPACES, ids=lambda path: path.stem)
def spec(request, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    return load(request.param)


def test_there_are_search_spaces():
    assert {path.stem for path in SPACES} >= {"a10", "quick"}


def test_its_references_build(spec):
    references = spec.references()
    assert len(references) == 1 + len(spec.also_try)
    assert len({each.key() for each in references}) == len(references)
    assert references[0].loader.kind == "rows"


def test_any_of_its_configurations_builds(spec):
    params = {name: parameter.first() for name, parameter in spec.space.items()}
    assert isinstance(spec.config(params), TrialConfig)
    assert spec.size() is None or spec.size() > spec.search.trials


def test_its_pipeline_is_there(spec):
    assert fingerprint(spec, "cpu")["code"]


def test_the_header_shows_commands_that_work(spec):
    path = next(path for path in SPACES if load(path).name == spec.name)
    lines = [line for line in path.read_text().splitlines() if line.startswith("#   sweeper run ")]
    assert lines
    for line in lines:
        words = line.removeprefix("#   ").split()
        assert words[2] == f"search_spaces/{path.name}"
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        asked = load(path, overrides)
        if "path" in asked.data:  # The reader's own data.
            with pytest.raises(UserError, match=r"`data.path` must exist"):
                fingerprint(asked, "cpu")


def test_quick_runs(tmp_path):
    changes = {
        "data.rows": 3000,
        "search.trials": 2,
        "confirm.rounds": 2,
        "confirm.top": 1,
        "measure.window_seconds": 0.05,
        "measure.warmup_cap_seconds": 0.1,
        "measure.quality_samples": 4000,
        "execution.launcher": "inline",
    }
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "sweeper", "run", "search_spaces/quick.yaml", "--home", str(tmp_path)]
    done = subprocess.run([*command, *sets], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    show = [sys.executable, "-m", "sweeper", "show", "quick", "--home", str(tmp_path), "--json"]
    found = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    assert found["state"] == "finished"
    assert [trial["stage"] for trial in found["trials"]].count("baseline") == 1
    assert len(found["trials"]) == 3
    assert found["baseline"]["metrics"]["val_loss"] > 0
