"""Publishes a running production run to MLflow from a background thread."""

from __future__ import annotations

from pathlib import Path

from sweeper.core.job import CONFIG, LOG, OUTCOME
from sweeper.core.measurement import Failure, Report
from sweeper.production.content import content_of
from sweeper.production.folder import RunFolder
from sweeper.production.promise import Judgement
from sweeper.production.request import Wanted
from sweeper.tracking import Sender, SweepInfo
from sweeper.tracking.content import RunContent
from sweeper.tracking.mlflow import MlflowTracker

FLUSH_SECONDS = 30.0


class RunPublisher:
    """Publishes the committed part of a run at checkpoints and at its end; training never waits."""

    def __init__(self, tracker: MlflowTracker, folder: RunFolder, wanted: Wanted) -> None:
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
        return self._last(content)

    def failed(self, failure: Failure) -> str:
        """Publishes the failure; returns the same as `end`."""
        return self._last(
            content_of(self._folder, self._wanted, outcome=failure.kind.value, ended_at=failure.finished_at)
        )

    def _last(self, content: RunContent) -> str:
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
