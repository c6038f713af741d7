"""Showing a run in a real MLflow store while it runs: one run, and nothing that may be taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from productions import block, commit, validation, values_of, write

from sweeper.core.measurement import Failure, FailureKind, Report
from sweeper.errors import StorageError
from sweeper.production.folder import SYSTEM, RunFolder
from sweeper.production.promise import assess
from sweeper.production.publish import RunPublisher
from sweeper.production.request import RunRequest
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import store_uri

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)


@pytest.fixture
def client(here: Path, tracker: MlflowTracker) -> MlflowClient:
    return MlflowClient(store_uri(here / "home"))


def only_run(client: MlflowClient) -> Any:
    experiment = client.get_experiment_by_name("lines production")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def sent(publisher: RunPublisher) -> None:
    """Waits until what was given to the sender is there."""
    assert publisher._sender.drain(30.0).problem == ""


def steps_of(client: MlflowClient, name: str) -> list[int]:
    return [point.step for point in client.get_metric_history(only_run(client).info.run_id, name)]


def ended(publisher: RunPublisher, folder: RunFolder, wanted: RunRequest, **values: Any) -> str:
    report = Report(values=values_of(**values), finished_at=5000.0)
    return publisher.end(report, assess(report.values, wanted.promise, {}))


def test_a_run_from_its_begin_to_its_end(
    folder: RunFolder, ask: Any, tracker: MlflowTracker, client: MlflowClient
):
    wanted = ask()
    publisher = RunPublisher(tracker, folder, wanted)
    publisher.look()
    sent(publisher)
    assert (only_run(client).info.status, only_run(client).info.run_name) == ("RUNNING", "lines-007")
    write(folder, block(10, 4.0))
    commit(folder)
    write(folder, block(20, 8.0), validation(20, 8.0, 0.5))
    publisher.look()
    sent(publisher)
    # What no checkpoint knows of may be trained again, and come out at another time.
    assert steps_of(client, "train/loss") == [10]
    assert "val/loss" not in only_run(client).data.metrics
    commit(folder)
    write(folder, {"at": 7.0, "seconds": 0.0, "means": {"cpu_util_pct": 9.0}, "flags": []}, name=SYSTEM)
    folder.job.mkdir()
    (folder.job / "config.json").write_text("{}")
    assert ended(publisher, folder, wanted) == ""
    run = only_run(client)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 5_000_000)
    assert steps_of(client, "train/loss") == [10, 20]
    assert set(run.data.metrics) == {
        "train/loss",
        "train/throughput",
        "train/lr",
        "val/loss",
        "val/accuracy",
        "system/cpu_util_pct",
        "result/throughput",
        "result/promised_throughput",
        "result/ratio_to_promise",
        "result/val_loss",
        "result/best_val_loss",
        "result/val_accuracy",
        "result/epochs",
        "result/minutes",
    }
    assert run.data.tags["sweeper.stage"] == "production"
    assert run.data.tags["sweeper.outcome"] == "trained"
    assert run.data.params["train.epochs"] == "3"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.json"]


def test_after_a_kill_it_is_still_the_same_run(
    folder: RunFolder, ask: Any, here: Path, tracker: MlflowTracker, client: MlflowClient
):
    wanted = ask()
    for number in range(3):
        again = RunPublisher(MlflowTracker(here / "home"), folder, wanted)
        write(folder, block(10 * number + 10, 4.0 * number + 4))
        commit(folder)
        again.look()
        sent(again)
        again._sender.close()
    assert (
        ended(RunPublisher(MlflowTracker(here / "home"), folder, wanted), folder, wanted, ended="stopped")
        == ""
    )
    assert only_run(client).data.tags["sweeper.outcome"] == "stopped"
    assert ended(RunPublisher(MlflowTracker(here / "home"), folder, wanted), folder, wanted) == ""
    assert only_run(client).data.tags["sweeper.outcome"] == "trained"
    assert steps_of(client, "train/loss") == [10, 20, 30]


def test_one_that_failed_says_so(folder: RunFolder, ask: Any, tracker: MlflowTracker, client: MlflowClient):
    publisher = RunPublisher(tracker, folder, ask())
    assert publisher.fail(Failure(kind=FailureKind.NON_FINITE, message="inf", finished_at=5000.0)) == ""
    run = only_run(client)
    assert (run.info.status, run.data.tags["sweeper.outcome"]) == ("FAILED", "non_finite")


class Away:
    """A store that cannot be reached; remembers how often it was tried."""

    def __init__(self) -> None:
        self.tried = 0

    def open(self, info: Any) -> None:
        self.tried += 1
        raise StorageError("the store is away")

    def close(self) -> None:
        pass


def test_a_store_that_is_away_holds_nobody_up_and_is_told_at_the_end(folder: RunFolder, ask: Any):
    wanted, away = ask(), Away()
    publisher = RunPublisher(away, folder, wanted)  # type: ignore[arg-type]
    for number in range(5):
        write(folder, block(number, float(number)))
        commit(folder)
        publisher.look()
    assert ended(publisher, folder, wanted) == "the store is away"
    assert away.tried > 0


def test_nothing_is_sent_while_nothing_new_is_committed(folder: RunFolder, ask: Any):
    put = []
    publisher = RunPublisher(Away(), folder, ask())  # type: ignore[arg-type]
    publisher._sender.put = lambda key, send: put.append(key)  # type: ignore[method-assign]
    for _ in range(3):
        publisher.look()
    assert len(put) == 1
    write(folder, block(1, 1.0))
    publisher.look()
    assert len(put) == 1
    commit(folder)
    publisher.look()
    publisher.look()
    assert len(put) == 2
