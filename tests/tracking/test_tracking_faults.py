"""A real server behind a proxy that breaks requests: afterwards every trial is there once, and whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import KINDS, FaultProxy, free_port, served
from replays import PIPELINE, Bench, spec_of

from sweeper.cli.sync import sync_command
from sweeper.core.job import read_job
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.publish import Publisher, publish_sweep, sweep_info
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE, repair_artifact_locations, server_command, ui_url

PASSWORD = "hunter2x"
POISONED = 5


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a finished sweep of 20 trials, one of them with more points than one request takes."""
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    bench = Bench(tmp_path / "home")
    bench.run(spec_of(search={"trials": 18}))
    for trial in (bench.home / "sweeps/toy/trials").iterdir():
        outcome = json.loads((trial / "outcome.json").read_text())
        starts = [window["start_s"] for window in outcome["windows"]]
        (trial / "series").mkdir(exist_ok=True)
        (trial / "worker.log").write_text(f"{trial.name}\n")
        np.save(trial / "series/time_s.npy", np.linspace(min(starts), max(starts) + 0.01, 300))
        for number in range(12 if trial.name == "0003" else 2):
            np.save(trial / f"series/made_up_{number}.npy", np.random.default_rng(number).random(300))
    return bench.home


def contents(database: Path) -> dict[str, Any]:
    """Returns what is in a store by trial: points, parameters, tags of ours, files' digests."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        query = db.execute
        runs = query(
            "SELECT run_uuid, status, end_time FROM runs WHERE lifecycle_stage = 'active'"
        ).fetchall()
        found: dict[str, Any] = {}
        for run, *status in runs:
            points = query(
                "SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = ?", (run,)
            ).fetchall()
            params = query("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall()
            tags = dict(query("SELECT key, value FROM tags WHERE run_uuid = ?", (run,)).fetchall())
            datasets = query("SELECT count(*) FROM inputs WHERE destination_id = ?", (run,)).fetchone()
            assert len(points) == len(set(points))
            assert tags["sweeper.uid"] not in found
            found[tags["sweeper.uid"]] = (
                status,
                sorted(points),
                sorted(params),
                sorted(tags.items()),
                datasets,
            )
    return found


def digests(folder: Path) -> dict[str, str]:
    ours = ("publication", "lock", "epoch")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ours]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# The first seed has every kind among its first nine faults.
@pytest.mark.parametrize(
    ("num_faults", "seed"),
    [
        pytest.param(9, 209, marks=pytest.mark.soak, id="nine"),
        pytest.param(100, 0, marks=pytest.mark.soak, id="a hundred"),
    ],
)
def test_faults_lose_and_double_nothing(
    num_faults: int,
    seed: int,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    before = digests(home / "sweeps")
    assert sync_command(home, "toy", None, verify=False, as_json=False) == 0
    wanted = contents(home / DATABASE)
    assert len(wanted) == 20

    server, port = tmp_path / "server", free_port()
    server.mkdir()
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{server}/{DATABASE}"]
    command += ["--artifacts-destination", str(server / "artifacts")]
    with served(command, port, server):
        proxy = FaultProxy(port, seed=seed, hang_seconds=1.3)
        uri = f"http://me:{PASSWORD}@127.0.0.1:{proxy.port}"
        poison = read_job(home / f"sweeps/toy/trials/{POISONED:04d}").uid
        proxy.poison, proxy.share = poison, 0.4
        sweep = load_sweep(Journal(home / "sweeps/toy"))
        while proxy.faults.total() < num_faults:
            tracker = MlflowTracker(home, uri, thorough=True)
            with contextlib.closing(
                Publisher(tracker, sweep_info(sweep), sweep.journal.folder, thorough=True)
            ) as publisher:
                left, _ = publish_sweep(sweep, publisher, ())
                while left != [POISONED] and proxy.faults.total() < num_faults:
                    left, _ = publisher.flush()
        assert set(proxy.faults) == set(KINDS)

        proxy.share = 0.0
        capsys.readouterr()
        assert sync_command(home, "toy", uri, verify=False, as_json=False) == 7
        said = capsys.readouterr().out
        assert "19 of 20 runs" in said
        assert f"1 run is not in MLflow yet (MLflow did not accept `{POISONED:03d} " in said
        command = f"sweeper sync toy --home {home} --tracking-uri http://127.0.0.1:{proxy.port}"
        assert f"poison). `{command}` sends it." in said
        got = contents(server / DATABASE)
        assert got == {uid: each for uid, each in wanted.items() if uid != poison}
        files = {path.name for path in (server / "artifacts").rglob("*") if path.is_file()}
        assert files == {"config.json", "outcome.json", "worker.log"}

        proxy.poison = ""
        assert sync_command(home, "toy", uri, verify=False, as_json=False) == 0
        assert contents(server / DATABASE) == wanted
        proxy.close()
    assert digests(home / "sweeps") == before
    assert len(proxy.passwords) == 1
    told = capsys.readouterr()
    assert PASSWORD not in told.out + told.err
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]


@pytest.mark.slow
def test_a_copied_home_has_every_artifact_in_the_interface(home: Path, tmp_path: Path) -> None:
    assert sync_command(home, "toy", None, verify=False, as_json=False) == 0
    copy = shutil.copytree(home, tmp_path / "elsewhere")
    shutil.rmtree(home)
    assert repair_artifact_locations(copy) > 20
    port = free_port()
    with served(server_command(copy, port), port, tmp_path):
        experiment = MlflowTracker(copy).find("toy")
        assert experiment is not None
        assert experiment in ui_url(port, experiment)

        def get(page: str, /, **query: str) -> bytes:
            address = f"http://127.0.0.1:{port}/{page}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(address, timeout=20) as answer:
                return bytes(answer.read())

        with contextlib.closing(sqlite3.connect(copy / DATABASE)) as db:
            runs = db.execute("SELECT run_uuid, name FROM runs").fetchall()
        assert len(runs) == 20
        for run, name in runs:
            listed = json.loads(get("ajax-api/2.0/mlflow/artifacts/list", run_id=run))
            assert {each["path"] for each in listed["files"]} >= {"config.json", "outcome.json", "worker.log"}
            assert get("get-artifact", path="worker.log", run_uuid=run) == f"0{name[:3]}\n".encode()
    assert not home.exists()
