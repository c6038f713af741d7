"""Keeps a loader's data set as it is now, in a process that reads rows as a persistent worker would."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import weakref
from multiprocessing.connection import Connection
from typing import Any

from ..change import ChangeRefusedError
from .children import be_worker
from .collating import fetcher


class Witness:
    """A child that answers with batches until this process ends, or its loader is gone.

    Persistent workers do not see what the training process changes in its data set after the first pass,
    and neither does a witness that is made when the first pass begins.
    """

    def __init__(self, torch: Any, loader: Any) -> None:
        try:
            self._connection, other = multiprocessing.Pipe()
            child = os.fork()
        except OSError as error:
            raise ChangeRefusedError(
                f"no process can be started to read its rows ({error.strerror})"
            ) from error
        if not child:
            self._connection.close()
            _serve(torch, loader, other)
        other.close()
        weakref.finalize(loader, _end, self._connection, child, os.getpid())

    def fetch(self, rows: Any) -> Any:
        """Returns the batch of some rows.

        Raises:
            ChangeRefusedError: It has died.
            Exception: Reading the rows raised it.
        """
        try:
            self._connection.send(rows)
            is_batch, answer = self._connection.recv()
        except (OSError, EOFError) as error:
            raise ChangeRefusedError("the process that read its rows died") from error
        if not is_batch:
            raise answer
        return answer


def is_persistent(loader: Any) -> bool:
    """Returns whether a loader's workers outlive a pass."""
    return bool(loader.num_workers and getattr(loader, "persistent_workers", False))


def _serve(torch: Any, loader: Any, end: Connection) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        be_worker(torch, loader, 0)
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        fetch = fetcher(torch, loader).fetch
        while True:
            rows = end.recv()
            try:
                answer = True, fetch(rows)
            except Exception as error:
                answer = False, error
            end.send(answer)
    finally:
        # Neither the script's exit handlers nor its `finally` blocks must run.
        os._exit(0)


def _end(connection: Connection, child: int, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
