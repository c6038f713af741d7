"""Showing a sweep in MLflow: one experiment, one flat run per trial, every write safe to repeat."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.errors import StorageError, UserError
from sweeper.core.job import CONFIG, LOG, OUTCOME, TELEMETRY_LOG, TRACE
from sweeper.core.record import TrialRecord
from sweeper.tracking.content import UID_TAG, RunContent, run_content, sweep_note, sweep_tags, text
from sweeper.tracking.tracker import RunView, SweepInfo
from sweeper.tracking.ui import DATABASE, artifact_root, directory_of, mend_artifact_locations, store_uri
from sweeper.tracking.view import VIEW_TAG, view_tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTE_TAG = "mlflow.note.content"
WRITTEN_TAG = "mlflow.sweeperWritten"
"""Digests of what we wrote where a person may write too; other text there is theirs and stays.

The interface hides tags under `mlflow.`, and nobody needs to see this one.
"""

MAX_NOTE = 8000
_EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
_DONE = {False: "FINISHED", True: "FAILED"}

_ENV = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    # What goes wrong is in our StorageError, in one line; MLflow would print a traceback beside it.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    # Not one retry inside MLflow: a repeated POST of a create whose answer was lost makes a second run.
    # The caller repeats `track`, which searches first.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}


def preload() -> None:
    """Imports MLflow, which takes more than a second; meant for a thread beside other preparations."""
    client_class()


def client_class() -> type[MlflowClient]:
    """Returns MLflow's client, imported with its own talk turned off."""
    for name, value in _ENV.items():
        os.environ.setdefault(name, value)
    import mlflow

    client: type[MlflowClient] = mlflow.MlflowClient
    return client


class MlflowTracker:
    """A `Tracker` over the database in `home`, or over the server or database at `uri`.

    Nothing of MLflow's global state is touched: trials inherit no tracking URI.
    """

    def __init__(self, home: Path, uri: str | None = None) -> None:
        """Opens nothing yet.

        Raises:
            UserError: `uri` names a folder (MLflow has ended its file store), or `home` has a name
                that no database URI can hold.
        """
        if uri is not None and (uri.startswith("file:") or (":" not in uri and uri != "databricks")):
            raise UserError(
                "A tracking URI starts with sqlite:///, http:// or https://"
                f" (MLflow no longer writes to plain folders), but got {uri!r}."
            )
        self._home = home
        self._local = uri is None
        self._uri = uri or store_uri(home)
        self._sweep: SweepInfo | None = None
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._run_ids: dict[str, str] = {}

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the sweep's experiment; empty until `open` has reached the store."""
        return self._experiment_id

    def open(self, sweep: SweepInfo) -> None:
        """Makes the database and the experiment, or brings the experiment's tags up to date.

        Raises:
            StorageError: The store cannot be reached; a later `track` tries again.
        """
        self._sweep = sweep
        self._connect(sweep)

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Makes the trial's run, or brings it up to date.

        Raises:
            StorageError: The store cannot be reached; repeating the call repairs whatever is half done.
        """
        assert self._sweep is not None, "`open` comes before `track`"
        client = self._client or self._connect(self._sweep)
        content = run_content(record, view, self._sweep.varied)
        with _reported(f"trial {record.number}"):
            run = self._find(client, record.uid)
            if run is None:
                run = client.create_run(
                    self._experiment_id,
                    start_time=content.start_ms,
                    # Tags that come with the run save a transaction of their own.
                    tags=_source()
                    | {key: value for key, value in content.tags.items() if value}
                    | _kept({}, {NOTE_TAG: content.note}),
                    run_name=view.label,
                )
                self._run_ids[record.uid] = run.info.run_id
            if run.info.lifecycle_stage == "active":  # A run that a person has deleted stays deleted.
                _update(client, run, content, Path(record.folder) if record.folder else None)

    def close(self) -> None:
        """Forgets the connection."""
        self._client = None

    def _connect(self, sweep: SweepInfo) -> MlflowClient:
        connect = client_class()
        with _reported(f"the experiment of sweep {sweep.name}"):
            if self._local:
                # MLflow tries for two minutes to open a file that it may not write; this fails at once.
                self._home.mkdir(parents=True, exist_ok=True)
                (self._home / DATABASE).touch()
                # Else the artifacts of a moved home would go on to its old place.
                mend_artifact_locations(self._home)
            client = connect(tracking_uri=self._uri, registry_uri=self._uri)
            self._experiment_id = self._open_experiment(client, sweep)
        self._client = client
        return client

    def _open_experiment(self, client: MlflowClient, sweep: SweepInfo) -> str:
        found = client.get_experiment_by_name(sweep.name)
        if found is None:
            # A server knows itself where its artifacts go.
            remote = self._uri.startswith(("http:", "https:", "databricks"))
            root = None if remote else f"{artifact_root(self._home)}/{directory_of(sweep.name)}"
            found = client.get_experiment(client.create_experiment(sweep.name, artifact_location=root))
        if found.lifecycle_stage != "active":
            raise StorageError(
                f"The MLflow experiment {sweep.name!r} was deleted. Restore it with `mlflow experiments"
                f" restore --experiment-id {found.experiment_id}`, or give the sweep another name."
            )
        shown = {NOTE_TAG: sweep_note(sweep), VIEW_TAG: view_tag(sweep.varied, found.creation_time or 0)}
        wanted = _EXPERIMENT_KIND | sweep_tags(sweep) | _kept(found.tags, shown)
        for key, value in wanted.items():
            if found.tags.get(key) != value:
                client.set_experiment_tag(found.experiment_id, key, value)
        return str(found.experiment_id)

    def _find(self, client: MlflowClient, uid: str) -> Any:
        """Returns the trial's run, fresh from the store, or None."""
        if uid in self._run_ids:
            return client.get_run(self._run_ids[uid])
        found = client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.`{UID_TAG}` = '{uid}'",
            run_view_type=3,  # ViewType.ALL: deleted ones too.
        )
        if not found:
            return None
        # A create whose answer was lost can leave a second run: the first is kept.
        first, *others = sorted(found, key=lambda run: (run.info.lifecycle_stage, run.info.run_id))
        for other in others:
            if other.info.lifecycle_stage == "active":
                client.delete_run(other.info.run_id)
        self._run_ids[uid] = first.info.run_id
        return first


