"""Reads what a training is asked for after its next step: to rest, or to take steps apart (`diagnoser`).

It rests between two of its steps while another one that it is compared with takes its turn.

A process that is stopped anywhere loses the step that it is in. One that only waits here lets its loader's
workers fill their queues, and take the cores of the others. So it waits here first, and is stopped then.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable

REQUEST_VARIABLE = "SWEEPER_HOOK_REST"
"""Environment variable that names a file of one byte: what the training is to do after its next step."""
GO_ON, REST, TAKE_APART = 0, 1, 2
"""Values of the byte: nothing else, rest while it has this value, and take its steps apart from then on."""
POLL_SECONDS = 0.001
"""Seconds between two looks. The process is soon stopped, so this is how long it takes to go on."""


def open_page() -> bytes | mmap.mmap:
    """Returns the file's byte, as it changes; a 0 that never changes if there is no file."""
    path = os.environ.get(REQUEST_VARIABLE, "")
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return b"\0"


def wrap_handler(original: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that has a loader's handler interrupt no system call.

    Each worker that ends, is stopped or goes on sends its parent a signal. By hand, no call that makes a file
    can be interrupted; while it waits for an answer (`sweeper.system.seccomp`), it can, and C code gives up.
    """

    def set_handler() -> None:
        before = signal.getsignal(signal.SIGCHLD)
        original()
        if signal.getsignal(signal.SIGCHLD) is not before:
            signal.siginterrupt(signal.SIGCHLD, False)

    return set_handler


def wait(page: bytes | mmap.mmap) -> None:
    """Waits until the training is to go on, or the process that compares it is gone."""
    parent = os.getppid()
    while page[0] == REST and os.getppid() == parent:
        time.sleep(POLL_SECONDS)
