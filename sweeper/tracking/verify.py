"""Compares MLflow's content with a sweep's folder. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.core.record import TrialRecord
from sweeper.tracking.content import UID_TAG, Point, RunContent, run_content, text
from sweeper.tracking.mlflow import MlflowTracker, files_of
from sweeper.tracking.runs import STATUS
from sweeper.tracking.tracker import RunView, SweepInfo

if TYPE_CHECKING:
    from mlflow import MlflowClient

OURS = ("result/", "infeasible/", "race/", "train/", "system/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The differences between MLflow and a sweep's folder.

    Attributes:
        lacking: A line for each item that is missing or different.
        extra: A line for each item that should not be there.
        runs: Number of trials whose runs were compared.
        points: Number of points that these trials have.
        deleted: Number of trials whose runs the user deleted; these are not compared.
    """

    lacking: tuple[str, ...]
    extra: tuple[str, ...]
    runs: int
    points: int
    deleted: int = 0


def compare(
    tracker: MlflowTracker, sweep: SweepInfo, trials: Sequence[tuple[TrialRecord, RunView]]
) -> Differences:
    """Compares every finished trial: its run, status, points, parameters, sweeper's tags, and files.

    A run that the user deleted does not count as missing, and the user's additions are ignored.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    with tracker.reading(sweep.name) as (client, runs):
        by_uid: dict[str, list[Any]] = {}
        for run in runs:
            if uid := run.data.tags.get(UID_TAG):
                by_uid.setdefault(uid, []).append(run)
        lacking, extra, points, deleted = [], [], 0, 0
        for record, view in trials:
            name = text(view.label)
            content = run_content(record, view, sweep)
            matches = by_uid.pop(record.uid, [])
            active = [run for run in matches if run.info.lifecycle_stage == "active"]
            if matches and not active:
                deleted += 1
                continue
            points += len(content.measured) + len(content.derived)
            if not matches:
                lacking.append(f"{name}: the run")
            extra += [f"{name}: a second run {run.info.run_id}" for run in active[1:]]
            for run in active[:1]:
                assert client is not None
                files = [path.name for path, _ in files_of(record, view)]
                lacking += [f"{name}: {what}" for what in _missing_items(client, run, content, files)]
                lost, odd = _points(client, run, content)
                lacking += [f"{name}: {what}" for what in lost]
                extra += [f"{name}: {what}" for what in odd]
        left = [run for group in by_uid.values() for run in group if run.info.lifecycle_stage == "active"]
        extra += [f"{text(run.info.run_name or '')}: a run without a trial here" for run in left]
    return Differences(
        lacking=tuple(lacking),
        extra=tuple(extra),
        runs=len(trials) - deleted,
        points=points,
        deleted=deleted,
    )


def _missing_items(
    client: MlflowClient, run: Any, content: RunContent, files: Iterable[str]
) -> Iterator[str]:
    if (run.info.status, run.info.end_time) != (STATUS[content.failed], content.end_ms):
        yield f"status {STATUS[content.failed]} (it is {run.info.status})"
    for kind, wanted, there in (
        ("parameter", content.params, run.data.params),
        ("tag", {key: value for key, value in content.tags.items() if value}, run.data.tags),
    ):
        for key, value in wanted.items():
            if there.get(key) != value:
                yield f"{kind} {key}={value} (it is {there.get(key)})"
    listed = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    yield from (f"file {name}" for name in files if name not in listed)


def _points(client: MlflowClient, run: Any, content: RunContent) -> tuple[list[str], list[str]]:
    """Returns a line for each metric with missing points, and one for each with extra points."""
    wanted: dict[str, set[Point]] = {}
    for point in (*content.measured, *content.derived):
        wanted.setdefault(point.key, set()).add(point)
    there: dict[str, set[Point]] = {}
    for key in {*wanted, *(key for key in run.data.metrics if key.startswith(OURS))}:
        history = client.get_metric_history(run.info.run_id, key) if key in run.data.metrics else []
        there[key] = {Point(key, metric.value, metric.timestamp, metric.step) for metric in history}
    lost = Counter({key: len(points - there[key]) for key, points in wanted.items()})
    odd = Counter({key: len(_extra_points(points, wanted.get(key, set()))) for key, points in there.items()})
    return (
        [f"{_count(count)} of {key}" for key, count in sorted((+lost).items())],
        [f"{_count(count)} of {key}" for key, count in sorted((+odd).items())],
    )


def _extra_points(there: set[Point], wanted: set[Point]) -> set[Point]:
    """Returns the points that should not be there; earlier points of a confirmation are allowed."""
    latest = max(((point.step, point.timestamp_ms) for point in wanted), default=(-1, -1))
    return {
        point
        for point in there - wanted
        if not (point.key.startswith("race/") and (point.step, point.timestamp_ms) < latest)
    }


def _count(count: int) -> str:
    return f"{count} point{'s' if count != 1 else ''}"
