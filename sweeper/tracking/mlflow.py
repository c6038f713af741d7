"""Tracks sweeps in MLflow: one experiment per sweep, one run per trial, every write safe to repeat."""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.job import CONFIG, LOG, OUTCOME, TELEMETRY_LOG, TRACE
from sweeper.core.record import TrialRecord
from sweeper.errors import StorageError
from sweeper.system.sqlite import sqlite_uri
from sweeper.tracking.content import UID_TAG, RunContent, run_content, sweep_note, sweep_tags, text
from sweeper.tracking.failures import reported
from sweeper.tracking.runs import NOTE_TAG, unchanged_tags, update, user_tags
from sweeper.tracking.tracker import DeletedError, RunView, SweepInfo
from sweeper.tracking.ui import (
    DATABASE,
    NAME_TAG,
    artifact_root,
    deletion_note,
    directory_of,
    repair_artifact_locations,
)
from sweeper.tracking.uri import TrackingPlace
from sweeper.tracking.view import VIEW_TAG, view_tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRIAL_FILES = (CONFIG, OUTCOME, LOG, TELEMETRY_LOG, TRACE)
_EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}

_ENV = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    # Our StorageError says what went wrong in one line; MLflow would add a traceback.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "PGCONNECT_TIMEOUT": "5",
    # No retries inside MLflow: a repeated create whose response was lost makes a second run.
    # The caller repeats `track`, which searches first.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    # Neither the password nor a trial may go to an address that the user did not name.
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
}


def preload() -> None:
    """Imports MLflow and its database store, which takes seconds."""
    client_class()
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def start_preload() -> None:
    """Imports MLflow in a background thread; a failure recurs, and is reported, where MLflow is needed."""

    def preload_quietly() -> None:
        with contextlib.suppress(Exception):
            preload()

    threading.Thread(target=preload_quietly, daemon=True).start()


def client_class() -> type[MlflowClient]:
    """Returns MLflow's client, imported with its output turned off."""
    for name, value in _ENV.items():
        os.environ.setdefault(name, value)
    import mlflow

    client: type[MlflowClient] = mlflow.MlflowClient
    return client


