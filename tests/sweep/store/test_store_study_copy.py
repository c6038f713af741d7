"""Sweeps whose study is copied to a server: what is there in the end, and what a dead server costs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from replays import Bench, spec_of
from services.postgres import Postgres
from services.processes import free_ports

from sweeper.errors import EnvironmentStopError, UserError
from sweeper.search import compare_study
from sweeper.spec import SweepSpec
from sweeper.sweep.dry_run import dry_run
from sweeper.sweep.run import Ran
from sweeper.sweep.store.fingerprint import fingerprint
from sweeper.sweep.store.journal import Journal
from sweeper.sweep.store.load import load_sweep
from sweeper.sweep.store.study_copy import STUDY, copied, differences_of_copy, place_of_copy
from sweeper.system.files import read_json

NO_ROUNDS = {"rounds": 0}


def spec_with(storage: str, trials: int = 4, **changes: object) -> SweepSpec:
    return spec_of(
        storage=storage, search={"trials": trials, "sampler": "random"}, confirm=NO_ROUNDS, **changes
    )


@pytest.fixture
def url(postgres: Postgres) -> str:
    postgres.create("mirroring")
    return postgres.socket_url("mirroring")


def studies(postgres: Postgres) -> list[str]:
    return [name for (name,) in postgres.query("mirroring", "SELECT study_name FROM studies ORDER BY 1")]


def is_whole(ran: Ran) -> bool:
    sweep = load_sweep(ran.journal)
    place = read_json(ran.journal.folder / STUDY)
    assert len(sweep.table.results) >= 4
    return compare_study(place["storage"], place["name"], sweep.table.results) == ([], [])


@pytest.mark.soak
def test_a_sweep_then_extended_then_elsewhere(bench: Bench, postgres: Postgres, url: str) -> None:
    ran = bench.run(spec_with(url))
    assert ran.study == ""
    assert is_whole(ran)
    extended = bench.run(spec_with(url), extend=3)
    assert extended.study == ""
    assert len(load_sweep(ran.journal).table.results) == len(load_sweep(extended.journal).table.results) >= 7
    assert is_whole(extended)
    assert len(studies(postgres)) == 1

    other = Bench(bench.home.with_name("other")).run(spec_with(url))
    assert other.journal.name == ran.journal.name
    assert is_whole(other)
    assert is_whole(extended)

    # A sweep that is begun anew in the same folder is another one.
    shutil.rmtree(ran.journal.folder)
    anew = bench.run(spec_with(url, objectives=[{"maximize": "throughput"}, {"minimize": "step_ms"}]))
    assert anew.journal.folder == ran.journal.folder
    assert anew.study == ""
    assert is_whole(anew)
    assert len(studies(postgres)) == 3


@pytest.mark.soak
def test_a_server_that_was_away_gets_it_later(bench: Bench, postgres: Postgres, url: str) -> None:
    postgres.kill()
    ran = bench.run(spec_with(url))
    told = len(load_sweep(ran.journal).table.results)
    assert ran.study.startswith(f"{told} trials are not in it yet (connection to server")
    assert copied(load_sweep(ran.journal)).startswith(f"{told} trials are not in it yet")
    postgres.start()
    again = bench.run(spec_with(url))
    assert (again.ran, again.study) == (False, "")
    assert is_whole(again)
    assert differences_of_copy(load_sweep(ran.journal)) == ([], [])


@pytest.mark.soak
def test_a_sweep_that_goes_on_with_a_storage_copies_all(bench: Bench, postgres: Postgres, url: str) -> None:
    ran = bench.run(spec_with(""))
    assert not (ran.journal.folder / STUDY).exists()
    assert copied(load_sweep(ran.journal)) == ""
    extended = bench.run(spec_with(url), extend=2)
    assert extended.study == ""
    assert is_whole(extended)


def test_a_dead_server_costs_a_sweep_nothing(bench: Bench) -> None:
    pytest.importorskip("psycopg2")
    ran = bench.run(spec_with(f"postgresql://someone@127.0.0.1:{free_ports(1)[0]}/optuna?sslmode=disable"))
    assert ran.ran
    assert "Connection refused" in ran.study
    assert place_of_copy(ran.journal).startswith("postgresql://127.0.0.1:")
    assert place_of_copy(ran.journal).endswith("/optuna")
    (ran.journal.folder / STUDY).write_text("[]")
    with pytest.raises(EnvironmentStopError, match=r"study\.json is damaged"):
        copied(load_sweep(ran.journal))


def test_a_missing_driver_is_told_before_anything_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeper.cli.check import check_command

    monkeypatch.setitem(sys.modules, "pymysql", None)
    spec = spec_with("mysql://someone@nowhere/optuna")
    Path("space.json").write_text(spec.model_dump_json(exclude_defaults=True))
    for command in (
        lambda: bench.run(spec),
        lambda: dry_run(bench.home, spec, launch=lambda folder: bench.launcher),
        lambda: check_command(Path("space.json"), []),
    ):
        with pytest.raises(UserError, match="needs the driver pymysql"):
            command()
    assert not bench.launcher.jobs
    assert not (bench.home / "sweeps" / "toy").exists()


def test_the_storage_makes_no_other_sweep_and_old_folders_have_none(bench: Bench) -> None:
    assert fingerprint(spec_with(""), "cpu") == fingerprint(spec_with("postgresql://x@y/z"), "cpu")
    ran = bench.run(spec_with(""))
    path = ran.journal.folder / "sweep.yaml"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.strip().startswith("storage:")]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept))
    assert load_sweep(Journal(ran.journal.folder)).spec.storage == ""
    assert not bench.run(spec_with("")).ran


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("postgresql://me:hunter2@db/optuna", r"must hold no secret.*PGPASSWORD"),
        ("postgresql://me@db/optuna?password=hunter2", "must hold no secret"),
        ("sqlite:///study.db", "must be a database on a server"),
        ("postgresql+asyncpg://me@db/optuna", "must be a database on a server"),
        ("postgresql://me@db", "must be a database on a server"),
    ],
)
def test_a_storage_that_cannot_be(storage: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        spec_with(storage)
    assert "hunter2" not in str(caught.value)
