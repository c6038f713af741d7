"""A process that has imported torch, of which the tests' scripts are forks: the import is most of their time.

A script runs in a fork as it does in a new interpreter: as `__main__`, with the arguments, environment and
folder that it is given, with the hook if its environment asks for it, and to the exit of the interpreter.
What torch and Python read from the environment when they start is the exception (`can_start`).

At the tests' end it needs the standard library alone; as a program (`python warm.py DESCRIPTOR`) it imports
torch and numpy.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

READ_AT_START = ("OMP_", "GOMP_", "MKL_", "KMP_", "LD_", "MALLOC_", "PYTHON", "TORCH", "CUDA")
"""Prefixes of variables that are read before a script begins."""
BUT = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
SITE = Path(__file__).parents[1] / "sweeper" / "script" / "inside" / "site" / "sitecustomize.py"
MAX_BYTES = 1 << 18

_descriptor: int | None = None
"""The socket to the process; None outside of `process`."""


class Script:
    """A script that runs in a fork; the part of `subprocess.Popen` that tests use."""

    def __init__(self, answers: socket.socket, written: Sequence[int]) -> None:
        self._answers, self._written = answers, written
        self.pid = self._next()
        self.returncode: int | None = None

    def _next(self) -> int:
        message = self._answers.recv(64)
        assert message, "the process that has torch is gone"
        return int(message)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what it has written by its end, once.

        Raises:
            TimeoutExpired: It has not ended by then.
        """
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = self._next()
            except TimeoutError:
                raise subprocess.TimeoutExpired("script", timeout or 0.0) from None
            self._answers.close()
        output, errors = map(_text_of, self._written)
        return output, errors

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _text_of(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        file.seek(0)
        return file.read()


@contextlib.contextmanager
def process() -> Iterator[None]:
    """Has the process ready, for `start`."""
    global _descriptor
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, __file__, str(number)]
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])
        _descriptor = ours.fileno()
        try:
            yield
        finally:
            _descriptor = None
    server.wait()


def can_start(command: Sequence[str], changed: Mapping[str, str]) -> bool:
    """Whether a command can run in a fork: it is a Python script, and changes nothing that is read before."""
    is_early = any(name.startswith(READ_AT_START) and name not in BUT for name in changed)
    return _descriptor is not None and command[0] == sys.executable and not is_early


def start(command: Sequence[str], environment: Mapping[str, str], folder: Path | None) -> Script:
    """Starts a script: `[sys.executable, "train.py", "--lr", "1"]`, also with `-W ACTION`, `-c` and `-m`."""
    assert _descriptor is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"words": command[1:], "environment": dict(environment), "folder": str(folder or Path.cwd())}
    written = [os.memfd_create(name) for name in ("output", "errors")]
    with theirs, socket.socket(fileno=os.dup(_descriptor)) as requests:
        socket.send_fds(requests, [json.dumps(request).encode()], [theirs.fileno(), *written])
    return Script(ours, written)


# -- the process ---------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Forks for each request a process that forks the script, waits for it, and answers."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answers, output, errors = descriptors
            pid = os.fork()
            if pid == 0:
                os.close(answers)
                for descriptor, standard in ((output, 1), (errors, 2)):
                    os.dup2(descriptor, standard)
                    os.close(descriptor)
                end(functools.partial(run, **json.loads(message)))
            os.write(answers, str(pid).encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                os.write(answers, str(status).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def end(script: Callable[[], None]) -> NoReturn:
    """Runs a script, then exits as an interpreter does, but for taking all of torch apart."""
    status = 0
    try:
        script()
    except SystemExit as asked:
        code = asked.code
        status = 0 if code is None else code if isinstance(code, int) else 1
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        status = 1
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(status)


def run(words: list[str], environment: dict[str, str], folder: str) -> None:
    """Becomes the script."""
    import torch

    os.environ.clear()
    os.environ.update(environment)
    # Importing torch has settled it, with some releases.
    tempfile.tempdir = None
    os.chdir(folder)
    while words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        del words[:2]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    install_hook(torch)
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if words[0] == "-m":
        sys.path.insert(0, folder)
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = module
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        code = compile(words[1], "<string>", "exec")
    else:
        path = os.path.join(folder, words[0])
        sys.path.insert(0, os.path.dirname(path))
        sys.argv = words
        module.__file__ = path
        code = compile(Path(path).read_bytes(), path, "exec")
    exec(code, module.__dict__)


def install_hook(torch: Any) -> None:
    """Does what `sitecustomize` does in a new interpreter, and what it waits for: torch is there."""
    if str(SITE.parent) not in sys.path:
        return
    site = runpy.run_path(str(SITE), run_name="sitecustomize")
    waiting = [finder for finder in sys.meta_path if type(finder).__name__ == "_TorchFinder"]
    for finder in waiting:
        sys.meta_path.remove(finder)
        site["_load_hook"](torch)


def main() -> None:
    # An optimizer imports torch._dynamo at its first step.
    import numpy  # noqa: F401
    import torch._dynamo
    import torch.utils.data  # noqa: F401

    # torch 2.9 makes a folder, which each fork would remove.
    made = getattr(sys.modules.get("torch.distributed.nn.jit.instantiator"), "_TEMP_DIR", None)
    if made is not None:
        atexit.unregister(made.cleanup)
        made.cleanup()
    # No fork copies the pages of what is there by now.
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests)


if __name__ == "__main__":
    main()
