"""A real MLflow server over a real PostgreSQL, killed in the middle of a sweep: nothing is lost in the end.

Nor do passwords get to where they could be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services.mlflow_server import DATABASE, MlflowServer
from services.outage import NAME, Sweep, through_outage
from services.postgres import Postgres
from services.processes import marked

SECRET = "cAnArY5f0e1d2c"
MARK = "SWEEPER_TEST_OUTAGE"
"""A variable by which a sweep's processes are known, those too that nobody waits for."""


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Any]:
    """Makes a sweep at an address; none of its processes may be left in the end."""
    yield lambda uri, **env: Sweep(tmp_path, uri, {MARK: str(tmp_path), **env})
    left = marked(f"{MARK}={tmp_path}")
    assert not left, left


def nothing_lost(found: dict[str, Any]) -> None:
    assert found["exit_code"] in (0, 7), found
    assert found["finished_meanwhile"] > 0, found
    assert found["exit_code"] == 7 or not found["runs_waiting"], found
    assert (found["synced"], found["verified"]) == (0, 0), found
    assert found["runs"] == found["runs_wanted"] > found["runs_before"] > 0, found
    assert found["points_equal"], found
    assert found["points"] > 5 * found["runs"], found


def nothing_told(folder: Path, secret: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.soak
@pytest.mark.parametrize(("seconds", "tail"), [(3, 5), (60, 24)])
def test_server_and_database_are_killed(sweep, mlflow_server: MlflowServer, seconds: int, tail: int) -> None:
    made = sweep(mlflow_server.url.replace("//", f"//someone:{SECRET}@"))
    nothing_lost(through_outage(made, seconds, mlflow_server.postgres, mlflow_server, tail))
    nothing_told(made.folder, SECRET)
    nothing_told(mlflow_server.folder, SECRET)


@pytest.mark.soak
def test_the_database_is_killed_behind_a_live_server(sweep, mlflow_server: MlflowServer) -> None:
    made = sweep(mlflow_server.url, MLFLOW_TRACKING_USERNAME="someone", MLFLOW_TRACKING_PASSWORD=SECRET)
    found = through_outage(made, 8, mlflow_server.postgres)
    nothing_lost(found)
    # It is back at once, long before the sweep's end.
    assert found["exit_code"] == 0, found
    nothing_told(made.folder, SECRET)


@pytest.mark.soak
def test_a_database_without_a_server_is_away_to_the_end(sweep, postgres: Postgres) -> None:
    postgres.create(DATABASE)
    made = sweep(postgres.url(DATABASE))
    found = through_outage(made, None, postgres)
    nothing_lost(found)
    assert found["exit_code"] == 7, found
    assert "`sweeper sync outage` sends them" in made.output()

    for end, says in ((postgres.stall, "timeout expired"), (postgres.kill, "Connection refused")):
        end()
        begun = time.monotonic()
        assert made.run("sync", NAME) == 5
        assert time.monotonic() - begun < 30, "MLflow's own retries take 100 s"
        assert made.output().splitlines()[-1].endswith(says)
    nothing_told(made.folder, postgres.password)
