"""Sender: a thread that ships to a server, so that a slow or absent one blocks nobody."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sweeper.errors import StorageError
from sweeper.tracking.tracker import RefusedError, RejectedError

MAX_PAUSE_SECONDS = 300.0
MAX_TRIES = 3
"""Tries per key in a `drain`, and failed keys in a row after which the server counts as away."""
MAX_NAMED = 3
"""How many rejected keys are named."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What is left after a `drain`.

    Attributes:
        pending: Keys that were not sent.
        problem: Why, in one line.
    """

    pending: tuple[str, ...]
    problem: str


class Sender:
    """Sends the latest state of each key, one at a time, in the order in which the keys came.

    `send` raises `StorageError` if the server is away. The key's pause before its next try doubles
    with each of its failures, and the pause for all keys with each further key that fails in a row,
    up to five minutes. A `RejectedError` sets only this key aside until it is put again. A
    `RefusedError` ends all attempts, since the user has to act first. Any other exception counts as
    a rejection.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._tries: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._rejected: dict[str, str] = {}
        self._in_row: set[str] = set()
        self._opens = 0.0
        self._sent = 0
        self._away = self._refused = ""
        self._draining = self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, key: str, send: Callable[[], None]) -> None:
        """Schedules `send`, which replaces an earlier unsent one of `key`."""
        with self._change:
            self._waiting[key] = send
            self._forget(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns once all is sent or something has failed, after `seconds` at the latest."""
        with self._change:
            self._change.wait_for(
                lambda: not self._waiting or self._in_row or self._rejected or self._refused, seconds
            )

    def drain(self, seconds: float) -> Drained:
        """Retries all that was not sent immediately, until nothing is sent for `seconds`."""
        with self._change:
            self._opens = 0.0
            for failures in (self._due, self._tries, self._rejected, self._in_row):
                failures.clear()
            self._draining = True
            self._change.notify_all()
            before, sent = -1, 0
            while not self._has_ended() and before != sent:
                before = self._sent
                self._change.wait_for(lambda: self._has_ended() or self._sent != before, seconds)  # noqa: B023
                sent = self._sent
            self._draining = False
            why = self._why() or f"no answer within {seconds:.3g} s"
            return Drained(tuple(self._waiting), why if self._waiting else "")

    def close(self) -> None:
        """Ends the thread; a request under way may still arrive."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def _has_ended(self) -> bool:
        """Whether a drain can get no further."""
        aside = all(self._due.get(key) == math.inf for key in self._waiting)
        return bool(aside or self._refused or len(self._in_row) >= MAX_TRIES)

    def _why(self) -> str:
        away = [self._away] * any(key not in self._rejected for key in self._waiting)
        return self._refused or "; ".join([*list(self._rejected.values())[:MAX_NAMED], *filter(None, away)])

    def _run(self) -> None:
        while True:
            with self._change:
                key = self._next()
                while key is None and not self._closed:
                    self._change.wait(self._pause())
                    key = self._next()
                if key is None or self._closed:
                    return
                send = self._waiting[key]
            error = _attempt(send)
            with self._change:
                self._note(key, send, error)
                self._change.notify_all()

    def _next(self) -> str | None:
        """Returns the first key that is due."""
        now = time.monotonic()
        if self._refused or now < self._opens or (self._draining and self._has_ended()):
            return None
        return next((key for key in self._waiting if self._due.get(key, 0.0) <= now), None)

    def _pause(self) -> float | None:
        """Returns the seconds until there is something to do; None until something changes."""
        earliest = min((max(self._opens, self._due.get(key, 0.0)) for key in self._waiting), default=math.inf)
        idle = self._refused or earliest == math.inf or (self._draining and self._has_ended())
        return None if idle else max(0.0, earliest - time.monotonic())

    def _note(self, key: str, send: Callable[[], None], error: Exception | None) -> None:
        """Records the result of an attempt."""
        said = str(error) if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
        away = isinstance(error, StorageError) and not isinstance(error, RejectedError)
        if error is None:
            self._sent += 1
            self._in_row.clear()
            self._away = ""
        elif isinstance(error, RefusedError):
            self._refused = said
        elif away:
            self._away = said
            self._in_row.add(key)
            # The first failed key may be the only one.
            self._opens = self._after(len(self._in_row) - 1)
        if self._waiting.get(key) is not send:
            return  # Something newer was put meanwhile.
        if error is None:
            del self._waiting[key]
            self._forget(key)
            return
        if away:
            self._tries[key] = self._tries.get(key, 0) + 1
            spent = self._draining and self._tries[key] >= MAX_TRIES
            self._due[key] = math.inf if spent else self._after(self._tries[key])
        else:
            self._rejected[key], self._due[key] = said, math.inf
        # The others first.
        self._waiting[key] = self._waiting.pop(key)

    def _forget(self, key: str) -> None:
        for failures in (self._tries, self._due, self._rejected):
            failures.pop(key, None)

    def _after(self, failures: int) -> float:
        """Returns when to try again after `failures`; in a drain, immediately."""
        immediately = self._draining or failures == 0
        pause = 0.0 if immediately else min(2.0 ** (failures - 1), MAX_PAUSE_SECONDS)
        return time.monotonic() + pause


def _attempt(send: Callable[[], None]) -> Exception | None:
    try:
        send()
    except Exception as error:
        return error
    return None
