"""What the services promise: ports that differ, daemons that end, a database that loses nothing to a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services import slurm
from services.postgres import USER, Postgres
from services.processes import UnavailableError, daemon, free_ports, kill_tree, wait_for

TREE = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600']).wait()"


def test_free_ports_differ() -> None:
    assert len(set(free_ports(50))) == 50


def test_a_daemon_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    process = daemon([sys.executable, "-c", TREE], tmp_path / "log", os.environ)
    found = psutil.Process(process.pid)
    wait_for(lambda: found.children(), 10, lambda: (tmp_path / "log").read_text())
    (child,) = found.children()
    kill_tree(process)
    assert process.returncode == -signal.SIGKILL
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_daemon_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    starter = (
        "import os, pathlib, time; from services.processes import daemon\n"
        f"made = daemon(['sleep', '600'], pathlib.Path({str(tmp_path / 'log')!r}), os.environ)\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(made.pid)); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", starter], env=environment)
    wait_for(lambda: pid.exists() and pid.read_text(), 20, lambda: "no daemon")
    left = psutil.Process(int(pid.read_text()))
    process.kill()
    process.wait()
    wait_for(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE, 10, lambda: str(left))


def test_waiting_ends_with_what_was_seen() -> None:
    with pytest.raises(TimeoutError, match=r"not within 0\.1 s:\nthe log"):
        wait_for(lambda: False, 0.1, lambda: "the log")


def test_a_database_survives_its_servers_kill(postgres: Postgres) -> None:
    postgres.create("kept")
    postgres.query("kept", "CREATE TABLE t AS SELECT 1 AS x, 'a|b' AS y UNION SELECT 2, ''")
    postgres.kill()
    with pytest.raises(AssertionError, match="server"):
        postgres.query("kept", "SELECT 1")
    postgres.start()
    assert postgres.query("kept", "SELECT * FROM t ORDER BY x") == [("1", "a|b"), ("2", "")]
    postgres.create("kept")
    assert postgres.query("kept", "SELECT 1 FROM pg_tables WHERE tablename = 't'") == []


def test_a_database_wants_its_password_over_tcp_alone(postgres: Postgres) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    postgres.create("secret")
    address = postgres.url("secret").replace("+psycopg2", "")
    psycopg2.connect(address).close()
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(address.replace(postgres.password, "another"))
    psycopg2.connect(dbname="secret", user=USER, host=str(postgres.folder), port=postgres.port).close()
    assert postgres.password not in repr(postgres)


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(UnavailableError, match="no munged on this machine: `make services` installs"),
        slurm.cluster(),
    ):
        pass
