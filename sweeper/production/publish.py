"""Publishes a production run to MLflow from a background thread: points that a resumed run never retracts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.job import CONFIG, LOG, OUTCOME
from sweeper.core.measurement import Failure, Report
from sweeper.core.metrics import round_to
from sweeper.production.folder import RunFolder
from sweeper.production.promise import Judgement
from sweeper.production.request import RunRequest
from sweeper.tracking import Sender, SweepInfo
from sweeper.tracking.content import UID_TAG, Point, RunContent, key, param, text
from sweeper.tracking.mlflow import MlflowTracker

FLUSH_SECONDS = 30.0
POINTS_PER_E_FOLD = 200
_DIGITS = 5


class RunPublisher:
    """Publishes the committed part of a run at checkpoints and at its end; training never waits."""

    def __init__(self, tracker: MlflowTracker, folder: RunFolder, wanted: RunRequest) -> None:
        self._tracker, self._folder, self._wanted = tracker, folder, wanted
        self._sender = Sender()
        self._shown_bytes = -1
        self._opened = False

    def look(self) -> None:
        """Publishes what was committed since the last call."""
        committed = self._folder.committed_bytes()
        if committed > self._shown_bytes:
            self._shown_bytes = committed
            self._put(content_of(self._folder, self._wanted))

    def end(self, report: Report, judgement: Judgement) -> str:
        """Publishes the result; returns why that failed, or an empty string."""
        outcome = "stopped" if report.values["ended"] == "stopped" else "trained"
        content = content_of(
            self._folder,
            self._wanted,
            outcome=outcome,
            ended_at=report.finished_at,
            values=report.values,
            judgement=judgement,
        )
        return self._publish_last(content)

    def fail(self, failure: Failure) -> str:
        """Publishes the failure; returns the same as `end`."""
        return self._publish_last(
            content_of(self._folder, self._wanted, outcome=failure.kind.value, ended_at=failure.finished_at)
        )

    def _publish_last(self, content: RunContent) -> str:
        paths = [self._folder.job / name for name in (CONFIG, OUTCOME, LOG)]
        self._put(content, [(path, "") for path in paths if path.is_file()])
        problem = self._sender.drain(FLUSH_SECONDS).problem
        self._sender.close()
        self._tracker.close()
        return problem

    def _put(self, content: RunContent, files: list[tuple[Path, str]] | None = None) -> None:
        wanted, folder = self._wanted, self._folder
        info = SweepInfo(
            name=f"{wanted.sweep} production",
            pipeline=wanted.pipeline,
            note=f"Production runs of configurations that the sweep `{wanted.sweep}` found.",
        )

        def send() -> None:
            if not self._opened:
                self._tracker.open(info)
                self._opened = True
            self._tracker.send(folder.uid, folder.name, content, files or [])

        self._sender.put(folder.uid, send)


def content_of(
    folder: RunFolder,
    wanted: RunRequest,
    *,
    outcome: str = "running",
    ended_at: float | None = None,
    values: Mapping[str, Any] | None = None,
    judgement: Judgement | None = None,
) -> RunContent:
    """Returns the content of a run up to its latest commit; later calls only add to it."""
    points = list(_points(folder))
    end = None if ended_at is None else round(1000 * ended_at)
    results = list(_results(values, judgement, end)) if values and judgement and end else []
    return RunContent(
        params={name: param(value) for name, value in wanted.config.canonical().flatten().items()}
        | {"train.epochs": str(wanted.training.epochs), "train.schedule": wanted.training.schedule},
        measured=tuple(points),
        derived=tuple(results),
        tags={
            UID_TAG: folder.uid,
            "sweeper.stage": "production",
            "sweeper.outcome": outcome,
            "sweeper.sweep": wanted.sweep,
            "sweeper.trial": str(wanted.trial),
        },
        note=_note(wanted, judgement),
        start_ms=round(1000 * folder.began_at),
        end_ms=end,
        failed=values is None and end is not None,
    )


def _note(wanted: RunRequest, judgement: Judgement | None) -> str:
    sentence = f"Production run of trial {wanted.trial} of the sweep `{wanted.sweep}`."
    if judgement is None:
        return sentence
    return "\n\n".join([f"**{text(judgement.words)}**", *judgement.reasons, sentence])


def _points(folder: RunFolder) -> Iterator[Point]:
    facts = list(folder.history())
    for line in _thin(fact for fact in facts if "loss" in fact):
        at, step = round(1000 * line["at"]), line["steps"]
        for name in ("loss", "throughput", "lr"):
            yield Point(f"train/{name}", round_to(line[name], _DIGITS), at, step)
    for line in _thin(fact for fact in facts if fact.get("val_loss") is not None):
        at, step = round(1000 * line["at"]), line["steps"]
        yield Point("val/loss", round_to(line["val_loss"], 6), at, step)
        for name, value in line.get("metrics", {}).items():
            yield Point(key(f"val/{name}"), round_to(value, _DIGITS), at, step)
    for step, line in enumerate(_thin(folder.system())):
        for name, value in line["means"].items():
            if not name.startswith("cpu_core_"):
                yield Point(f"system/{name}", round_to(value, _DIGITS), round(1000 * line["at"]), step)


def _thin(lines: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields the first line in each of ever longer spans of time.

    The choice does not depend on later lines, so published points stay.
    """
    last = -math.inf
    for line in lines:
        place = math.floor(POINTS_PER_E_FOLD * math.log1p(line["seconds"] / POINTS_PER_E_FOLD))
        if place > last:
            last = place
            yield line


def _results(values: Mapping[str, Any], judgement: Judgement, end_ms: int) -> Iterator[Point]:
    results = {
        "throughput": judgement.reached,
        "promised_throughput": judgement.promised,
        "ratio_to_promise": judgement.ratio,
        "val_loss": values["val_loss"],
        "best_val_loss": values["best_loss"],
        **{key(f"val_{name}"): value for name, value in values["metrics"].items()},
        "epochs": values["epochs"],
        "minutes": values["seconds"] / 60,
        "gpu_mem_peak_gib": values["gpu_mem_peak_gib"],
    }
    for name, value in results.items():
        if value is not None and math.isfinite(value):
            yield Point(f"result/{name}", round_to(value, _DIGITS), end_ms)
