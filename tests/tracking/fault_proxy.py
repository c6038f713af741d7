"""A proxy before an MLflow server that breaks requests in every way a network can; and the server."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeper.tracking.ui import UI_ENV

KINDS = ("refuse", "hang", "500 before", "500 after", "cut request", "cut response")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    """Runs an MLflow server until the block ends."""
    log = folder / "server.log"
    with open(log, "w") as file:
        server = subprocess.Popen(
            command, env=os.environ | UI_ENV, stdout=file, stderr=file, cwd=folder, start_new_session=True
        )
    try:
        end = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # Its workers too.
        server.wait()


class FaultProxy:
    """Forwards to `upstream`, and while `share` is above 0 breaks that share of the requests.

    Attributes:
        poison: A text; every request that has it is answered with 400.
        faults: How many of each kind there were.
    """

    def __init__(self, upstream: int, seed: int, hang_seconds: float) -> None:
        self.upstream, self.hang_seconds = upstream, hang_seconds
        self.share, self.poison = 0.0, ""
        self.faults: Counter[str] = Counter()
        self.passwords: set[str | None] = set()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            pass

        Handler.proxy = proxy
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def pick(self) -> str:
        """Returns the fault of the next request, or nothing."""
        with self._lock:
            if self._random.random() >= self.share:
                return ""
            # A hang costs a second; the others cost nothing.
            kind = self._random.choices(KINDS, [4, 1, 4, 4, 4, 4])[0]
            self.faults[kind] += 1
            return kind

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()

    def _handle(self) -> None:
        proxy = self.proxy
        proxy.passwords.add(self.headers.get("Authorization"))
        fault = proxy.pick()
        if fault == "refuse":
            return self._reset()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if proxy.poison and proxy.poison in self.path + body.decode("utf-8", "replace"):
            return self._answer(400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "poison"}')
        if fault == "hang":
            time.sleep(proxy.hang_seconds)
            return self._reset()
        if fault == "500 before":
            return self._answer(500, b"{}")
        upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders()
            if fault == "cut request" and body:
                upstream.send(body[: len(body) // 2])
                return self._reset()
            if body:
                upstream.send(body)
            answer = upstream.getresponse()
            told = answer.read()
        finally:
            upstream.close()
        if fault == "500 after":
            return self._answer(500, b"{}")
        self._answer(answer.status, told, cut=fault in ("cut response", "cut request"))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _answer(self, status: int, body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) + (1 if cut and not body else 0)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.wfile.flush()
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass
