"""Copies the study to a server (`storage:`) in the background, for optuna-dashboard."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from sweeper.core.record import SearchResult
from sweeper.errors import StorageError, UserError
from sweeper.search.distributions import distributions_of
from sweeper.search.study_file import NUMBER, as_trial
from sweeper.spec import SweepSpec
from sweeper.system.environment import secrets
from sweeper.system.secrets import struck

if TYPE_CHECKING:
    # It takes a quarter of a second to import, and only a copied study needs it.
    import sqlalchemy

RETRY_SECONDS = 2.0
MAX_SECONDS = 30.0
MAX_SAID = 160
_DRIVERS = {"postgresql": "psycopg2", "mysql": "pymysql"}
_PATIENCE: Mapping[str, Mapping[str, int]] = {
    # The last is in milliseconds. Without it, a server whose network is gone blocks for 15 minutes.
    "postgresql": {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    },
    "mysql": {"connect_timeout": 5, "read_timeout": 30, "write_timeout": 30},
}


class Mirror(Protocol):
    """Receives results for a copy of the study."""

    def tell(self, results: Mapping[int, SearchResult]) -> None:
        """Queues results to be copied, by trial number."""

    def finish(self, seconds: float = 10.0) -> str:
        """Waits up to `seconds` until all results are copied; returns why some are not, else empty."""


class NoMirror:
    """Keeps no copy."""

    def tell(self, results: Mapping[int, SearchResult]) -> None:
        """Does nothing."""

    def finish(self, seconds: float = 10.0) -> str:
        """Returns an empty text: there is nothing to wait for."""
        return ""


class StudyMirror:
    """Copies results into an Optuna study on a server.

    The search never reads it. While the server is unreachable, results wait in memory. Existing
    trials are looked up before any is added, so that a lost response leads to no duplicates.
    """

    def __init__(self, url: str, name: str, spec: SweepSpec) -> None:
        """Starts to connect in the background.

        Args:
            url: A URL for SQLAlchemy.
            name: Name of the study, unique on that server.

        Raises:
            UserError: The driver for this kind of server is not installed.
        """
        self._url, self._name = with_driver(url), name
        self._directions = [objective.direction for objective in spec.objectives]
        self._distributions = distributions_of(spec)
        self._waiting: dict[int, SearchResult] = {}
        self._there: set[int] = set()
        self._problem = ""
        self._ends_at = math.inf
        self._changed = threading.Condition()
        # A server that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="study", daemon=True)
        self._thread.start()

    def tell(self, results: Mapping[int, SearchResult]) -> None:
        """Queues results to be copied, by trial number."""
        with self._changed:
            self._waiting.update(
                (number, each) for number, each in results.items() if number not in self._there
            )
            self._changed.notify()

    def finish(self, seconds: float = 10.0) -> str:
        """Waits up to `seconds` until all results are copied; returns why some are not, else empty.

        An unreachable server is tried once more. Nothing is copied afterwards.
        """
        with self._changed:
            self._ends_at = min(self._ends_at, time.monotonic() + seconds)
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            left, why = len(self._waiting), self._problem or "the server is slow"
        return f"{left} trial{'s are' if left > 1 else ' is'} not in it yet ({why})" if left else ""

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            is_last = self._is_ending()
            try:
                with _connected(self._url) as storage:
                    study = self._open(storage)
                    self._leave_out(study)
                    while (number := self._next()) is not None:
                        study.add_trial(as_trial(number, self._waiting[number], self._distributions))
                        self._enter(number)
                        self._problem, pause = "", RETRY_SECONDS
                return
            except Exception as error:
                # Each driver has its own error classes; whatever the error is, the sweep goes on.
                self._problem = _said(error)
            if is_last:
                return
            with self._changed:
                self._changed.wait_for(self._is_ending, pause)
            pause = min(2 * pause, MAX_SECONDS)

    def _open(self, storage: RDBStorage) -> optuna.Study:
        study = optuna.create_study(
            storage=storage, study_name=self._name, directions=self._directions, load_if_exists=True
        )
        found = [direction.name.lower() for direction in study.directions]
        if found != self._directions:
            raise ValueError(
                f"the study {self._name} on the server is set to {' and '.join(found)} instead; rename it"
            )
        return study

    def _leave_out(self, study: optuna.Study) -> None:
        there = {trial.user_attrs.get(NUMBER) for trial in study.get_trials(deepcopy=False)} - {None}
        with self._changed:
            self._there |= there
            for number in there:
                self._waiting.pop(number, None)

    def _next(self) -> int | None:
        """Waits for a trial to copy; returns its number, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending())
            return None if time.monotonic() > self._ends_at else next(iter(self._waiting), None)

    def _enter(self, number: int) -> None:
        with self._changed:
            self._there.add(number)
            del self._waiting[number]

    def _is_ending(self) -> bool:
        return self._ends_at < math.inf


