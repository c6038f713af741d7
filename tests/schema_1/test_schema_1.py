"""What 0.1 and 0.2 left on disk is shown, exported and trained from, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from schema_1.folders import VERSIONS, lay_out

from sweeper.core import job as jobs
from sweeper.core import schema_1
from sweeper.core.codec import encode
from sweeper.core.job import Job, read_job, read_outcome
from sweeper.errors import EnvironmentStopError, SweepConflictError
from sweeper.exports import read
from sweeper.sweep.folder.catalog import (
    journal_at,
    latest_sweep,
    line_of_schema_1,
    require_schema,
    sweeps_of_name,
)
from sweeper.sweep.folder.fingerprint import differences, settings_of
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.worker.trial import RUNNERS, runner_of

REPOSITORY = Path(__file__).parents[2]
SWEEPS = {
    "0.1.0": {"finished": "finished", "half": "unfinished", "script": "finished"},
    "0.2.0": {"finished": "finished", "half": "unfinished", "script": "finished"},
    "0.2.0-tune": {"tune-rows": "finished"},
}
COUNTS = {"0.1.0": (56, 55), "0.2.0": (54, 53), "0.2.0-tune": (10, 10)}
"""Configurations and outcomes."""
ALL = [(version, name) for version, names in SWEEPS.items() for name in names]
FINISHED = [(version, name) for version, name in ALL if name != "half"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The state folders by version, to be read only."""
    folder = tmp_path_factory.mktemp("schema_1").resolve()
    return {version: lay_out(folder / version, version) for version in VERSIONS}


def journal_in(homes: Mapping[str, Path], version: str, name: str) -> Journal:
    return journal_at(homes[version] / "sweeps" / name)


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


GONE = {"again_if_disturbed"}
"""What nothing reads any more: whether a trial of a tune ran once more."""


