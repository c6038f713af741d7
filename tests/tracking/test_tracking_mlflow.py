"""A real MLflow store: what is in it after `track`, and after `track` again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from records import LOSSES, run
from tracking_records import FINISHED, SWEEP, VARIED, config, failed, measured, some_trials

from sweeper.core.measurement import Diagnosis, FailureKind, Stats
from sweeper.core.metrics import METRICS
from sweeper.core.record import TrialRecord
from sweeper.errors import StorageError, UserError
from sweeper.system.environment import withheld_names
from sweeper.tracking import Confirmation, NullTracker, RunView, Tracker, content
from sweeper.tracking.content import Point, RunContent
from sweeper.tracking.mlflow import NOTE_TAG, MlflowTracker, client_class
from sweeper.tracking.ui import DATABASE, artifact_root, find_experiment, repair_artifact_locations, store_uri
from sweeper.tracking.view import VIEW_TAG

# MLflow 3.17 with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

VIEW = RunView(label="007 bs2048 res bf16 h256", speedup=14.0158, verdict="compute-bound", note="Fast.")
CONFIRMED = dataclasses.replace(
    VIEW,
    stage="confirmed",
    rank=1,
    confirmation=Confirmation(
        throughput=13000.0, ratio=14.1, ratio_low=13.8, ratio_high=14.4, rounds=(12900.0, 13100.0)
    ),
)


@pytest.fixture
def client(home: Path) -> MlflowClient:
    return MlflowClient(store_uri(home))


def runs_of(client: MlflowClient, home: Path, name: str = SWEEP.name) -> list[Run]:
    experiment = find_experiment(home, name)
    assert experiment is not None
    return list(client.search_runs([experiment], run_view_type=ViewType.ALL))


def only_run(client: MlflowClient, home: Path) -> Run:
    (run,) = runs_of(client, home)
    return run


def rows(home: Path) -> set[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as db:
        found = db.execute("SELECT run_uuid, key, timestamp, step, value, is_nan FROM metrics").fetchall()
    assert len(found) == len(set(found))
    return set(found)


def test_a_measured_trial_is_one_run_with_everything_a_reader_needs(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path, changes={"batch_size": 2048, "precision.amp": "bf16"})
    tracker.open(SWEEP)
    tracker.track(record, VIEW)

    run = only_run(client, home)
    assert run.info.run_name == VIEW.label
    assert run.info.status == "FINISHED"
    assert run.info.end_time == round((FINISHED + 140) * 1000)
    # Ten seconds of start and warm-up before the first window, which begins nine before the last ends;
    # the last telemetry sample, at 509.0, coincides with that end.
    assert run.info.end_time - run.info.start_time == 11350
    assert set(run.data.params) == set(VARIED)
    assert run.data.params["batch_size"] == "2048"
    assert run.data.params["precision.tf32"] == "default"
    assert run.data.metrics["result/throughput"] == 13040.0
    assert run.data.metrics["result/val_loss"] == 0.681235
    assert run.data.metrics["result/speedup"] == 14.02
    # The share of the memory is the peak once more, and the spread of the CPU is in its series.
    known = {name for name in METRICS if record.metric(name) is not None} - set(content._TWICE)
    expected = {f"result/{name}" for name in known}
    expected |= {"result/speedup", "result/val_accuracy"}
    assert {key for key in run.data.metrics if key.startswith("result/")} == expected
    assert run.data.metrics["result/val_accuracy"] == 0.91235
    assert (
        run.data.tags.items()
        >= {
            "sweeper.uid": record.uid,
            "sweeper.number": "7",
            "sweeper.stage": "search",
            "sweeper.outcome": "measured",
            "sweeper.verdict": "compute-bound",
            "mlflow.note.content": "Fast.",
            "mlflow.source.name": "sweeper",
        }.items()
    )
    assert "sweeper.rank" not in run.data.tags
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "config.json",
        "outcome.json",
        "worker.log",
    }
    assert run.info.artifact_uri.startswith(f"{artifact_root(home)}/stocks-a10/")


def test_series_carry_the_wall_time_at_which_they_were_measured(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path, points=12)
    tracker.open(SWEEP)
    tracker.track(record, VIEW)

    run_id = only_run(client, home).info.run_id
    end = round((FINISHED + 140) * 1000)
    windows = client.get_metric_history(run_id, "train/throughput")
    assert [(point.step, point.timestamp - end) for point in windows] == [(0, -6000), (1, -3000), (2, 0)]
    power = client.get_metric_history(run_id, "system/gpu_power_w")
    # The first two of the twelve samples are of the time before the windows, the last is not a number.
    assert [(point.step, point.timestamp - end) for point in power] == [
        (i, -9000 + 1000 * i) for i in range(9)
    ]


def test_the_losses_of_recorded_steps_are_a_curve(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    for rank in range(2):
        events = run([loss + rank for loss in LOSSES]).events["record-0"]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        # The process was ended while it wrote.
        (Path(record.folder) / f"record-{rank}.jsonl").write_text(lines + '{"loss": ["0x1')
    tracker.open(SWEEP)
    tracker.track(record, VIEW)

    curve = client.get_metric_history(only_run(client, home).info.run_id, "train/loss")
    assert [point.step for point in curve] == list(range(len(LOSSES)))
    assert [point.value for point in curve] == pytest.approx(LOSSES, rel=1e-4)


def test_what_comes_after_the_windows_is_not_shown_and_moves_nothing(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    """The parts on their own and the quality pass: 11 s in which telemetry goes on."""
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path, points=23, until=520.0), VIEW)

    run = only_run(client, home)
    end = round((FINISHED + 140) * 1000)
    power = client.get_metric_history(run.info.run_id, "system/gpu_power_w")
    assert len(power) == 10
    windows = client.get_metric_history(run.info.run_id, "train/throughput")
    assert [point.timestamp - end for point in windows] == [-17000, -14000, -11000]
    assert [power[0].timestamp - end, power[-1].timestamp - end] == [-20000, -11000]
    assert run.info.end_time - run.info.start_time == 22350


def test_a_long_series_is_thinned_to_block_means(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path, points=20_000), VIEW)

    run_id = only_run(client, home).info.run_id
    points = client.get_metric_history(run_id, "system/gpu_util_pct")
    assert len(points) == 100
    assert all(abs(point.value - 90) < 2 for point in points)


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "after a restart"])
def test_a_replay_changes_nothing(
    fresh: bool, tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    records = [measured(tmp_path, 7), failed(tmp_path, 8)]
    for record in records:
        tracker.track(record, CONFIRMED)
    before, seen = rows(home), [run.to_dictionary() for run in runs_of(client, home)]
    experiment = client.get_experiment_by_name(SWEEP.name)

    again = MlflowTracker(home) if fresh else tracker
    again.open(SWEEP)
    for record in records:
        again.track(record, CONFIRMED)

    assert rows(home) == before
    assert [run.to_dictionary() for run in runs_of(client, home)] == seen
    assert client.get_experiment_by_name(SWEEP.name).tags == experiment.tags


@pytest.mark.parametrize("call", ["create_run", "log_batch", "log_artifact", "set_terminated"])
@pytest.mark.parametrize("reached", [False, True], ids=["before", "after"])
def test_a_call_that_breaks_anywhere_is_repaired_by_the_next(
    call: str,
    reached: bool,
    tracker: MlflowTracker,
    client: MlflowClient,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    real = getattr(MlflowClient, call)

    def broken(*args: object, **given: object) -> None:
        if reached:
            real(*args, **given)
        raise ConnectionError("the server went away")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, broken)
        with pytest.raises(StorageError, match="`007 bs2048 res bf16 h256`: the server went away"):
            tracker.track(record, VIEW)
    tracker.track(record, VIEW)

    run = only_run(client, home)
    assert run.info.status == "FINISHED"
    assert "system/gpu_power_w" in run.data.metrics
    assert len(client.list_artifacts(run.info.run_id)) == 3
    rows(home)


def test_confirmation_is_added_to_the_same_run(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    tracker.track(record, VIEW)
    tracker.track(record, CONFIRMED)
    turns = ((7.5, 12800.0), (5.0, 13000.0), (0.0, 12850.0))
    more = Confirmation(throughput=12950.0, ratio=14.0, rounds=(12900.0, 13100.0, 12850.0), turns=turns)
    tracker.track(record, dataclasses.replace(CONFIRMED, confirmation=more))

    run = only_run(client, home)
    assert run.data.tags["sweeper.stage"] == "confirmed"
    assert run.data.tags["sweeper.rank"] == "1"
    # Fewer than before, and yet the latest.
    assert run.data.metrics["race/throughput"] == 12950.0
    assert run.data.metrics["race/ratio"] == 14.0
    series = client.get_metric_history(run.info.run_id, "race/rounds/throughput")
    assert [point.value for point in series] == [12900.0, 13100.0, 12850.0]
    ended = series[-1].timestamp
    series = client.get_metric_history(run.info.run_id, "race/turns/throughput")
    assert [(ended - point.timestamp, point.value) for point in series] == [
        (7500, 12800.0),
        (5000, 13000.0),
        (0, 12850.0),
    ]


def test_a_loss_that_comes_later_is_shown_once(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    """The baseline's loss has a pass of its own, after its run is there and FINISHED."""
    record = dataclasses.replace(measured(tmp_path), derived={"time_to_loss_s": 12.5})
    tracker.open(SWEEP)
    tracker.track(dataclasses.replace(record, quality=None, derived={}), VIEW)
    assert "result/val_loss" not in only_run(client, home).data.metrics
    tracker.track(record, VIEW)
    after = rows(home)
    tracker.track(record, VIEW)
    assert only_run(client, home).data.metrics["result/val_loss"] == 0.681235
    assert only_run(client, home).data.metrics["result/time_to_loss_s"] == 12.5
    assert rows(home) == after


