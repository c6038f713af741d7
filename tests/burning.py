"""Children that burn processor time, for tests of who has used what."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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


@contextmanager
def strangers() -> Iterator[None]:
    """A busy process on every usable core that is in nobody's tree: its parent has ended."""
    code = "if os.fork(): os._exit(0)\nos.sched_setaffinity(0, {{{}}})\nimport threading\n"
    code += "threading.Thread(target=burn, args=(60,), daemon=True).start()"
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            # It ends with its input.
            stack.enter_context(child(code.format(core) + TELL))
        yield
