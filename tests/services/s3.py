"""A local S3 server (moto), for data in a bucket."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

START_SECONDS = 60


def is_installed() -> bool:
    """Returns whether it can be started, and be asked through fsspec."""
    return all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask"))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Runs the server; yields the environment that leads to it.

    Args:
        folder: Where its log is written.
    """
    log = folder / "moto.log"
    with log.open("w", encoding="utf-8") as file:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Running on" not in (said := log.read_text(encoding="utf-8")):
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": said.partition("Running on ")[2].split()[0],
        }
    finally:
        server.kill()
        server.wait()
