"""The study's copy on a server: every trial once, whatever happens to the server, and nobody waits for it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from replays import spec_of
from services.cutting import cutting
from services.postgres import USER, Postgres
from services.processes import free_ports, wait_for

from sweeper.core.record import SearchResult
from sweeper.errors import StorageError, UserError
from sweeper.search import StudyMirror, compare_study, study_copy, with_driver
from sweeper.search.study_file import NUMBER

DATABASE = "mirror"
SPEC = spec_of()


def told(*numbers: int, values: int = 1) -> dict[int, SearchResult]:
    return {
        number: SearchResult(
            params={
                "batch_size": 64 + number,
                "loader.kind": "workers",
                "loader.num_workers": number % 5,
                "precision.amp": "bf16",
            },
            values=tuple(number + 0.1 * i for i in range(values)),
            constraints={"val_loss": -0.25},
        )
        for number in numbers
    }


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(study_copy, "RETRY_SECONDS", 0.1)
    if not postgres.query("postgres", f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"):
        postgres.create(DATABASE)
        optuna.storages.RDBStorage(postgres.socket_url(DATABASE)).engine.dispose()
    return postgres.socket_url(DATABASE)


@pytest.fixture
def mirrors() -> Iterator[list[StudyMirror]]:
    """Those of a test; what it leaves running is ended."""
    made: list[StudyMirror] = []
    yield made
    for each in made:
        each.finish(0)
        each._thread.join(10)
        assert not each._thread.is_alive()


def there(url: str, name: str) -> list[int]:
    study = optuna.load_study(study_name=name, storage=url)
    return [trial.user_attrs[NUMBER] for trial in study.trials]


def wait_until_there(postgres: Postgres, count: int, name: str) -> None:
    query = (
        "SELECT count(*) FROM trials JOIN studies USING (study_id)"
        f" WHERE study_name = '{name}' AND state <> 'RUNNING'"
    )
    wait_for(
        lambda: postgres.query(DATABASE, query)[0][0] == str(count), 20, lambda: f"not {count} in {name}"
    )


def test_what_was_told_is_there_once(postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(optuna.logging._default_handler, "stream", said)
    everything = told(0, 1, 2)
    everything[1] = SearchResult(params=everything[1].params, values=None, constraints={"val_loss": 0.5})
    # A name that the machine had no choice in has left the space that was searched.
    everything[2] = SearchResult(params={"batch_size": 64}, values=(1 / 3,), constraints={"val_loss": 0.0})
    copy = StudyMirror(url, "whole", SPEC)
    copy.tell(everything)
    wait_until_there(postgres, 3, "whole")
    copy.tell(everything)
    assert copy.finish() == ""
    trials = optuna.load_study(study_name="whole", storage=url).trials
    assert [(t.user_attrs[NUMBER], t.state.name) for t in trials] == [
        (0, "COMPLETE"),
        (1, "FAIL"),
        (2, "COMPLETE"),
    ]
    assert trials[0].params == everything[0].params
    assert trials[2].values == [1 / 3]
    assert trials[0].constraints == {"val_loss": -0.25}
    assert compare_study(url, "whole", everything) == ([], [])
    assert said.getvalue() == ""


@pytest.mark.soak
def test_several_objectives(url: str) -> None:
    spec = spec_of(objectives=[{"maximize": "throughput"}, {"minimize": "val_loss"}])
    copy = StudyMirror(url, "several", spec)
    copy.tell(told(0, 1, values=2))
    assert copy.finish() == ""
    study = optuna.load_study(study_name="several", storage=url)
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [trial.values for trial in study.trials] == [[0.0, 0.1], [1.0, 1.1]]


def test_a_second_one_adds_what_lacks(url: str) -> None:
    for numbers in ((0, 1, 2), (0, 1, 2, 3, 4)):
        copy = StudyMirror(url, "again", SPEC)
        copy.tell(told(*numbers))
        assert copy.finish() == ""
        assert there(url, "again") == list(numbers)


@pytest.mark.soak
def test_comparing_tells_what_differs(postgres: Postgres, url: str) -> None:
    everything = told(0, 1, 2)
    assert compare_study(url, "differs", everything)[0][0] == "trial 0 in the study differs"
    copy = StudyMirror(url, "differs", SPEC)
    copy.tell(told(0, 1, 7))
    assert copy.finish() == ""
    other = {**everything, 1: told(5)[5]}
    lacking, extra = compare_study(url, "differs", other)
    assert lacking == ["the result of trial 1 in the study differs", "trial 2 in the study differs"]
    assert extra == ["trial 2 of the study differs (sweeper's 7)"]
    postgres.kill()
    with pytest.raises(StorageError, match="the study cannot be read"):
        compare_study(url, "differs", other)


@pytest.mark.soak
def test_an_outage_at_the_start_and_in_the_middle(postgres: Postgres, url: str) -> None:
    postgres.kill()
    copy = StudyMirror(url, "outage", SPEC)
    copy.tell(told(0, 1))
    wait_for(lambda: copy._problem, 10, lambda: "no problem")
    postgres.start()
    wait_until_there(postgres, 2, "outage")
    postgres.kill()
    copy.tell(told(2, 3))
    wait_for(lambda: copy._problem, 10, lambda: "no problem")
    postgres.start()
    wait_until_there(postgres, 4, "outage")
    # It finds out only when it copies the next, and the end is near.
    postgres.kill()
    postgres.start()
    copy.tell(told(4))
    assert copy.finish() == ""
    assert there(url, "outage") == [0, 1, 2, 3, 4]


def test_a_server_that_is_away_at_the_end_is_one_line(postgres: Postgres, url: str) -> None:
    copy = StudyMirror(url, "away", SPEC)
    copy.tell(told(0))
    wait_until_there(postgres, 1, "away")
    postgres.kill()
    copy.tell(told(1, 2))
    begun = time.monotonic()
    said = copy.finish()
    assert time.monotonic() - begun < 5
    assert said.startswith("2 trials are not in it yet (connection to server on socket ")
    assert "\n" not in said
    assert copy.finish() == said


def test_a_password_is_not_told(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    copy = StudyMirror(f"postgresql://{USER}@127.0.0.1:{postgres.port}/{postgres.password}", "secret", SPEC)
    copy.tell(told(0))
    said = copy.finish()
    assert 'database "***" does not exist' in said
    assert postgres.password not in said


def test_the_lost_answer_to_a_commit_doubles_nothing(
    postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with cutting(postgres.port) as proxy:
        copy = StudyMirror(f"postgresql://{USER}@127.0.0.1:{proxy.port}/{DATABASE}", "lost", SPEC)
        copy.tell(told(0))
        wait_until_there(postgres, 1, "lost")
        wait_for(lambda: not copy._waiting, 10, lambda: "it waits")
        proxy.left = 1
        copy.tell(told(*range(1, 6)))
        assert copy.finish() == ""
        assert proxy.left == 0
    assert there(url, "lost") == list(range(6))


@pytest.mark.soak
def test_a_server_that_hangs_is_not_waited_for(
    postgres: Postgres, url: str, mirrors: list[StudyMirror]
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    copy = StudyMirror(url, "hangs", SPEC)
    mirrors.append(copy)
    copy.tell(told(0))
    wait_until_there(postgres, 1, "hangs")
    holder = psycopg2.connect(host=str(postgres.folder), port=postgres.port, user=USER, dbname=DATABASE)
    try:
        holder.cursor().execute("LOCK TABLE trials")
        copy.tell(told(1, 2, 3))
        begun = time.monotonic()
        assert copy.finish(0.5) == "3 trials are not in it yet (the server is slow)"
        assert time.monotonic() - begun < 3

        program = (
            "import sys; sys.path.insert(0, 'tests')\n"
            "from test_search_study_copy import *\n"
            f"copy = StudyMirror({url!r}, 'hangs', SPEC); copy.tell(told(1, 2)); print(copy.finish(1.0))"
        )
        environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "2 trials are not in it yet (the server is slow)\n"
    finally:
        holder.close()
    copy._thread.join(10)
    # The one that was under way; none after the end.
    assert len(there(url, "hangs")) <= 2


@pytest.mark.soak
def test_a_server_that_takes_no_connection_is_given_up(postgres: Postgres, url: str) -> None:
    postgres.stall()
    try:
        copy = StudyMirror(url, "stalled", SPEC)
        copy.tell(told(0))
        begun = time.monotonic()
        said = copy.finish()
        assert time.monotonic() - begun < 12
        assert said.startswith("1 trial is not in it yet (")
    finally:
        postgres.kill()


@pytest.mark.soak
def test_another_study_of_that_name_is_left_alone(url: str) -> None:
    optuna.create_study(storage=url, study_name="taken", direction="minimize")
    copy = StudyMirror(url, "taken", SPEC)
    copy.tell(told(0))
    said = copy.finish()
    assert said == (
        "1 trial is not in it yet (the study taken on the server is set to minimize instead; rename it)"
    )
    assert there(url, "taken") == []


def test_many_trials_are_taken_at_once() -> None:
    (port,) = free_ports(1)
    pytest.importorskip("psycopg2")
    copy = StudyMirror(f"postgresql://someone@127.0.0.1:{port}/nowhere", "many", SPEC)
    everything = told(*range(900)) | {n: each for n in range(900, 10_000) for each in told(5).values()}
    begun = time.monotonic()
    copy.tell(everything)
    assert time.monotonic() - begun < 0.5
    assert copy.finish().startswith("10000 trials are not in it yet (connection to server at ")


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(UserError, match=r"needs the driver pymysql .* `pip install 'sweeper\[mysql\]'`"):
        with_driver("mysql://someone@nowhere/optuna")
