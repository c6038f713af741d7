"""What `sync`, `ui` and the rest say of MLflow's database as people and other programs leave it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from mlflow import MlflowClient
from mlflow.store.db import utils

from sweeper.tracking import ui
from sweeper.tracking.ui import find_experiment, repair_artifact_locations, store_uri

REPOSITORY = Path(__file__).parents[2]
OLDER_REVISION = "17e22815139b"
"""A revision of MLflow's schema before the latest, which lacks tables."""

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)


def change(home: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as db, db:
        assert db.execute(statement).rowcount > 0


def deleted(home: Path) -> None:
    MlflowClient(store_uri(home)).delete_experiment("1")


def default_deleted(home: Path) -> None:
    MlflowClient(store_uri(home)).delete_experiment("0")


def run_deleted(home: Path) -> None:
    client = MlflowClient(store_uri(home))
    client.delete_run(next(run.info.run_id for run in client.search_runs(["1"])))


def renamed(home: Path) -> None:
    MlflowClient(store_uri(home)).rename_experiment("1", "My comparison")


def outdated(home: Path) -> None:
    change(home, f"UPDATE alembic_version SET version_num = '{OLDER_REVISION}'")


def newer(home: Path) -> None:
    change(home, "UPDATE alembic_version SET version_num = 'ffffffffffff'")


DELETED = "The MLflow experiment 'toy' was deleted. Restore it with `MLFLOW_TRACKING_URI=sqlite:///{home}"
OLDER = "was made by an older MLflow. Back it up, then run `mlflow db upgrade sqlite:///{home}/mlflow.db`"
STATES = {
    deleted: ((5, DELETED), (5, DELETED)),
    renamed: ((0, "10 of 10 runs are complete in MLflow.\n"), (0, "matches the folder: 10 runs")),
    default_deleted: ((0, "10 of 10 runs are complete in MLflow.\n"), (0, "matches the folder: 10 runs")),
    run_deleted: (
        (0, "9 of 10 runs are complete in MLflow; 1 deleted there is not sent again.\n"),
        (0, ": 9 runs"),
    ),
    outdated: ((5, OLDER), (5, OLDER)),
    newer: ((5, "made by a newer MLflow than"), (5, "`pip install --upgrade mlflow`")),
}
"""By state, the exit code and the text of `sync` and of `sync --verify`."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_state_has_a_true_answer(synced: Path, in_process, state) -> None:
    repair_artifact_locations(synced)
    state(synced)
    for options, (code, says) in zip(([], ["--verify"]), STATES[state], strict=True):
        done = in_process("sync", "toy", "--home", str(synced), *options)
        said = done.stdout + done.stderr
        assert (done.returncode, says.format(home=synced) in said, said.count("\n")) == (code, True, 1), said
    # What reads the sweep's folder alone does not depend on MLflow.
    for words in (["list"], ["show", "toy"], ["export", "toy", "--trial", "0", "--out", "-"]):
        assert in_process(*words, "--home", str(synced)).returncode == 0


def test_a_deleted_experiment_keeps_no_other_sweep_from_being_sent(synced: Path, in_process) -> None:
    deleted(synced)
    shutil.copytree(synced / "sweeps/toy", synced / "sweeps/other")
    for path in [*(synced / "sweeps/other").rglob("publication")]:
        path.unlink()
    done = in_process("sync", "--home", str(synced))
    assert done.returncode == 7
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} >= {"other"}
    assert "experiment 'toy' was deleted" in done.stdout


def test_a_renamed_experiment_is_mended_in_a_moved_home(synced: Path, tmp_path: Path) -> None:
    repair_artifact_locations(synced)
    renamed(synced)
    moved = synced.rename(tmp_path / "moved")
    assert repair_artifact_locations(moved) == 11
    experiment = MlflowClient(store_uri(moved)).get_experiment(str(find_experiment(moved, "toy")))
    assert (experiment.name, experiment.artifact_location) == ("My comparison", f"{moved}/artifacts/toy")


@pytest.mark.slow
def test_the_interface_says_why_mlflow_does_not_start(synced: Path, sweeper) -> None:
    outdated(synced)
    done = sweeper("ui", "toy", "--home", str(synced), "--port", "5987")
    assert (done.returncode, OLDER.format(home=synced) in done.stderr) == (5, True), done.stderr


def test_an_older_schema_is_brought_up_to_date(synced: Path, in_process) -> None:
    """MLflow itself does so if tables are missing."""
    (synced / "mlflow.db").unlink()
    engine = sqlalchemy.create_engine(store_uri(synced))
    utils.InitialBase.metadata.create_all(engine)
    with engine.begin() as connection:
        config = utils._get_alembic_config(store_uri(synced))
        config.attributes["connection"] = connection
        command.upgrade(config, OLDER_REVISION)
    engine.dispose()
    for options in ([], ["--verify"]):
        assert in_process("sync", "toy", "--home", str(synced), *options).returncode == 0


HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"BEGIN {sys.argv[2]}")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(home: Path, how: str) -> Iterator[int]:
    """Lets another process hold the database; yields its id."""
    words = [sys.executable, "-c", HOLD, str(home / "mlflow.db"), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate()


LOCKED = (["sync", "toy"], ["sync", "toy", "--verify"], ["ui", "toy"])


@pytest.mark.parametrize("words", LOCKED, ids=" ".join)
def test_a_locked_database_is_named_with_who_locks_it(synced: Path, in_process, monkeypatch, words) -> None:
    repair_artifact_locations(synced)
    monkeypatch.setattr(ui, "LOCK_SECONDS", 0.2)
    with held(synced, "EXCLUSIVE") as pid:
        done = in_process(*words, "--home", str(synced))
        says = f"database {synced}/mlflow.db cannot be used: process {pid} (python"
        assert (done.returncode, says in done.stderr) == (5, True), done.stderr
        assert "keeps it locked. End that, or try again later." in done.stderr
        assert in_process("list", "--home", str(synced)).returncode == 0


@pytest.mark.slow
def test_a_writer_keeps_nobody_from_reading_and_is_named(synced: Path, in_process, monkeypatch) -> None:
    from mlflow.store.db import utils

    repair_artifact_locations(synced)
    text = utils.sql.text
    # MLflow waits for 20 s.
    monkeypatch.setattr(utils.sql, "text", lambda said: text(said.replace("20000", "200")))
    with held(synced, "IMMEDIATE") as pid:
        assert in_process("sync", "toy", "--verify", "--home", str(synced)).returncode == 0
        done = in_process("sync", "toy", "--home", str(synced))
        assert (done.returncode, f"process {pid} (python" in done.stdout) == (7, True), done.stdout


def without_privileges(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `sweeper` as somebody whom permissions stop, even if that is root."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*drop, sys.executable, "-m", "sweeper", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"},
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everything")
def test_a_read_only_home_is_read_and_named(synced: Path) -> None:
    repair_artifact_locations(synced)
    (synced / "mlflow.db").chmod(0o444)
    home = ("--home", str(synced))
    done = without_privileges("sync", "toy", *home)
    says = f"database {synced}/mlflow.db cannot be used: it may not be written. Allow writing to it"
    assert (done.returncode, says in done.stdout) == (7, True), done.stdout + done.stderr
    for path in [synced, *synced.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert without_privileges("sync", "toy", "--verify", *home).returncode == 0
        done = without_privileges("sync", "toy", *home)
        assert done.returncode == 6
        says = f"cannot write in {synced}/sweeps/toy: Permission denied."
        assert says in done.stderr
        assert "Allow writing there" in done.stderr
    finally:
        for path in [synced, *synced.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
