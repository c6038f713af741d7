"""Children that burn processor time, for tests of who has used what."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BURN = """
import os, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""
# What it asks for stays until it is told to go on.
TELL = "\nprint('ready', flush=True); sys.stdin.readline()\n"


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code`; it has come to its first TELL."""
    arguments = [sys.executable, "-S", "-c", BURN + code]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
