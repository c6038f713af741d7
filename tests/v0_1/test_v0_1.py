"""What version 0.1.0 left on disk opens and goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from v0_1.folders import lay_out

from sweeper.core import job as jobs
from sweeper.core.codec import encode
from sweeper.core.config import LATER
from sweeper.core.job import Job, read_job, read_outcome
from sweeper.core.measurement import Measurement
from sweeper.sweep.store.journal import Journal
from sweeper.sweep.store.load import load_sweep, summarise
from sweeper.sweep.store.result import encode_result
from sweeper.worker.runners import RUNNERS

REPOSITORY = Path(__file__).parents[2]
NAMES = ("finished", "half", "script")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, to be read only."""
    return lay_out(tmp_path_factory.mktemp("v0_1").resolve())


def sweeper(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def lost(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yields what a file had and has no more after it was read and written again."""
    if isinstance(old, Mapping):
        for key, value in old.items():
            if key not in new:
                yield f"{path}.{key}"
            else:
                yield from lost(value, new[key], f"{path}.{key}")
    elif isinstance(old, list) and len(old) == len(new):
        for i, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from lost(left, right, f"{path}[{i}]")
    elif old != new:
        yield f"{path}: {old!r} is now {new!r}"


def test_nothing_is_lost_of_configurations_and_outcomes(home: Path):
    configs, outcomes = 0, 0
    for path in home.rglob(jobs.CONFIG):
        old = json.loads(path.read_text())
        job = read_job(path.parent)
        new = encode(job) | {"schema": jobs.SCHEMA}
        assert job.folder == str(path.parent)
        assert not list(lost({**old, "folder": str(path.parent)}, new, path.parent.name))
        configs += 1
    for path in home.rglob(jobs.OUTCOME):
        outcome = read_outcome(path.parent)
        old = json.loads(path.read_text())
        new = encode(outcome) | {"schema": jobs.SCHEMA, "type": type(outcome).__name__.lower()}
        assert not list(lost(old, new, path.parent.name))
        outcomes += 1
    assert (configs, outcomes) == (56, 55)


def test_each_runner_of_a_job_can_be_imported():
    for name in RUNNERS:
        assert callable(jobs_runner(name))
    stored = {read for read in vars(jobs).values() if isinstance(read, str) and read in RUNNERS}
    assert stored == set(RUNNERS)


def jobs_runner(name: str) -> Any:
    from sweeper.worker.runners import runner_of

    return runner_of(Job(uid="u", runner=name))


def test_a_finished_sweep_is_summarised_as_it_was(home: Path):
    summary = summarise(load_sweep(Journal(home / "sweeps/finished")))
    result = json.loads((home / "sweeps/finished/result.json").read_text())
    assert summary.state == "finished"
    assert summary.winner is not None
    assert summary.winner.number == result["winner"] == 3
    assert summary.ratio is not None
    assert summary.ratio.ratio == result["ratios"][0]["ratio"]
    assert len(summary.records) == 5
    assert {record.quality is not None for record in summary.records} == {True}


def test_a_result_is_read_and_written_as_it_was(home: Path):
    for name in ("finished", "script"):
        stored = (home / f"sweeps/{name}/result.json").read_text()
        result = Journal(home / f"sweeps/{name}").result()
        assert result is not None
        # The order of the keys counts too.
        assert json.dumps(encode_result(result)) == json.dumps(json.loads(stored))


def test_a_script_is_summarised_as_it_was(home: Path):
    summary = summarise(load_sweep(Journal(home / "sweeps/script")))
    assert summary.winner is not None
    measured = summary.winner.measurement
    assert isinstance(measured, Measurement)
    assert measured.reported_by == "the output (samples_per_s)"


def test_all_are_listed_and_shown(home: Path):
    listed = json.loads(sweeper(home.parent, "list", "--json"))
    assert {each["name"]: each["state"] for each in listed} == {
        "finished": "finished",
        "half": "unfinished",
        "script": "finished",
    }
    for name in NAMES:
        shown = json.loads(sweeper(home.parent, "show", name, "--json"))
        trials = [
            json.loads(path.read_text())
            for path in sorted((home / f"sweeps/{name}").glob("trials/*/config.json"))
        ]
        assert [each["number"] for each in shown["trials"]] == list(range(len(trials)))


def test_a_finished_sweep_is_exported_and_reported(tmp_path: Path):
    home = lay_out(tmp_path.resolve())
    best = home / "sweeps/finished/best.yaml"
    old = yaml.safe_load(best.read_text())
    best.unlink()
    sweeper(tmp_path, "export", "finished")
    new = yaml.safe_load(best.read_text())
    # The sentences may read otherwise; what they are about may not.
    assert len(new.pop("warnings")) == len(old.pop("warnings"))
    for export in (new, old):
        export["measured"]["verdict"] = export["measured"]["verdict"].partition(":")[0]
        del export["provenance"]["sweeper"]
    # Fields that were added have their defaults.
    for section, _, name in (each.rpartition(".") for each in LATER):
        (new["config"][section] if section else new["config"]).pop(name)
    assert new["config"].pop("ddp") == {}
    assert new == old
    sweeper(tmp_path, "report", "finished")
    assert (home / "sweeps/finished/report.html").exists()


@pytest.mark.slow
def test_a_finished_sweep_has_ended(tmp_path: Path):
    lay_out(tmp_path.resolve())
    said = sweeper(tmp_path, "run", "line.yaml")
    assert "confirmed" in said
    assert not list(tmp_path.glob("mlruns/sweeps/finished-*"))


@pytest.mark.soak
def test_a_sweep_that_was_cut_off_goes_on(tmp_path: Path):
    home = lay_out(tmp_path.resolve())
    before = {path: path.read_bytes() for path in home.glob("sweeps/half/trials/*/outcome.json")}
    assert len(before) == 2
    command = ("run", "line.yaml", "--set", "name=half")
    said = " ".join(sweeper(tmp_path, *command, code=6).split())
    cut_off, runner = home / "sweeps/half/trials/0002", "sweeper.trainer.measure:run"
    assert f"but {cut_off} is of 0.1.0 (its runner is {runner}). Remove that folder" in said
    shutil.rmtree(cut_off)
    said = sweeper(tmp_path, *command)
    assert "Continuing `half`: 2 trials are done." in said
    assert {path: path.read_bytes() for path in before} == before
    assert (home / "sweeps/half/result.json").exists()
    assert len(list(home.glob("sweeps/half/trials/*/outcome.json"))) == 5


@pytest.mark.slow
def test_a_production_run_goes_on(tmp_path: Path):
    home = lay_out(tmp_path.resolve())
    folder = home / "train/finished-003"
    before = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    found = json.loads(
        sweeper(tmp_path, "train", str(home / "sweeps/finished/best.yaml"), "--epochs", "400", "--json")
    )
    after = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert tmp_path / found["folder"] == folder
    assert found["epochs"] == 400
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) > len(before)
