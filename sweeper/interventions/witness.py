"""Keeps a loader's data set as it is now, in a process that reads rows as a persistent worker would."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import weakref
from typing import Any

from .children import be_worker
from .collating import fetcher
from .intervention import RefusedError

_SIZE = struct.Struct("=Q")


class Witness:
    """A child that answers with batches until this process ends, or its loader is gone.

    Persistent workers do not see what the training process changes in its data set after the first pass,
    and neither does a witness that is made when the first pass begins.
    """

    def __init__(self, torch: Any, loader: Any) -> None:
        try:
            self._own, other = socket.socketpair()
            child = os.fork()
        except OSError as error:
            raise RefusedError(f"no process can be started to read its rows ({error.strerror})") from error
        if not child:
            self._own.close()
            _serve(torch, loader, other)
        other.close()
        weakref.finalize(loader, _end, self._own, child, os.getpid())

    def fetch(self, rows: Any) -> Any:
        """Returns the batch of some rows.

        Raises:
            RefusedError: It has died.
            Exception: Reading the rows raised it.
        """
        try:
            _send(self._own, rows)
            is_batch, found = _receive(self._own)
        except (OSError, EOFError, pickle.PickleError) as error:
            raise RefusedError("the process that read its rows died") from error
        if not is_batch:
            raise found
        return found


def is_persistent(loader: Any) -> bool:
    """Returns whether a loader's workers outlive a pass."""
    return bool(loader.num_workers and getattr(loader, "persistent_workers", False))


def _serve(torch: Any, loader: Any, end: socket.socket) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        be_worker(torch, loader, 0)
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        fetch = fetcher(torch, loader).fetch
        while True:
            rows = _receive(end)
            try:
                answer = True, fetch(rows)
            except Exception as error:
                answer = False, error
            _send(end, answer)
    finally:
        # Neither the script's exit handlers nor its `finally` blocks must run.
        os._exit(0)


def _send(end: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    end.sendall(_SIZE.pack(len(data)))
    end.sendall(data)


def _receive(end: socket.socket) -> Any:
    (size,) = _SIZE.unpack(_read(end, _SIZE.size))
    return pickle.loads(_read(end, size))


def _read(end: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        count = end.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(data)


def _end(own: socket.socket, child: int, owner: int) -> None:
    own.close()
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