def lost(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yields what a file had and has no more after it was read and written again."""
    if isinstance(old, Mapping):
        for key, value in old.items():
            if key in GONE:
                continue
            if key not in new:
                yield f"{path}.{key}"
            else:
                yield from lost(value, new[key], f"{path}.{key}")
    elif isinstance(old, list) and len(old) == len(new):
        for i, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from lost(left, right, f"{path}[{i}]")
    elif old != new:
        yield f"{path}: {old!r} is now {new!r}"


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_of_configurations_and_outcomes(homes: Mapping[str, Path], version: str):
    configs, outcomes = 0, 0
    for path in homes[version].rglob(jobs.CONFIG):
        old = schema_1.job(json.loads(path.read_text()))
        job = read_job(path.parent)
        assert job.folder == str(path.parent)
        new = {**encode(job), "schema": old["schema"]}
        assert not list(lost({**old, "folder": str(path.parent)}, new, path.parent.name))
        configs += 1
    for path in homes[version].rglob(jobs.OUTCOME):
        outcome = read_outcome(path.parent)
        old = schema_1.outcome(json.loads(path.read_text()))
        new = {**encode(outcome), "schema": old["schema"], "type": type(outcome).__name__.lower()}
        assert not list(lost(old, new, path.parent.name))
        outcomes += 1
    assert (configs, outcomes) == COUNTS[version]


def test_each_runner_of_a_job_can_be_imported():
    for name in RUNNERS:
        assert callable(runner_of(Job(uid="u", runner=name)))
    stored = {read for read in vars(jobs).values() if isinstance(read, str) and read in RUNNERS}
    assert stored == set(RUNNERS)


@pytest.mark.parametrize(("version", "name"), FINISHED)
def test_a_finished_sweep_is_summarised_as_it_was(homes: Mapping[str, Path], version: str, name: str):
    journal = journal_in(homes, version, name)
    sweep = load_sweep(journal)
    summary = sweep.summary
    old = json.loads((journal.folder / "result.json").read_text())
    assert summary.state == "finished"
    assert summary.reason == old["reason"]
    assert summary.winner is not None
    assert summary.winner.number == old["winner"]
    assert summary.ratio is not None
    assert (summary.ratio.trial, summary.ratio.ratio) == (old["winner"], old["ratios"][0]["ratio"])
    assert [one.speeds for one in sweep.rounds] == [
        {int(number): pytest.approx(speed) for number, speed in each.items()} for each in old["rounds"]
    ]
    assert summary.disturbances == {int(number): count for number, count in old["disturbed"].items()}
    assert None not in [record.outcome for record in summary.records]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_script_says_who_reported_its_speed(homes: Mapping[str, Path], version: str):
    winner = load_sweep(journal_in(homes, version, "script")).summary.winner
    assert winner is not None
    assert winner.measurement is not None
    assert winner.measurement.reported_by == "the output (samples_per_s)"
    assert winner.measurement.exclusions


def test_a_tune_is_known_as_one(homes: Mapping[str, Path]):
    journal = journal_in(homes, "0.2.0-tune", "tune-rows")
    sweep = load_sweep(journal)
    assert sweep.spec.traits.is_of_changes
    assert sweep.spec.script.changes == {"loader": "{loader}", "compile": "{compile}"}
    assert "SWEEPER_CHANGES" not in sweep.spec.script.env
    baseline, winner = sweep.table.records[0], sweep.summary.winner
    assert winner is not None
    assert (baseline.config.flatten()["loader"], winner.config.flatten()["loader"]) == (
        "original",
        "gathered",
    )
    assert sweep.name_of(winner) == "001 retain loader=gathered pages=huge spinning=short"
    assert len(sweep.race) == len(json.loads((journal.folder / "result.json").read_text())["rounds"])


@pytest.mark.parametrize("version", VERSIONS)
def test_all_are_listed_shown_and_compared(homes: Mapping[str, Path], version: str):
    home = homes[version]
    listed = json.loads(sweeper(home.parent, "list", "--json"))
    assert {each["name"]: each["state"] for each in listed} == SWEEPS[version]
    for name in SWEEPS[version]:
        trials = sorted((home / f"sweeps/{name}").glob("trials/*/config.json"))
        shown = json.loads(sweeper(home.parent, "show", name, "--json"))
        assert [each["number"] for each in shown["trials"]] == list(range(len(trials)))
        assert sweeper(home.parent, "show", name)
    if version != "0.2.0-tune":
        assert "finished" in sweeper(home.parent, "compare", "finished", "half")


@pytest.mark.parametrize(("version", "name"), FINISHED)
def test_a_finished_sweep_is_exported_and_reported(tmp_path: Path, version: str, name: str):
    home = lay_out(tmp_path.resolve(), version)
    best = home / "sweeps" / name / "best.yaml"
    old = read(best) if best.exists() else None
    sweeper(tmp_path, "export", name)
    new = read(best)
    if old is not None:
        # The sentences may read otherwise; what they are about may not.
        assert len(new.pop("warnings")) == len(old.pop("warnings"))
        for export in (new, old):
            export["measurement"]["verdict"] = export["measurement"]["verdict"].partition(":")[0]
            del export["provenance"]["sweeper"]
        assert not list(lost(old, new, name))
    sweeper(tmp_path, "report", name)
    assert (home / "sweeps" / name / "report.html").exists()


@pytest.mark.parametrize(("version", "name"), ALL)
def test_no_earlier_sweep_is_written_to(homes: Mapping[str, Path], version: str, name: str):
    with pytest.raises(SweepConflictError, match=f"`{name}` was written by sweeper 0.2 or earlier, and only"):
        require_schema(journal_in(homes, version, name), "confirm")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.1.0", ("run", "line.yaml")),
        ("0.2.0", ("run", "line.yaml", "--set", "name=half")),
        ("0.2.0", ("confirm", "finished")),
        ("0.2.0", ("sync", "finished")),
        ("0.2.0-tune", ("tune", "--minutes", "1", "--", "python", "rows.py")),
    ],
)
@pytest.mark.slow
def test_what_would_write_to_it_says_who_can(tmp_path: Path, version: str, words: tuple[str, ...]):
    lay_out(tmp_path.resolve(), version)
    before = {path: path.read_bytes() for path in (tmp_path / "mlruns/sweeps").rglob("*.json")}
    said = " ".join(sweeper(tmp_path, *words, code=3).split())
    assert "was written by sweeper 0.2 or earlier, and only that version can" in said
    assert {path: path.read_bytes() for path in (tmp_path / "mlruns/sweeps").rglob("*.json")} == before


def test_an_earlier_export_has_todays_names(tmp_path: Path):
    value = yaml.safe_load(
        """
        schema: 2
        command: [python, train.py]
        env: {SWEEPER_CHANGES: pictures=decoded loader=own pinned=on batch_size=64/64, A: b}
        files: {}
        params: {}
        measured: {throughput: 1.0, x_baseline: {ratio: 2.0}}
        holds_for: {device: cpu}
        proved: {kind: exact, covers: 9 steps, code: abc}
        provenance: {sweep: a}
        warnings: []
        """
    )
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(value))
    new = read(path)
    assert (new["env"], new["changes"]) == (
        {"A": "b"},
        {"images": "decoded", "pin_memory": "on"},
    )
    assert new["measurement"] == {"throughput": 1.0, "speedup": {"ratio": 2.0}}
    assert new["conditions"] == {"device": "cpu"}
    assert new["verification"] == {"kind": "exact", "extent": "9 steps", "code": "abc"}


@pytest.mark.slow
def test_an_earlier_export_is_trained_from(tmp_path: Path):
    home = lay_out(tmp_path.resolve(), "0.2.0")
    best = str(home / "sweeps/finished/best.yaml")
    said = " ".join(sweeper(tmp_path, "train", best, "--epochs", "400", code=3).split())
    assert "`finished-002` was written by another version of sweeper (0.2 or earlier" in said
    found = json.loads(sweeper(tmp_path, "train", best, "--epochs", "3", "--new", "--json"))
    assert found["epochs"] == 3
    assert found["promised"]


@pytest.mark.slow
def test_an_earlier_tunes_export_runs_with_its_changes(tmp_path: Path):
    home = lay_out(tmp_path.resolve(), "0.2.0-tune")
    (tmp_path / "say.py").write_text("import os; print(os.environ['SWEEPER_CHANGES'])")
    best = str(home / "sweeps/tune-rows/best.yaml")
    assert sweeper(tmp_path, "exec", best, "--", sys.executable, "say.py") == "loader=gathered\n"


def test_a_stopped_sweep_has_the_rounds_of_its_result(tmp_path: Path):
    home = lay_out(tmp_path.resolve(), "0.2.0")
    folder = home / "sweeps/finished"
    rounds = load_sweep(journal_at(folder)).rounds
    (folder / "result.json").rename(folder / "stopped.json")
    sweep = load_sweep(journal_at(folder))
    assert sweep.state == "stopped"
    assert [one.speeds for one in sweep.rounds] == [one.speeds for one in rounds] != []
    assert sweep.summary.baseline_throughput is not None


def test_an_earlier_sweep_differs_from_itself_in_nothing_but_its_code(homes: Mapping[str, Path]):
    """It has every setting, and today's fingerprints only those that are not the defaults."""
    journal = journal_in(homes, "0.2.0", "script")
    document = journal.read_sweep_file()
    spec = journal.spec(document)
    today = {
        **document["fingerprint"],
        "measure": settings_of(spec.measure),
        "script": settings_of(spec.script),
    }
    assert differences(document["fingerprint"], today) == []


def test_a_sweep_of_another_name_or_version_is_in_no_ones_way(homes: Mapping[str, Path], tmp_path: Path):
    home = lay_out(tmp_path.resolve(), "0.1.0")
    assert [journal.name for journal in sweeps_of_name(home, "finished")] == ["finished"]
    latest = latest_sweep(home, "finished")
    assert latest is not None
    assert "only that version can continue it" in line_of_schema_1(latest, "continue")
    # As `sweeper run --new` names it.
    (home / "sweeps/finished-2").mkdir()
    (home / "sweeps/finished-2/sweep.yaml").write_text("schema: 2\n")
    latest = latest_sweep(home, "finished")
    assert latest is not None
    assert (latest.name, line_of_schema_1(latest, "continue")) == ("finished-2", "")


@pytest.mark.parametrize(
    ("first", "schema"), [("about: {}\n", 1), ("schema: 2\n", 2), ("", 2), ("# Mine.\nschema: 2\n", 2)]
)
def test_only_what_begins_like_one_is_an_earlier_sweep(tmp_path: Path, first: str, schema: int):
    """Whatever is damaged is said to be."""
    (tmp_path / "sweep.yaml").write_text(first)
    assert journal_at(tmp_path).schema == schema
    with pytest.raises(EnvironmentStopError, match=r"sweep\.yaml.*damaged"):
        journal_at(tmp_path).read_sweep_file()


def test_what_an_earlier_tune_did_not_store_is_not_there():
    tree = {"trial": 3, "kind": "close", "fault": "", "covers": "9 steps", "code": "c"}
    verified = schema_1.verification(tree, 3)
    assert verified is not None
    assert (verified["changes"], verified["is_nondeterministic"]) == ([], False)
    assert schema_1.verification(tree, 4) is None


def test_a_users_own_value_keeps_its_name():
    """Only the parameters of changes had `own` as the value that changes nothing."""
    script = {"command": ["python"], "env": {"SWEEPER_CHANGES": "loader={loader} pictures={pictures}"}}
    args = {"loader": "own", "pictures": "decoded", "mode": "own"}
    job = schema_1.job({"schema": 1, "script": script, "config": {"args": args}, "params": args})
    assert job["config"]["args"] == job["params"] == {**args, "loader": "original"}
    assert job["script"]["changes"] == {"loader": "{loader}", "images": "{pictures}"}
    odd = {"command": [], "env": {"SWEEPER_CHANGES": "{fast: true -> loader=gathered}"}}
    assert schema_1.job({"schema": 1, "script": odd})["script"] == odd


def test_a_later_schema_is_left_to_a_later_version(tmp_path: Path):
    folder = tmp_path / "sweeps/later"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("schema: 3\nabout: 1\n")
    with pytest.raises(EnvironmentStopError, match=r"must have schema 2 or earlier, but has 3\. Use the"):
        journal_at(folder).read_sweep_file()