def _update(client: MlflowClient, run: Any, content: RunContent, folder: Path | None) -> None:
    """Sends what `run` lacks. What a repetition sends again, the store keeps once."""
    from mlflow.entities import Metric, Param, RunTag

    run_id, status = run.info.run_id, _DONE[content.failed]
    done = (run.info.status, run.info.end_time) == (status, content.end_ms)
    tags = content.tags | _kept(run.data.tags, {NOTE_TAG: content.note})
    points = content.derived if done else content.measured + content.derived
    client.log_batch(  # The client itself keeps to 1000 metrics, 100 parameters and 100 tags a request.
        run_id,
        metrics=[Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points],
        params=[Param(key, value) for key, value in content.params.items() if key not in run.data.params],
        tags=[RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key, "") != value],
    )
    if content.end_ms is None:
        return
    # A trace is made after the search, of two trials.
    _log_files(client, run_id, folder, (TRACE,) if done else (CONFIG, OUTCOME, LOG, TELEMETRY_LOG, TRACE))
    if done:
        return
    # Last, so that a run which says it is done has all of its points and files.
    client.set_terminated(run_id, status=status, end_time=content.end_ms)


def _log_files(client: MlflowClient, run_id: str, folder: Path | None, names: Sequence[str]) -> None:
    for name in names:
        if folder is not None and (folder / name).is_file():
            there = {each.path for each in client.list_artifacts(run_id)} if name == TRACE else set()
            if name not in there:
                client.log_artifact(run_id, str(folder / name))


def _kept(current: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Returns the tags in `wanted` to write: not those which a person has changed since we wrote them."""
    written = dict(part.split("=", 1) for part in current.get(WRITTEN_TAG, "").split() if "=" in part)
    ours = {
        key: value if key == VIEW_TAG else text(value, MAX_NOTE)
        for key, value in wanted.items()
        if key not in current or written.get(key) == _digest(current[key])
    }
    ours = {key: value for key, value in ours.items() if value or key in current}
    written |= {key: _digest(value) for key, value in ours.items()}
    return ours | ({WRITTEN_TAG: " ".join(f"{k}={v}" for k, v in sorted(written.items()))} if ours else {})


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:12]


def _source() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = str(os.getuid())
    return {"mlflow.user": user, "mlflow.source.name": "sweeper", "mlflow.source.type": "LOCAL"}


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Raises `StorageError` for whatever MLflow, its database driver or the network throws."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StorageError(f"MLflow did not take {what}: {lines[0]}") from error