def compare_study(url: str, name: str, results: Mapping[int, SearchResult]) -> tuple[list[str], list[str]]:
    """Returns a line for each result that the study `name` lacks, and for each surplus trial in it.

    Raises:
        UserError: The driver for this kind of server is not installed.
        StorageError: The study cannot be read.
    """
    from sqlalchemy.exc import SQLAlchemyError

    lacking, extra, found = [], [], dict[int | None, FrozenTrial]()
    try:
        with _connected(with_driver(url)) as storage:
            names = {study.study_name: study._study_id for study in storage.get_all_studies()}
            trials = storage.get_all_trials(names[name], deepcopy=False) if name in names else []
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        raise StorageError(
            f"the study cannot be read ({_said(error)}). Nothing was changed. Try again later."
        ) from error
    for trial in trials:
        number = trial.user_attrs.get(NUMBER)
        if number in found or number not in results:
            extra.append(f"trial {trial.number} of the study {name} (sweeper's {number})")
        found[number] = trial
    for number, each in sorted(results.items()):
        copy = found.get(number)
        if copy is None:
            lacking.append(f"trial {number} in the study {name}")
        elif (copy.params, None if copy.values is None else tuple(copy.values)) != (
            dict(each.params),
            each.values,
        ):
            lacking.append(f"the result of trial {number} in the study {name}")
    return lacking, extra


def with_driver(url: str) -> str:
    """Returns `url` with the driver that is installed with sweeper, unless it names another.

    Raises:
        UserError: The driver is not installed.
    """
    scheme, _, rest = url.partition("://")
    kind, _, driver = scheme.partition("+")
    driver = driver or _DRIVERS[kind]
    try:
        importlib.import_module(driver)
    except ImportError:
        raise UserError(
            f"`storage` needs the driver {driver} for {kind}, which is not installed. "
            f"Install it with `pip install 'sweeper[{kind}]'`."
        ) from None
    return f"{kind}+{driver}://{rest}"


@contextlib.contextmanager
def _connected(url: str) -> Iterator[RDBStorage]:
    """Yields the storage at `url`, for as long as its connection holds."""
    # Optuna's log lines would come between sweeper's.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = RDBStorage(
        url,
        engine_kwargs={
            # Optuna reads with one connection and writes with another; the default, 15, is too many.
            "pool_size": 2,
            "max_overflow": 1,
            "connect_args": dict(_PATIENCE[url.partition("+")[0]]),
        },
    )
    try:
        _connects_no_more(storage.engine)
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _connects_no_more(engine: sqlalchemy.Engine) -> None:
    """Makes an engine fail for good once a connection is lost.

    Otherwise Optuna would repeat an insert whose commit was not acknowledged, and store it twice.
    """
    from sqlalchemy import event

    lost: list[BaseException] = []

    def note(context: sqlalchemy.ExceptionContext) -> None:
        if context.is_disconnect:
            lost.append(context.original_exception)

    def refuse(*_: Any) -> None:
        if lost:
            raise ConnectionError("the connection was lost") from lost[0]

    event.listen(engine, "handle_error", note)
    event.listen(engine, "do_connect", refuse)


def _said(error: BaseException) -> str:
    """Returns the error in one line, without secrets."""
    cause = error.__cause__ or error
    text = " ".join(str(getattr(cause, "orig", None) or cause).split()) or type(cause).__name__
    return struck(text, secrets(os.environ))[:MAX_SAID]
