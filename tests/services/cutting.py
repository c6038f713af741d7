"""A proxy before a database server that loses the answer to a commit, as a network can."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class CuttingProxy:
    """Passes everything on, but cuts a connection once its server has answered a COMMIT.

    Attributes:
        port: Of 127.0.0.1, where it listens.
        left: How many answers are yet to be lost; each costs one.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.left = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends it, and every connection through it."""
        for each in (self._listener, *self._open):
            _shut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                armed = threading.Event()
                threading.Thread(target=self._ask, args=(client, server, armed), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, armed), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, armed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT\0" in data and self.left:
                    self.left -= 1
                    armed.set()
                server.sendall(data)
        _shut(server)

    def _answer(self, server: socket.socket, client: socket.socket, armed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if armed.is_set():
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def cutting(port: int) -> Iterator[CuttingProxy]:
    """Yields a proxy before the server on `port` of 127.0.0.1."""
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
