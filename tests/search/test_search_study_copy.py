"""The copy of a finished study in a database: all of it, once, and a line if there is none."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from replays import PIPELINE, Bench, Watcher, spec_of

from sweeper.core.record import SearchResult
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.search import copy_study
from sweeper.search.study_file import NUMBER, StudyFile
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.workloads import fingerprint

AWAY = "postgresql://someone@127.0.0.1:9/optuna?sslmode=disable"


def results(*numbers: int) -> dict[int, SearchResult]:
    params = {"loader.kind": "workers", "loader.num_workers": 2, "precision.amp": "bf16"}
    return {
        number: SearchResult(
            params={"batch_size": 64 + number, **params},
            values=None if number == 1 else (number / 3,),
            constraints={"val_loss": -0.25},
        )
        for number in numbers
    }


def trials_in(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    storage = RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def test_every_trial_is_there_once_however_often_it_is_copied(tmp_path: Path, url: str):
    for numbers in ((0, 1), (0, 1, 2)):
        path = tmp_path / f"{len(numbers)}.log"
        StudyFile(path, spec_of(), results(*numbers))
        assert copy_study(path, url, "mine") == ""
        trials = trials_in(url, "mine")
        assert [trial.user_attrs[NUMBER] for trial in trials] == list(numbers)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trials[2].params == results(2)[2].params
    assert trials[2].values == [2 / 3]
    assert trials[2].constraints == {"val_loss": -0.25}
    assert copy_study(path, url, "another") == ""
    assert len(trials_in(url, "mine")) == len(trials_in(url, "another")) == 3


def test_a_study_that_is_not_sweepers_is_left_alone(tmp_path: Path, url: str):
    StudyFile(tmp_path / "study.log", spec_of(), results(0))
    storage = RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="taken")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    storage.remove_session()
    storage.engine.dispose()
    line = copy_study(tmp_path / "study.log", url, "taken")
    assert line == (
        f"The study was not copied to {url} (another study taken is there; rename one of the two)."
        " Run the same command again to copy it."
    )
    assert [trial.value for trial in trials_in(url, "taken")] == [1.0]


def test_a_line_on_a_failure_has_no_user_no_options_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    StudyFile(tmp_path / "study.log", spec_of(), results(0))
    line = copy_study(tmp_path / "study.log", AWAY, "mine")
    assert line.startswith("The study was not copied to postgresql://127.0.0.1:9/optuna (")
    assert "\n" not in line
    monkeypatch.setenv("MY_TOKEN", "correct-horse")
    line = copy_study(tmp_path / "study.log", "sqlite:////nowhere/correct-horse/studies.db", "mine")
    assert line.startswith("The study was not copied to sqlite:////nowhere/***/studies.db (")
    assert "correct-horse" not in line
    # What the driver says may hold it, too.
    monkeypatch.setattr(
        optuna, "copy_study", lambda **_: (_ for _ in ()).throw(OSError("no correct-horse\nhere"))
    )
    line = copy_study(tmp_path / "study.log", f"sqlite:///{tmp_path}/studies.db", "mine")
    assert "(no *** here)" in line


# -- in a sweep -------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")


def spec_with(storage: str) -> SweepSpec:
    return spec_of(storage=storage, search={"trials": 4, "sampler": "random"}, confirm={"rounds": 0})


def said(watcher: Watcher) -> list[str]:
    return [line for line in watcher.lines if line.startswith("The study was not copied")]


def numbers_in(url: str) -> list[int]:
    return sorted(trial.user_attrs[NUMBER] for trial in trials_in(url, "toy"))


def test_a_sweep_is_copied_at_its_end_and_again_when_it_goes_on(bench: Bench, url: str):
    ran = bench.run(spec_with(url))
    assert said(bench.watcher) == []
    assert numbers_in(url) == sorted(load_sweep(ran.journal).table.results)
    extended = bench.run(spec_with(url), extend=2)
    assert numbers_in(url) == sorted(load_sweep(extended.journal).table.results)
    assert len(numbers_in(url)) >= 6


def test_a_sweep_that_has_ended_is_copied_by_the_same_command(bench: Bench, url: str):
    ran = bench.run(spec_with(AWAY))
    assert ran.sweep.state == "finished"
    assert len(said(bench.watcher)) == 1
    again = bench.run(spec_with(url))
    assert (again.was_run, said(bench.watcher)) == (False, [])
    assert numbers_in(url) == sorted(load_sweep(ran.journal).table.results)


def test_the_storage_makes_no_other_sweep_and_old_folders_have_none(bench: Bench):
    assert fingerprint(spec_with(""), "cpu") == fingerprint(spec_with("postgresql://x@y/z"), "cpu")
    ran = bench.run(spec_with(""))
    path = ran.journal.folder / "sweep.yaml"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.strip().startswith("storage:")]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept))
    assert load_sweep(Journal(ran.journal.folder)).spec.storage == ""
    assert not bench.run(spec_with("")).was_run


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("postgresql://me:hunter2@db/optuna", r"must hold no secret.*PGPASSWORD"),
        ("postgresql://me@db/optuna?password=hunter2", "must hold no secret"),
        ("sqlite://study.db", "must be a database"),
        ("postgresql+asyncpg://me@db/optuna", "must be a database"),
        ("postgresql://me@db", "must be a database"),
    ],
)
def test_a_storage_that_cannot_be(storage: str, says: str):
    with pytest.raises(UserError, match=says) as caught:
        spec_with(storage)
    assert "hunter2" not in str(caught.value)
