"""Turns errors of MLflow, its database and the network into one line; says whether a retry helps."""

from __future__ import annotations

import contextlib
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from sweeper.errors import StorageError, SweeperError
from sweeper.system.installed import missing_line
from sweeper.system.sqlite import database_in, why_unusable
from sweeper.tracking.tracker import RejectedError, TrackerRefusedError
from sweeper.tracking.uri import TrackingPlace

E = TypeVar("E", bound=BaseException)

_LATER = (404, 408, 409, 425, 429)
"""4xx HTTP statuses after which a retry may succeed; 404 occurs if the store was replaced."""


@contextlib.contextmanager
def reported(problem: str, place: TrackingPlace) -> Iterator[None]:
    """Turns any error inside into a `StorageError` that begins with `problem`.

    Raises:
        RejectedError: Only this item is not accepted.
        TrackerRefusedError: Nothing is accepted until the user has acted; the message says how.
    """
    try:
        yield
    except SweeperError:
        raise
    except Exception as error:
        if line := missing_line(error):
            raise TrackerRefusedError(line) from error
        if "Invalid Host header" in str(error):
            raise TrackerRefusedError(
                f"MLflow at {place.shown} refuses requests to {place.netloc} (Invalid Host header)."
                f" Start it with `--allowed-hosts {place.netloc}`."
            ) from error
        status = _status(error)
        if status in (401, 403):
            raise TrackerRefusedError(
                f"MLflow at {place.shown} denies access (HTTP {status}). Set MLFLOW_TRACKING_USERNAME"
                " and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
            ) from error
        if 300 <= status < 400:
            raise TrackerRefusedError(
                f"MLflow at {place.shown} redirects requests (HTTP {status}), which sweeper does not follow."
                " Set --tracking-uri to the address at which MLflow itself answers."
            ) from error
        kind = RejectedError if 400 <= status < 500 and status not in _LATER else StorageError
        raise kind(place.hide(f"{problem}: {_reason(error, place)}")) from error


def _status(error: Exception) -> int:
    """Returns the HTTP status of a response, or MLflow's equivalent; 0 if there was none."""
    from mlflow.exceptions import MlflowException

    if _no_answer(error) is not None:
        return 0
    if (response := getattr(error, "response", None)) is not None:
        return int(response.status_code)
    if not isinstance(error, MlflowException) or error.error_code == "RESOURCE_ALREADY_EXISTS":
        return 0  # Another process was faster; the next attempt finds what it made.
    match = re.search(r"failed with error code (\d{3})\b", str(error))
    return int(match[1]) if match else int(error.get_http_status_code())


def _reason(error: Exception, place: TrackingPlace) -> str:
    if answer := re.search(r"too many (\d{3}) error responses", str(error)):
        return f"{place.shown} answers with HTTP {answer[1]}"
    if (cause := _no_answer(error)) is not None:
        if "timed out" in str(cause):
            return f"{place.shown} does not answer in time"
        match = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(cause))
        return f"{place.shown} cannot be reached ({match[1] if match else 'the connection broke'})"
    if (broken := _cause(error, sqlite3.OperationalError)) is not None:
        return why_unusable(database_in(place.store), broken)
    if match := re.search(r"out-of-date database schema \(found version (\w+)", str(error)):
        return _other_version(match[1], shlex.quote(place.hide(place.store)))
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 300 else f"{lines[0][:299]}…"


def _other_version(revision: str, uri: str) -> str:
    """Returns why MLflow does not open a database with this revision of its schema."""
    import mlflow

    versions = Path(mlflow.__file__).parent / "store/db_migrations/versions"
    if any(versions.glob(f"{revision}_*.py")):
        return f"its database was made by an older MLflow. Back it up, then run `mlflow db upgrade {uri}`"
    return (
        f"its database was made by a newer MLflow than {mlflow.__version__}, which is installed here. Install"
        " that one: `pip install --upgrade mlflow`"
    )


def _no_answer(error: BaseException) -> BaseException | None:
    """Returns the connection error behind `error`, or None."""
    from requests import ConnectionError, Timeout
    from requests.exceptions import ChunkedEncodingError

    return _cause(error, ConnectionError, Timeout, ChunkedEncodingError)


def _cause(error: BaseException, *kinds: type[E]) -> E | None:
    """Returns the first error of some kinds in a chain of causes, or None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, kinds):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
