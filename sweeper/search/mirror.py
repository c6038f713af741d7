"""A copy of the study on a server (`storage:`), for optuna-dashboard: made in the background."""

from __future__ import annotations

import importlib
import queue
import re
import threading
import time
from collections.abc import Mapping
from typing import Protocol

import optuna
from optuna.trial import TrialState, create_trial

from sweeper.core.errors import UserError
from sweeper.search.distributions import distribution
from sweeper.search.searcher import NUMBER
from sweeper.search.told import Told
from sweeper.spec import SweepSpec

CONNECT_SECONDS = 5
AGAIN_SECONDS = 2.0
LONGEST_SECONDS = 30.0
MOST_SAID = 160
_DRIVERS = {"postgresql": "psycopg2", "mysql": "pymysql"}


class Mirror(Protocol):
    """Takes what was told, for a copy of the study."""

    def tell(self, told: Mapping[int, Told]) -> None:
        """Has trials copied that were told, by number."""

    def finish(self, seconds: float = 10.0) -> str:
        """Waits until all is there, though no longer than `seconds`; returns why it is not, if so."""


class NoMirror:
    """No copy is kept."""

    def tell(self, told: Mapping[int, Told]) -> None:
        """Does nothing."""

    def finish(self, seconds: float = 10.0) -> str:
        """Has nothing to wait for."""
        return ""


class StudyMirror:
    """Copies what is told into a study of Optuna's on a server.

    The search asks nothing of it. While the server is away, trials wait here; what is there already is
    looked up before anything is added, so that a lost answer doubles nothing.
    """

    def __init__(self, url: str, name: str, spec: SweepSpec) -> None:
        """Begins to connect.

        Args:
            url: As SQLAlchemy takes it.
            name: Of the study; no other sweep's on that server.

        Raises:
            UserError: There is no driver for such a server.
        """
        self._url, self._name = _with_driver(url), name
        self._directions = [objective.direction for objective in spec.objectives]
        self._distributions = {each: distribution(parameter) for each, parameter in spec.space.items()}
        self._told: dict[int, Told] = {}
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._sent: set[int] = set()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="study", daemon=True)
        self._thread.start()

    def tell(self, told: Mapping[int, Told]) -> None:
        """Has trials copied that were told, by number."""
        with self._idle:
            self._told.update(told)
        self._news.put(True)

    def finish(self, seconds: float = 10.0) -> str:
        """Waits until all is there, though no longer than `seconds`; returns why it is not, if so."""
        with self._idle:
            self._idle.wait_for(lambda: not self._told.keys() - self._sent or self._problem, seconds)
            left = len(self._told.keys() - self._sent)
        self._news.put(False)
        self._thread.join(timeout=1.0)
        why = self._problem or "the server is slow"
        return f"{left} trial{'s are' if left > 1 else ' is'} not in it yet ({why})" if left else ""

    def _run(self) -> None:
        pause = AGAIN_SECONDS
        goes_on = True
        while goes_on:
            try:
                study = self._open()
                self._sent = {
                    trial.user_attrs[NUMBER]
                    for trial in study.get_trials(deepcopy=False)
                    if NUMBER in trial.user_attrs
                }
                while goes_on:
                    self._copy(study)
                    self._problem, pause = "", AGAIN_SECONDS
                    with self._idle:
                        self._idle.notify_all()
                    goes_on = self._news.get()
            except Exception as error:
                # Drivers have classes of their own for it; whatever it is, the sweep goes on.
                self._problem = self._said(error)
                with self._idle:
                    self._idle.notify_all()
                goes_on = not self._ended_within(pause)
                pause = min(2 * pause, LONGEST_SECONDS)

    def _open(self) -> optuna.Study:
        storage = optuna.storages.RDBStorage(
            self._url,
            engine_kwargs={
                # Optuna reads with one while it writes with another; the usual fifteen would be too many.
                "pool_size": 2,
                "max_overflow": 1,
                "pool_pre_ping": True,
                "connect_args": {"connect_timeout": CONNECT_SECONDS},
            },
        )
        return optuna.create_study(
            storage=storage, study_name=self._name, directions=self._directions, load_if_exists=True
        )

    def _copy(self, study: optuna.Study) -> None:
        with self._idle:
            waiting = sorted(self._told.keys() - self._sent)
        for number in waiting:
            told = self._told[number]
            study.add_trial(
                create_trial(
                    state=TrialState.FAIL if told.values is None else TrialState.COMPLETE,
                    values=told.values,
                    params=dict(told.params),
                    distributions=self._distributions,
                    user_attrs={NUMBER: number},
                    constraints=dict(told.constraints),
                )
            )
            self._sent.add(number)

    def _ended_within(self, seconds: float) -> bool:
        """Waits, unless it is to end meanwhile; whether it is."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                if not self._news.get(timeout=left):
                    return True
            except queue.Empty:
                return False
        return False

    def _said(self, error: Exception) -> str:
        """Returns what went wrong in one line, without a password."""
        cause = getattr(error, "orig", None) or error.__cause__ or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        return re.sub(r"(://)[^/?#\s]*@", r"\1", text)[:MOST_SAID]


def _with_driver(url: str) -> str:
    """Returns `url` with the driver that is installed with sweeper, unless it names another."""
    scheme, _, rest = url.partition("://")
    kind, _, driver = scheme.partition("+")
    driver = driver or _DRIVERS[kind]
    try:
        importlib.import_module(driver)
    except ImportError:
        raise UserError(
            f"`storage` needs the driver {driver} for {kind}, which is not installed. "
            f"`pip install 'sweeper[{kind}]'` installs it."
        ) from None
    return f"{kind}+{driver}://{rest}"