def test_what_disturbed_a_trial_is_a_tag(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    tracker.track(record, VIEW)
    assert "sweeper.contaminated" not in only_run(client, home).data.tags
    reasons = "other processes took cores, the host took cores (steal)"
    tracker.track(record, dataclasses.replace(VIEW, contamination=reasons))
    assert only_run(client, home).data.tags["sweeper.contaminated"] == reasons
    assert only_run(client, home).data.tags["sweeper.verdict"] == "compute-bound"


def test_at_most_thirty_metrics_sum_a_trial_up(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    """Of one that has all there is: more would not be a table any more."""
    full = measured(tmp_path)
    assert full.measurement is not None
    series = {name.removesuffix("_p50") for name in METRICS if name.endswith("_p50")}
    series |= {"tree_cpu_pct", "gpu_power_w"}
    told = {name: Stats(mean=50.0, p50=40.0, p95=90.0) for name in series}
    outcome = dataclasses.replace(full.measurement, telemetry=told, diagnosis=Diagnosis(busy_s=1e-3))
    derived = {"projected_hours": 1.5, "time_to_loss_s": 12.5, "cost_per_run": 3.0}
    record = dataclasses.replace(full, outcome=outcome, derived=derived)
    assert [name for name in METRICS if record.metric(name) is None] == []
    tracker.open(SWEEP)
    tracker.track(record, CONFIRMED)

    metrics = only_run(client, home).data.metrics
    found = {
        name for name in metrics if not name.startswith(("system/", "train/", "race/rounds/", "race/turns/"))
    }
    assert len(METRICS) < len(found) <= 30
    assert series >= {"gpu_util_pct", "gpu_power_w", "cpu_util_pct"}
    for name in series - {"tree_cpu_pct", "cpu_util_pct", "gpu_power_w"}:
        assert [metrics[f"result/{name}{part}"] for part in ("", "_p50", "_p95")] == [50.0, 40.0, 90.0]


def test_a_rank_is_taken_back(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    tracker.track(record, CONFIRMED)
    tracker.track(record, dataclasses.replace(CONFIRMED, rank=None))
    assert only_run(client, home).data.tags["sweeper.rank"] == ""


def test_a_torn_series_costs_no_more_than_itself(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    torn = Path(record.folder) / "series" / "gpu_power_w.npy"
    torn.write_bytes(torn.read_bytes()[:100])
    tracker.open(SWEEP)
    tracker.track(record, VIEW)
    found = {key for key in only_run(client, home).data.metrics if key.startswith("system/")}
    assert found == {"system/cpu_util_pct", "system/gpu_util_pct", "system/gpu_mem_gib"}


def test_nothing_but_finite_numbers_is_sent(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    nan = Confirmation(throughput=math.inf, ratio=math.nan, rounds=(math.nan, 13000.0))
    view = dataclasses.replace(VIEW, speedup=math.inf, confirmation=nan)
    tracker.track(measured(tmp_path, val_loss=math.nan), view)

    run = only_run(client, home)
    assert not {"result/val_loss", "result/speedup", "race/ratio", "race/throughput"} & set(run.data.metrics)
    for _, key, _, _, value, is_nan in rows(home):
        assert not is_nan, key
        assert isinstance(value, float)
        assert abs(value) < 1e300, key
    assert [p.step for p in client.get_metric_history(run.info.run_id, "race/rounds/throughput")] == [1]


def test_an_infeasible_trial_is_seen_but_not_compared(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path, violations={"val_loss": 0.02}), VIEW)

    run = only_run(client, home)
    assert run.info.status == "FINISHED"
    assert run.data.tags["sweeper.outcome"] == "infeasible"
    assert not any(key.startswith("result/") for key in run.data.metrics)
    assert run.data.metrics["infeasible/throughput"] == 13040.0
    assert run.data.metrics["infeasible/speedup"] == 14.02


def test_a_failed_trial_is_seen_without_metrics(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    tracker.track(failed(tmp_path, 8, FailureKind.OOM), RunView(label="008 bs4096"))

    run = only_run(client, home)
    assert run.info.status == "FAILED"
    assert run.info.end_time - run.info.start_time == 4500
    assert run.data.tags["sweeper.outcome"] == "oom"
    assert "tried to allocate 9.4 GiB" in run.data.tags[NOTE_TAG]
    assert run.data.metrics == {}
    assert run.data.params["batch_size"] == "4096"


def test_a_running_trial_becomes_the_finished_one(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    tracker.track(dataclasses.replace(record, outcome=None), VIEW)
    assert only_run(client, home).info.status == "RUNNING"
    assert only_run(client, home).data.metrics == {}

    tracker.track(record, VIEW)
    assert only_run(client, home).info.status == "FINISHED"
    assert only_run(client, home).data.metrics["result/throughput"] == 13040.0


def test_the_winner_comes_first_in_a_search(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    for record, view in some_trials(tmp_path):
        tracker.track(record, view)

    confirmed = client.search_runs(
        [tracker.experiment_id],
        filter_string="tags.`sweeper.stage` = 'confirmed'",
        order_by=["metrics.`race/ratio` DESC"],
    )
    assert [run.data.tags["sweeper.rank"] for run in confirmed] == ["1", "2"]
    best = client.search_runs([tracker.experiment_id], order_by=["metrics.`result/throughput` DESC"])[0]
    assert best.data.tags["sweeper.outcome"] == "measured"


def test_the_experiment_says_what_it_is(tracker: MlflowTracker, client: MlflowClient) -> None:
    tracker.open(SWEEP)
    tags = client.get_experiment(tracker.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert tags["sweeper.device"] == SWEEP.device
    assert tags["sweeper.synthetic"] == "true"
    assert "Synthetic data" in tags[NOTE_TAG]
    assert "14.1 times the baseline" in tags[NOTE_TAG]


def test_a_run_says_what_it_was_made_with_and_from(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    assert record.measurement is not None
    versions = {"torch": "2.13.0", "cuda": "12.8"}
    record = dataclasses.replace(record, outcome=dataclasses.replace(record.measurement, versions=versions))
    tracker.open(SWEEP)
    for _ in range(2):
        tracker.track(record, VIEW)

    run = only_run(client, home)
    assert (
        run.data.tags.items()
        >= {
            "sweeper.version": "0.1.0",
            "sweeper.torch": "2.13.0",
            "sweeper.cuda": "12.8",
            "mlflow.source.git.commit": 40 * "a",
        }.items()
    )
    assert "sweeper.driver" not in run.data.tags
    (there,) = run.inputs.dataset_inputs
    assert (there.dataset.name, there.dataset.digest) == ("features", "0123456789abcdef")
    assert "data/features" in there.dataset.source
    assert {tag.key: tag.value for tag in there.tags} == {"mlflow.data.context": "training"}


def test_a_file_is_sent_once_for_every_content(
    tracker: MlflowTracker,
    client: MlflowClient,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, report = measured(tmp_path), tmp_path / "report.html"
    report.write_text("first")
    view = dataclasses.replace(VIEW, files=(str(report), str(tmp_path / "absent.png")))
    sent: list[str] = []
    real = MlflowClient.log_artifact

    def log_artifact(self: MlflowClient, run_id: str, path: str, folder: str | None = None) -> None:
        sent.append(Path(path).name)
        real(self, run_id, path, folder)

    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    tracker.open(SWEEP)
    for _ in range(2):
        tracker.track(record, view)
    assert sorted(sent) == ["config.json", "outcome.json", "report.html", "worker.log"]
    report.write_text("second")
    tracker.track(record, view)
    assert sent[4:] == ["report.html"]
    run = only_run(client, home)
    shown = home / "artifacts" / SWEEP.name / run.info.run_id / "artifacts"
    assert (shown / "report.html").read_text() == "second"
    # What is lost is seen by one who looks.
    (shown / "worker.log").unlink()
    thorough = MlflowTracker(home, thorough=True)
    thorough.open(SWEEP)
    thorough.track(record, view)
    assert sent[5:] == ["worker.log"]


def test_a_run_of_another_kind_is_shown_by_the_same_means(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    points = tuple(Point("train/loss", 1.0 / step, 1000 * step, step) for step in (1, 2))
    content = RunContent(
        params={"lr": "0.1"},
        measured=points,
        derived=(),
        tags={"a": "b"},
        note="",
        start_ms=5,
        end_ms=None,
        failed=False,
    )
    tracker.open(SWEEP)
    tracker.send("train-1", "production", content, [(weights, "weights")])
    run = only_run(client, home)
    assert (run.info.run_name, run.info.status) == ("production", "RUNNING")
    assert run.data.metrics == {"train/loss": 0.5}
    assert [each.path for each in client.list_artifacts(run.info.run_id, "weights")] == [
        "weights/model.safetensors"
    ]
    tracker.send("train-1", "production", dataclasses.replace(content, end_ms=9000), [])
    assert only_run(client, home).info.status == "FINISHED"


def test_a_trial_found_infeasible_later_has_its_run_made_anew(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    """Its loss came from another trial of the same numerics; MLflow takes no metric back."""
    record = measured(tmp_path)
    tracker.open(SWEEP)
    tracker.track(record, VIEW)
    before = only_run(client, home).info.run_id
    client.set_tag(before, "team", "vision")
    client.set_tag(before, NOTE_TAG, "Mine.")
    for _ in range(2):
        tracker.track(dataclasses.replace(record, violations={"val_loss": 0.02}), VIEW)

    (run,) = [run for run in runs_of(client, home) if run.info.lifecycle_stage == "active"]
    assert run.info.run_id != before
    assert not any(key.startswith("result/") for key in run.data.metrics)
    assert run.data.metrics["infeasible/throughput"] == 13040.0
    assert (run.data.tags["team"], run.data.tags[NOTE_TAG]) == ("vision", "Mine.")
    assert len(client.list_artifacts(run.info.run_id)) == 3
    tracker.track(
        dataclasses.replace(record, violations={"val_loss": 0.02}), dataclasses.replace(VIEW, note="x")
    )
    assert client.get_run(run.info.run_id).data.tags[NOTE_TAG] == "Mine."
    assert len(runs_of(client, home)) == 2


def test_another_confirmation_later_is_the_one_that_counts(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    assert CONFIRMED.confirmation is not None
    lower = dataclasses.replace(CONFIRMED.confirmation, ratio=2.0)
    tracker.track(record, dataclasses.replace(CONFIRMED, confirmed_at=FINISHED + 200))
    tracker.track(record, dataclasses.replace(CONFIRMED, confirmation=lower, confirmed_at=FINISHED + 900))
    run = only_run(client, home)
    assert run.data.metrics["race/ratio"] == 2.0
    stamps = [each.timestamp for each in client.get_metric_history(run.info.run_id, "race/ratio")]
    assert sorted(stamps) == [round((FINISHED + seconds) * 1000) for seconds in (200, 900)]


def test_what_does_not_print_is_shown_as_escapes(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    view = dataclasses.replace(VIEW, label="007 \x1b[31m\u202eder", note="one\n\ntwo \x07", verdict="größer")
    tracker.track(measured(tmp_path), view)
    run = only_run(client, home)
    assert run.info.run_name == r"007 \x1b[31m\u202eder"
    assert run.data.tags[NOTE_TAG] == "one\n\ntwo \\x07"
    assert run.data.tags["sweeper.verdict"] == "größer"


def test_what_a_person_wrote_or_deleted_stays(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    kept, gone, ours = measured(tmp_path, 1), measured(tmp_path, 2), measured(tmp_path, 3)
    tracker.open(SWEEP)
    for record in (kept, gone, ours):
        tracker.track(record, VIEW)
    run_ids = {run.data.tags["sweeper.number"]: run.info.run_id for run in runs_of(client, home)}
    client.set_tag(run_ids["1"], NOTE_TAG, "Mine.")
    client.set_tag(run_ids["1"], "team", "vision")
    client.delete_run(run_ids["2"])
    client.set_experiment_tag(tracker.experiment_id, VIEW_TAG, "my view")

    again = MlflowTracker(home)
    again.open(dataclasses.replace(SWEEP, note="Another decision."))
    for record in (kept, gone, ours):
        again.track(record, dataclasses.replace(CONFIRMED, note="The winner."))

    assert len(runs_of(client, home)) == 3
    assert client.get_run(run_ids["1"]).data.tags[NOTE_TAG] == "Mine."
    assert client.get_run(run_ids["1"]).data.tags["team"] == "vision"
    assert client.get_run(run_ids["2"]).info.lifecycle_stage == "deleted"
    assert client.get_run(run_ids["3"]).data.tags[NOTE_TAG] == "The winner."
    experiment = client.get_experiment(tracker.experiment_id)
    assert experiment.tags[VIEW_TAG] == "my view"
    assert "Another decision." in experiment.tags[NOTE_TAG]


def test_of_two_runs_for_one_trial_one_stays(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    record = measured(tmp_path)
    tracker.open(SWEEP)
    for _ in range(2):
        client.create_run(tracker.experiment_id, tags={"sweeper.uid": record.uid})
    tracker.track(record, VIEW)

    states = sorted((run.info.lifecycle_stage, run.info.status) for run in runs_of(client, home))
    assert states == [("active", "FINISHED"), ("deleted", "RUNNING")]


def test_parameters_outside_the_space_and_odd_values_are_taken(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    odd = config().replace(
        {"model.größe/x?": "a\0" + "b" * 9000, "model.bias": None, "batch_size": 1_000_000}
    )
    varied = ("batch_size", "model.größe/x?", "model.bias", "model.absent")
    tracker.open(dataclasses.replace(SWEEP, varied=varied))
    tracker.track(dataclasses.replace(measured(tmp_path), config=odd), VIEW)

    params = only_run(client, home).data.params
    assert params["batch_size"] == "1000000"
    assert params["model.bias"] == "null"
    (long,) = (value for name, value in params.items() if name.startswith("model.gr"))
    assert long == r"a\x00" + "b" * 494 + "…"
    assert "model.absent" not in params


@pytest.mark.parametrize("where", ["my runs #1 ü", "a+b&c=d", "50%off", "q?u%20é #%3f:x"])
def test_a_home_may_have_an_odd_name(where: str, tmp_path: Path) -> None:
    home = tmp_path / where
    tracker = MlflowTracker(home)
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path), VIEW)

    (run,) = runs_of(MlflowClient(store_uri(home)), home)
    assert (home / "artifacts" / SWEEP.name / run.info.run_id / "artifacts" / "worker.log").is_file()
    assert "worker.log" in [
        file.path for file in MlflowClient(store_uri(home)).list_artifacts(run.info.run_id)
    ]
    assert sorted(path.name for path in home.iterdir()) == ["artifacts", "mlflow.db"]
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {home, *tmp_path.glob("0*")}


def test_a_home_that_no_uri_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_before_2_1(uri: str) -> SimpleNamespace:
        return SimpleNamespace(database=uri.partition(":///")[2].partition("?")[0])

    monkeypatch.setattr("sqlalchemy.make_url", as_before_2_1)
    assert store_uri(tmp_path / "50%20") == f"sqlite:///{tmp_path}/50%20/mlflow.db"
    with pytest.raises(
        UserError, match=r"must not contain \?.*'/.*/what\?/mlflow.db'\. Choose another folder"
    ):
        MlflowTracker(tmp_path / "what?")


def test_a_database_that_cannot_be_opened_is_named_as_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"the MLflow database /.*/a b/m\.db .*write %25 for %") as raised:
        MlflowTracker(tmp_path, f"sqlite:///{tmp_path}/a%20b/m.db").open(SWEEP)
    assert "%20" not in str(raised.value)


def test_a_home_that_cannot_be_made_is_a_storage_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        MlflowTracker(tmp_path / "file" / "home").open(SWEEP)


def test_a_moved_home_is_mended(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path), VIEW)
    foreign = client.create_experiment("theirs", artifact_location="/data/theirs")
    client.create_run(foreign)
    assert repair_artifact_locations(home) == 0

    moved = home.rename(tmp_path / "elsewhere")
    assert repair_artifact_locations(moved) == 3  # Two experiments (one of the template) and a run.
    assert repair_artifact_locations(moved) == 0
    there = MlflowClient(store_uri(moved))
    (run,) = runs_of(there, moved)
    assert run.info.artifact_uri == f"{moved}/artifacts/stocks-a10/{run.info.run_id}/artifacts"
    assert there.get_experiment(foreign).artifact_location == "/data/theirs"


def test_a_sweep_that_goes_on_in_a_moved_home_writes_there(
    tracker: MlflowTracker, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    moved = home.rename(tmp_path / "elsewhere")
    again = MlflowTracker(moved)
    again.open(SWEEP)
    again.track(measured(tmp_path), VIEW)
    assert not home.exists()


def test_mending_needs_no_database(tmp_path: Path) -> None:
    assert repair_artifact_locations(tmp_path / "none") == 0
    assert find_experiment(tmp_path / "none", "x") is None
    sqlite3.connect(tmp_path / DATABASE).close()
    assert repair_artifact_locations(tmp_path) == 0


def test_a_file_that_is_no_database_is_a_storage_error_at_once(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("not a database, " * 100)
    with pytest.raises(StorageError, match=r"mlflow\.db cannot be used: file is not a database"):
        MlflowTracker(tmp_path).open(SWEEP)


def test_a_dead_server_is_a_storage_error_and_a_later_call_tries_again(tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path, "http://127.0.0.1:9")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"`stocks-a10`: http://127.0.0.1:9 cannot be reached \(Conn"):
            tracker.open(SWEEP)
        with pytest.raises(StorageError, match="`stocks-a10`"):
            tracker.track(measured(tmp_path), VIEW)


def test_a_deleted_experiment_is_said_and_not_brought_back(
    tracker: MlflowTracker, client: MlflowClient, home: Path, tmp_path: Path
) -> None:
    tracker.open(SWEEP)
    client.delete_experiment(tracker.experiment_id)
    with pytest.raises(StorageError, match=r"was deleted\. Restore it") as raised:
        MlflowTracker(home).open(SWEEP)
    with pytest.raises(UserError, match="was deleted"):
        find_experiment(home, SWEEP.name)
    # What is printed works when typed, wherever that is.
    command = str(raised.value).split("`")[-2]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment, capture_output=True)
    MlflowTracker(home).open(SWEEP)
    assert list(tmp_path.glob("*.db")) == []


def test_an_experiment_keeps_its_runs_under_another_name(
    tracker: MlflowTracker, client: MlflowClient, home: Path
) -> None:
    tracker.open(SWEEP)
    client.rename_experiment(tracker.experiment_id, "My comparison")
    again = MlflowTracker(home)
    again.open(SWEEP)
    assert again.experiment_id == tracker.experiment_id == find_experiment(home, SWEEP.name)
    assert client.get_experiment(again.experiment_id).name == "My comparison"


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "mlruns", "/tmp/mlruns"])
def test_the_file_store_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plain folders"):
        MlflowTracker(tmp_path, uri)


def test_trials_inherit_no_tracking_uri(tracker: MlflowTracker, tmp_path: Path) -> None:
    tracker.open(SWEEP)
    tracker.track(measured(tmp_path), VIEW)
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert "MLFLOW_RUN_ID" not in os.environ


def test_importing_the_package_does_not_import_mlflow() -> None:
    code = (
        "import sys, sweeper.tracking, sweeper.tracking.mlflow as m, pathlib;"
        "m.MlflowTracker(pathlib.Path('x'));"
        "sys.exit(bool({'mlflow', 'sqlalchemy', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_trackers_fit_the_seam(tmp_path: Path) -> None:
    trackers: list[Tracker] = [MlflowTracker(tmp_path), NullTracker()]
    record = TrialRecord(number=0, uid="u", stage="search", config=config())
    trackers[1].open(SWEEP)
    trackers[1].track(record, VIEW)
    trackers[1].close()
    assert list(tmp_path.iterdir()) == []


def test_a_database_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed)
        with pytest.raises(Killed):
            MlflowTracker(tmp_path).open(SWEEP)
    assert not (tmp_path / DATABASE).exists()
    # What a kill leaves beside it does not matter.
    (tmp_path / ".making-1.db").write_text("half")
    tracker = MlflowTracker(tmp_path)
    tracker.open(SWEEP)
    assert tracker.experiment_id
    assert [path.name for path in tmp_path.glob(".making-*")] == [".making-1.db"]


def test_what_the_client_sets_for_itself_is_never_said_to_be_held_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {})
    client_class()
    assert "PGCONNECT_TIMEOUT" in os.environ
    assert withheld_names(os.environ) == ()
