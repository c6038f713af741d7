"""`sweeper sync`: what MLflow lacks is sent, what differs is named, and a dead server is one line."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from sweeper.errors import StorageError, SweepConflictError, UserError
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.lock import SweepLock
from sweeper.tracking.mlflow import MlflowTracker

DEAD = "http://me:hunter2x@127.0.0.1:9"


@pytest.fixture
def home(finished_home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_home, tmp_path / "home"))


@pytest.fixture
def sync(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command in this process; returns its exit code and what it printed."""
    from sweeper.cli.sync import sync_command

    def run(
        *arguments: str, name: str | None = "toy", uri: str | None = None, home: Path = home
    ) -> tuple[int, str]:
        capsys.readouterr()
        code = sync_command(home, name, uri, verify="--verify" in arguments, as_json="--json" in arguments)
        return code, capsys.readouterr().out

    return run


def change(home: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as db, db:
        assert db.execute(statement).rowcount > 0


def test_an_empty_store_is_rebuilt_and_a_second_time_nothing_changes(home: Path, sync) -> None:
    code, said = sync("--verify")
    assert code == 1
    assert "MLflow differs from the folder (10 runs" in said
    assert "000 baseline: the run" in said
    assert not (home / "mlflow.db").exists()
    assert sync() == (0, "toy: 10 of 10 runs are complete in MLflow.\n")
    code, said = sync("--verify")
    assert (code, "MLflow matches the folder: 10 runs with" in said) == (0, True)

    def rows() -> list[object]:
        with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as db:
            tables = ("runs", "metrics", "latest_metrics", "params", "tags", "inputs", "experiment_tags")
            return [db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in tables]

    before = rows()
    assert sync()[0] == 0
    assert rows() == before


LACKING = {
    "DELETE FROM metrics WHERE key = 'train/throughput'": "1 point of train/throughput",
    "DELETE FROM params WHERE key = 'batch_size'": "parameter batch_size=",
    "UPDATE tags SET value = 'odd' WHERE key = 'sweeper.stage'": "(it is odd)",
    "UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE name LIKE '003%'": "(it is RUNNING)",
    "DELETE FROM tags WHERE key = 'sweeper.uid' AND run_uuid IN"
    " (SELECT run_uuid FROM runs WHERE name = '000 baseline')": "000 baseline: the run",
}
EXTRA = {
    "UPDATE metrics SET value = value + 1 WHERE key = 'result/step_ms'": "1 point of result/step_ms",
    "UPDATE tags SET value = 'u' || run_uuid WHERE key = 'sweeper.uid'": "a run without a trial here",
}


def test_what_lacks_is_named_and_then_sent(home: Path, sync) -> None:
    sync()
    for statement in LACKING:
        change(home, statement)
    for path in (home / "artifacts").rglob("outcome.json"):
        path.unlink()
    code, said = sync("--verify", "--json")
    (found,) = json.loads(said)["sweeps"]
    for says in (*LACKING.values(), "file outcome.json"):
        assert any(says in each for each in found["lacking"]), says
    assert (code, found["extra"], found["runs"]) == (1, [], 10)
    assert sync()[0] == 0
    code, said = sync("--verify")
    assert code == 0, said


def test_what_is_too_many_is_named(synced: Path, sync) -> None:
    for statement, says in EXTRA.items():
        change(synced, statement)
        code, said = sync("--verify", home=synced)
        assert code == 1
        assert says in said.partition("extra: ")[2]


def test_json_of_what_was_sent_and_a_sweep_that_is_running(synced: Path, sync) -> None:
    lock = SweepLock(Journal(synced / "sweeps/toy").folder)
    try:
        code, said = sync(name=None, home=synced)
        assert (code, "is being run by process" in said) == (7, True)
    finally:
        lock.release()
    code, said = sync("--json", name=None, home=synced)
    assert code == 0
    assert json.loads(said) == {"sweeps": [{"name": "toy", "runs": 10, "pending": [], "problem": ""}]}


def test_a_sweep_of_an_earlier_version_is_named_and_holds_up_no_other(synced: Path, sync) -> None:
    earlier = synced / "sweeps/earlier"
    earlier.mkdir()
    (earlier / "sweep.yaml").write_text("about: {}\n")
    code, said = sync(name=None, home=synced)
    assert code == 0
    assert "`earlier` was written by sweeper 0.2 or earlier, and only that version can send it." in said
    assert "toy: 10 of 10 runs are complete in MLflow." in said
    with pytest.raises(SweepConflictError, match="only that version can send it"):
        sync(name="earlier", home=synced)


def test_a_run_that_a_person_deleted_is_not_missed(synced: Path, sync) -> None:
    change(synced, "UPDATE runs SET lifecycle_stage = 'deleted' WHERE name LIKE '004%'")
    assert sync(home=synced)[0] == 0
    assert sync("--verify", home=synced)[0] == 0


def test_another_store_gets_everything(synced: Path, tmp_path: Path, sync) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    assert sync("--verify", uri=other, home=synced)[0] == 1
    assert sync(uri=other, home=synced)[0] == 0
    assert sync("--verify", uri=other, home=synced)[0] == 0


def test_a_dead_server_is_one_line_without_the_password(home: Path, sweeper) -> None:
    done = sweeper("sync", "toy", "--home", str(home), "--tracking-uri", DEAD)
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("\n") == 1
    assert "http://127.0.0.1:9 cannot be reached (Connection refused)" in done.stderr
    assert "hunter2x" not in done.stdout + done.stderr
    assert not [p for p in home.rglob("*") if p.is_file() and b"hunter2x" in p.read_bytes()]


@pytest.mark.parametrize("verify", [False, True])
def test_a_dead_server_is_a_storage_error(sync, verify: bool) -> None:
    with pytest.raises(StorageError, match="cannot be reached"):
        sync(*["--verify"] * verify, uri=DEAD)


def test_the_interface_of_a_dead_server_is_a_storage_error_and_a_database_has_none(home: Path) -> None:
    from sweeper.cli.ui import ui_command

    with pytest.raises(StorageError, match="cannot be reached"):
        ui_command(home, "toy", 5000, DEAD)
    with pytest.raises(UserError, match="must be the address of a server here, but got postgresql://db/x"):
        ui_command(home, "toy", 5000, "postgresql://me:hunter2x@db/x")


COMMANDS = (
    *(["sync"], ["ui"], ["run", "quick", "--set", "no"], ["train", "none.yaml"]),
    ["tune", "--", sys.executable, "none.py"],
)
"""Commands that use MLflow, with mistakes that end them."""

SHELL = {
    "./mlruns": "MLflow: the database in state. MLFLOW_TRACKING_URI=./mlruns is a folder, to which MLflow no"
    " longer writes; --tracking-uri names another store.",
    "http://me:hunter2x@127.0.0.1:9": "MLflow: http://127.0.0.1:9, from MLFLOW_TRACKING_URI;"
    " `--tracking-uri ''` is the database in state.",
    "mlflow:5000": "sweeper: A tracking URI starts with sqlite:///, http:// or https:// (MLflow no longer"
    " writes to plain folders), but got 'mlflow:5000'. It is from MLFLOW_TRACKING_URI: correct or unset that,"
    " or use --tracking-uri.",
    "sqlite:///state/mlflow.db": "",
    "": "",
}
"""What is said first of each value of the shell's variable."""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_store_that_the_shell_names_is_said(in_process, monkeypatch, command: list[str]) -> None:
    for uri, says in SHELL.items():
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        done = in_process(command[0], "--home", "state", *command[1:])
        first, *others = done.stderr.splitlines()
        assert done.returncode == 2
        assert first == says if says else "MLflow" not in done.stderr
        assert len(others) == (1 if says.startswith("MLflow") else 0)
        # Whoever says where has no need to be told.
        done = in_process(command[0], "--home", "state", "--tracking-uri", "", *command[1:])
        assert "MLflow" not in done.stderr


def test_the_shell_s_store_is_the_one_that_is_used(
    synced: Path, tmp_path: Path, in_process, monkeypatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    assert in_process("sync", "--verify", "--home", str(synced)).returncode == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert in_process("sync", "--verify", "--home", str(synced)).returncode == 1
    done = in_process("sync", "--verify", "--home", str(synced), "--tracking-uri", "")
    assert (done.returncode, done.stderr) == (0, "")
    # A database is shown by MLflow itself.
    done = in_process("ui", "--home", str(synced))
    assert f"`mlflow ui --backend-store-uri sqlite:///{tmp_path}/other.db`" in done.stderr


def test_a_printed_command_names_the_store_unless_the_shell_does(tmp_path: Path, monkeypatch) -> None:
    from sweeper.sweep.hints import look_command, uri_option

    server, database = "http://mlflow:5000", "sqlite:///a b.db"
    for uri, shell, option, look in (
        (None, None, "", "sweeper ui toy"),
        (server, None, f" --tracking-uri {server}", f"sweeper ui toy --tracking-uri {server}"),
        (server, server, "", "sweeper ui toy"),
        ("", server, " --tracking-uri ''", "sweeper ui toy --tracking-uri ''"),
        (
            database,
            None,
            f" --tracking-uri '{database}'",
            f"mlflow ui --backend-store-uri '{database}'",
        ),
    ):
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        if shell:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", shell)
        tracker = MlflowTracker(tmp_path, uri)
        assert uri_option(tracker, uri) == option
        assert look_command(tracker, uri, "toy", Path("mlruns")) == look


def test_there_must_be_a_sweep(tmp_path: Path, sync) -> None:
    with pytest.raises(UserError, match="There are no sweeps in"):
        sync(name=None, home=tmp_path)
