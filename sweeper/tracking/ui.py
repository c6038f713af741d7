"""Returns the MLflow UI's command and address, and repairs stores that were moved."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sqlite3
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urlencode

from psutil import net_if_addrs

from sweeper.errors import StorageError, UserError
from sweeper.system.sqlite import sqlite_uri, why_unusable
from sweeper.tracking.view import VIEW_KEY

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
LOCK_SECONDS = 20.0
"""Longest wait in seconds for another process that writes to the database, as MLflow waits."""
NAME_TAG = "sweeper.name"
"""Tag of an experiment with the name of its sweep, whatever the user calls the experiment."""

UI_ENV = {
    # The job runner costs 230 MB and half a minute at the start, and serves nothing we show.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Any web page can make a browser send requests here, so origin and host are checked.
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
    "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "",
}
"""Environment for `server_command`."""


def store_uri(home: Path) -> str:
    """Returns the absolute tracking URI of the database in `home`.

    Raises:
        UserError: No URI can hold the path (`sweeper.system.sqlite`).
    """
    return sqlite_uri(home.resolve() / DATABASE)


def artifact_root(home: Path) -> str:
    """Returns the location of the artifacts of `home`."""
    return artifact_location(home.resolve() / ARTIFACTS)


def artifact_location(folder: Path) -> str:
    """Returns an absolute path as MLflow reads it, which decodes `%20`."""
    path = str(folder)
    return path if unquote(path) == path else path.replace("%", "%25")


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach `host`; a name other than localhost may be any address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable_host(host: str) -> str:
    """Returns the address at which this machine reaches a server on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _allowed_hosts(host: str, port: int) -> str:
    """Returns the accepted `Host` headers; MLflow's default has names that anybody can register."""
    names = {"localhost", "127.0.0.1", "::1", host}
    if not is_loopback(host):
        entries = (address for interface in net_if_addrs().values() for address in interface)
        addresses = (e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6))
        names |= {socket.gethostname(), socket.getfqdn(), *(a.partition("%")[0] for a in addresses)}
    shown = sorted(_url_host(name) for name in names - {"0.0.0.0", "::"})
    return ",".join(part for name in shown for part in (name, f"{name}:{port}"))


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def server_command(home: Path, port: int, host: str = "127.0.0.1") -> list[str]:
    """Returns the command line that serves the UI of `home`; run it with `UI_ENV`."""
    options = {
        "--backend-store-uri": store_uri(home),
        "--default-artifact-root": artifact_root(home),
        "--host": host,
        "--allowed-hosts": _allowed_hosts(host, port),
        "--port": str(port),
        "--workers": "1",
    }
    return [sys.executable, "-P", "-m", "mlflow", "ui", *(part for pair in options.items() for part in pair)]


def ui_url(port: int, experiment_id: str, key: str = VIEW_KEY, host: str = "127.0.0.1") -> str:
    """Returns the address at which the UI opens the saved view of an experiment."""
    return view_url(f"http://{_url_host(reachable_host(host))}:{port}", experiment_id, key)


def view_url(server: str, experiment_id: str, key: str = VIEW_KEY) -> str:
    """Returns the address of the saved view of an experiment on a server."""
    query = urlencode({"workflowType": "machine_learning", "viewStateShareKey": key})
    return f"{server.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs?{query}"


_FIND = """
    SELECT experiments.experiment_id, lifecycle_stage FROM experiments LEFT JOIN experiment_tags AS tags
    ON tags.experiment_id = experiments.experiment_id AND key = ?
    WHERE name = ? OR value = ? ORDER BY name = ? DESC
"""


def find_experiment(home: Path, name: str) -> str | None:
    """Returns the experiment id of the sweep `name` in `home`, or None.

    Raises:
        UserError: The experiment was deleted.
    """
    with _database(home) as db:
        if db is None:
            return None
        row = db.execute(_FIND, (NAME_TAG, name, name, name)).fetchone()
    if row and row[1] != "active":
        raise UserError(deletion_note(name, str(row[0]), store_uri(home)))
    return str(row[0]) if row else None


def deletion_note(name: str, experiment_id: str, uri: str) -> str:
    """Returns a sentence on a deleted experiment, with the command that restores it.

    Args:
        uri: The store's, without a password.
    """
    # Unless told which store, MLflow creates a new one in the current folder.
    command = (
        f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow experiments restore --experiment-id {experiment_id}"
    )
    return (
        f"The MLflow experiment {name!r} was deleted. Restore it with `{command}`, or give the sweep another"
        " name."
    )


_LOCATIONS = """
    SELECT experiments.experiment_id, COALESCE(value, name), artifact_location FROM experiments
    LEFT JOIN experiment_tags AS tags ON tags.experiment_id = experiments.experiment_id AND key = ?
"""
_HERE = ":here || '/' || run_uuid || '/artifacts'"
_TAIL = ":end || run_uuid || '/artifacts'"
# Matched by each run's tail, since runs written between two moves have other prefixes.
_MOVED = f"""
    WHERE experiment_id = :id AND artifact_uri <> {_HERE}
    AND substr(artifact_uri, -length({_TAIL})) = {_TAIL}
"""


def repair_artifact_locations(home: Path) -> int:
    """Updates the artifact locations of a home that was moved or copied.

    It changes only locations that are recognisably sweeper's: those that end in
    `/artifacts/<experiment>`, and those of their runs.

    Returns:
        The number of experiments and runs that were updated.

    Raises:
        StorageError: The database cannot be read or written.
    """
    root = artifact_root(home)
    repaired = 0
    with _database(home) as db:
        if db is None:
            return 0
        for id_, name, location in db.execute(_LOCATIONS, (NAME_TAG,)).fetchall():
            tail = f"/{ARTIFACTS}/{directory_of(name)}"
            if not (location or "").endswith(tail):
                continue
            here = f"{root}/{directory_of(name)}"
            if location != here:
                db.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (here, id_)
                )
                repaired += 1
            values = {"here": here, "end": f"{tail}/", "id": id_}
            # An update waits for other writers, and fails in a file that is read-only, even without rows.
            if db.execute(f"SELECT 1 FROM runs {_MOVED} LIMIT 1", values).fetchone():
                repaired += db.execute(f"UPDATE runs SET artifact_uri = {_HERE} {_MOVED}", values).rowcount
    return repaired


def directory_of(experiment: str) -> str:
    """Returns the name of the folder under `artifacts/` that holds an experiment's artifacts."""
    return quote(experiment, safe=" ").replace("%", "_")


@contextlib.contextmanager
def _database(home: Path) -> Iterator[sqlite3.Connection | None]:
    """Opens the database for one transaction; yields None while there is none yet."""
    path = home.resolve() / DATABASE
    if not path.exists():
        yield None
        return
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as db, db:
            row = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone()
            yield db if row else None
    except sqlite3.Error as error:
        message = why_unusable(path, error)
        raise StorageError(f"{message[0].upper()}{message[1:]}.") from error