class MlflowTracker:
    """A `Tracker` over the database in `home`, or over the server or database at `uri`.

    It leaves MLflow's global state alone, so trials inherit no tracking URI.
    """

    def __init__(self, home: Path, uri: str | None = None, *, thorough: bool = False) -> None:
        """Opens nothing yet.

        Args:
            thorough: Whether to send everything again, even if it counts as sent; the store keeps it once.

        Raises:
            UserError: `uri` names a folder (MLflow dropped its file store), or `home` has a name
                that no database URI can hold.
        """
        self._home = home
        self._place = TrackingPlace.of(home, uri)
        self._thorough = thorough
        self._sweep: SweepInfo | None = None
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._run_ids: dict[str, str] = {}
        self._deleted: set[str] = set()

    @property
    def num_deleted(self) -> int:
        """Number of trials that were not sent because the user deleted their runs."""
        return len(self._deleted)

    @property
    def place(self) -> str:
        """The URI without user and password; empty for the database in the home."""
        return self._place.shown

    @property
    def is_server(self) -> bool:
        """Whether it is an HTTP server rather than a database."""
        return self._place.is_server

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the sweep's experiment; empty until `open` has reached the store."""
        return self._experiment_id

    def open(self, sweep: SweepInfo) -> None:
        """Creates the database and the experiment, or updates the experiment's tags.

        Raises:
            StorageError: The store cannot be reached; a later `track` tries again.
        """
        self._sweep = sweep
        self._connect(sweep)

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Creates or updates the trial's run.

        Raises:
            StorageError: The store cannot be reached; repeating the call completes what is half
                done.
        """
        assert self._sweep is not None, "`open` comes before `track`"
        content = run_content(record, view, self._sweep)
        self.send(record.uid, view.label, content, files_of(record, view))

    def send(self, uid: str, label: str, content: RunContent, files: Sequence[tuple[Path, str]]) -> None:
        """Creates or updates a run.

        Args:
            uid: Identifies the run; unique over all experiments.
            label: The run's name.
            files: Paths, each with the artifact folder that it goes to; missing files are skipped.

        Raises:
            StorageError: As in `track`.
        """
        assert self._sweep is not None, "`open` comes before `send`"
        client = self._client or self._connect(self._sweep)
        try:
            with reported(f"MLflow did not accept `{text(label)}`", self._place):
                run = self._find(client, uid)
                if run is None:
                    run = self._create(client, uid, label, content, {})
                elif run.info.lifecycle_stage != "active":
                    self._deleted.add(uid)
                    return  # A run that the user deleted stays deleted.
                old = run if content.retracted in run.data.metrics else None
                if old is not None:
                    run = self._create(client, uid, label, content, user_tags(old))
                update(client, run, content, files, thorough=self._thorough)
                if old is not None:
                    client.delete_run(old.info.run_id)
        except StorageError:
            # The store may have been replaced; the next attempt searches again.
            self._run_ids.pop(uid, None)
            self._client = None
            raise

    def find(self, name: str) -> str | None:
        """Returns the id of the experiment of the sweep `name`; None if there is none.

        Raises:
            StorageError: The store cannot be reached.
        """
        with self.reading(name):
            return self._experiment_id or None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[tuple[MlflowClient | None, list[Any]]]:
        """Yields a client and the runs of the sweep `name`, including deleted ones; sends nothing.

        The client is None if there is no database yet.

        Raises:
            DeletedError: The user deleted its experiment.
            StorageError: The store cannot be reached.
        """
        if not self._place.uri and not (self._home / DATABASE).exists():
            yield None, []
            return
        if not self._place.uri:
            repair_artifact_locations(self._home)
        with reported(f"the runs of `{name}` cannot be read from MLflow", self._place):
            connect = client_class()
            client = self._new_client(connect)
            experiment = _experiment(client, name)
            runs: list[Any] = []
            if experiment is not None:
                self._check_active(experiment, name)
                self._experiment_id = str(experiment.experiment_id)
                token = None
                while True:
                    page = client.search_runs([self._experiment_id], run_view_type=3, page_token=token)
                    runs += page
                    token = page.token
                    if not token:
                        break
            yield client, runs

    def close(self) -> None:
        """Drops the connection."""
        self._client = None

    def _connect(self, sweep: SweepInfo) -> MlflowClient:
        with reported(f"MLflow did not accept the sweep `{sweep.name}`", self._place):
            connect = client_class()
            if not self._place.uri:
                # MLflow tries for two minutes to open a read-only file; this fails immediately.
                self._home.mkdir(parents=True, exist_ok=True)
                self._make_database(connect)
                (self._home / DATABASE).touch()
                # Otherwise the artifacts of a moved home would still go to its old place.
                repair_artifact_locations(self._home)
            client = self._client or self._new_client(connect)
            self._experiment_id = self._open_experiment(client, sweep)
        self._client = client
        return client

    def _make_database(self, connect: type[MlflowClient]) -> None:
        """Creates the database in one step, since a half-made one could never be used."""
        database = self._home / DATABASE
        if database.exists():
            return
        draft = self._home / f".making-{os.getpid()}.db"
        draft.unlink(missing_ok=True)
        draft.touch()
        try:
            connect(tracking_uri=sqlite_uri(draft.resolve())).search_experiments(max_results=1)
            # Unlike a rename, this never replaces one that another process has made meanwhile.
            with contextlib.suppress(FileExistsError):
                os.link(draft, database)
        finally:
            draft.unlink(missing_ok=True)

    def _new_client(self, connect: type[MlflowClient]) -> MlflowClient:
        uri = self._place.store
        if self._place.uri and not self._place.is_server:
            from mlflow.store.db import utils

            # Otherwise MLflow spends 100 s on a database that is unreachable or refuses the password.
            utils.MAX_RETRY_COUNT = 0
        return connect(tracking_uri=uri, registry_uri=uri)

    def _open_experiment(self, client: MlflowClient, sweep: SweepInfo) -> str:
        experiment = _experiment(client, sweep.name)
        if experiment is None:
            # A server decides where its artifacts go.
            root = (
                None if self._place.is_server else f"{artifact_root(self._home)}/{directory_of(sweep.name)}"
            )
            experiment = client.get_experiment(client.create_experiment(sweep.name, artifact_location=root))
        self._check_active(experiment, sweep.name)
        shown = {NOTE_TAG: sweep_note(sweep), VIEW_TAG: view_tag(sweep, experiment.creation_time or 0)}
        wanted = (
            _EXPERIMENT_KIND
            | sweep_tags(sweep)
            | {NAME_TAG: sweep.name}
            | unchanged_tags(experiment.tags, shown)
        )
        for key, value in wanted.items():
            if experiment.tags.get(key) != value:
                client.set_experiment_tag(experiment.experiment_id, key, value)
        return str(experiment.experiment_id)

    def _check_active(self, experiment: Any, name: str) -> None:
        if experiment.lifecycle_stage != "active":
            uri = self.place or self._place.home_uri
            raise DeletedError(deletion_note(name, str(experiment.experiment_id), uri))

    def _create(
        self, client: MlflowClient, uid: str, label: str, content: RunContent, tags: Mapping[str, str]
    ) -> Any:
        run = client.create_run(
            self._experiment_id,
            start_time=content.start_ms,
            # Tags that come with the run save a separate transaction.
            tags={
                **_source(),
                **{key: value for key, value in content.tags.items() if value},
                **unchanged_tags({}, {NOTE_TAG: content.note}),
                **tags,
                UID_TAG: uid,
            },
            run_name=text(label),
        )
        self._run_ids[uid] = run.info.run_id
        return run

    def _find(self, client: MlflowClient, uid: str) -> Any:
        """Returns the trial's run, fresh from the store, or None."""
        if uid in self._run_ids:
            return client.get_run(self._run_ids[uid])
        runs = client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.`{UID_TAG}` = '{uid}'",
            run_view_type=3,  # ViewType.ALL: includes deleted ones.
        )
        if not runs:
            return None
        # A create whose response was lost can leave a second run: the first is kept.
        first, *others = sorted(runs, key=lambda run: (run.info.lifecycle_stage, run.info.run_id))
        for other in others:
            if other.info.lifecycle_stage == "active":
                client.delete_run(other.info.run_id)
        self._run_ids[uid] = first.info.run_id
        return first


def _experiment(client: MlflowClient, name: str) -> Any:
    """Returns the experiment of a sweep, which the user may have given another name; None without one."""
    tagged = f"tags.`{NAME_TAG}` = '{name}'"
    return client.get_experiment_by_name(name) or next(
        iter(client.search_experiments(view_type=3, filter_string=tagged, max_results=1)), None
    )


def files_of(record: TrialRecord, view: RunView) -> list[tuple[Path, str]]:
    """Returns the artifacts of a finished trial's run, each with its artifact folder."""
    if record.outcome is None or not record.folder:
        return []
    paths = [Path(record.folder) / name for name in TRIAL_FILES]
    return [(path, "") for path in (*paths, *map(Path, view.files)) if path.is_file()]


def _source() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = str(os.getuid())
    return {"mlflow.user": user, "mlflow.source.name": "sweeper", "mlflow.source.type": "LOCAL"}
