"""Reports what a script does outside of its folder: files it changes, hosts it looks up, jobs it submits."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

SUBMITTERS = frozenset({"sbatch", "srun", "salloc", "qsub", "bsub", "kubectl", "ssh"})
"""Programs that start work elsewhere, where a sweep cannot end it."""

SERVED = frozenset({"docker", "podman", "nerdctl", "systemd-run", "tmux", "screen", "watchman"})
"""Programs that have a service of the machine do their work, which may write what the script may not."""

WRITES = "writes to "
"""Start of what is reported of a file."""

MAX_REPORTS, MAX_CHARACTERS = 20, 300
_WRITES = os.O_WRONLY | os.O_RDWR
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_PROBE_FILE = re.compile("[a-z0-9_]{8}")
_LOCAL = frozenset({"", "localhost", "::1", "0.0.0.0", "::"})
_SHARED = "/dev/shm/"
_SHARED_MEMORY = tuple(_SHARED + name for name in ("pym-", "torch_", "sem.", "psm_"))
_TEMPORARY = ("tmp", "pymp-", "torchinductor_", "torchelastic_", "wandb", "sweeper-")
"""Prefixes of temporary files that libraries make."""


class OutsideAudit:
    """An audit hook, which Python cannot remove again. It takes some tenths of a microsecond per event.

    Args:
        folder: Folder that the script may write to.
        tell: Called when something was found.

    Attributes:
        texts: Descriptions of what the script did, each once.
    """

    def __init__(self, folder: str, tell: Callable[[], None]) -> None:
        self._folders = (os.path.realpath(folder), os.path.realpath(sys.prefix), "/proc", "/sys")
        # `tempfile.gettempdir` would cache the folder before the script can set it.
        self._temporary = os.path.realpath(os.environ.get("TMPDIR") or "/tmp")
        self._local = {*_LOCAL, socket.gethostname()}
        self._tell = tell
        self.texts: list[str] = []
        self._events: dict[str, Callable[[Any], str]] = {
            "open": self._describe_open,
            "os.mkdir": lambda args: "" if os.path.isdir(args[0]) else self._describe_change(args[0]),
            "os.remove": lambda args: self._describe_change(args[0]),
            "os.rmdir": lambda args: self._describe_change(args[0]),
            "os.rename": lambda args: self._describe_change(args[0]) or self._describe_change(args[1]),
            "socket.getaddrinfo": self._describe_lookup,
            "subprocess.Popen": lambda args: _describe_start(args[0], args[1]),
            "os.posix_spawn": lambda args: _describe_start(args[0], args[1]),
            "os.system": lambda args: _describe_start(None, ["sh", "-c", args[0]]),
        }

    def install(self, torch: Any) -> None:
        """Begins to listen."""
        # torch writes files without Python.
        file = getattr(torch.serialization, "_open_zipfile_writer_file", None)
        if file is not None:
            original = file.__init__

            def open_file(writer: Any, name: Any) -> None:
                self._report(lambda _: self._describe_change(name), ())
                original(writer, name)

            file.__init__ = open_file
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: Any) -> None:
        find = self._events.get(event)
        if find is not None:
            self._report(find, args)

    def _report(self, find: Callable[[Any], str], args: Any) -> None:
        try:
            text = find(args)
            if text and text[:MAX_CHARACTERS] not in self.texts and len(self.texts) < MAX_REPORTS:
                self.texts.append(text[:MAX_CHARACTERS])
                self._tell()
        except Exception:
            # The script continues; only the report is lost.
            pass

    def _describe_open(self, args: Any) -> str:
        path, _, flags = args
        return self._describe_change(path) if flags & _WRITES else ""

    def _describe_change(self, name: Any) -> str:
        if not isinstance(name, (str, bytes, os.PathLike)):
            return ""
        path = str(os.path.realpath(os.fsdecode(name)))
        if path.startswith("/dev/") and (not path.startswith(_SHARED) or path.startswith(_SHARED_MEMORY)):
            return ""
        if any(path == folder or path.startswith(folder + os.sep) for folder in self._folders):
            return ""
        temporary = self._temporary + os.sep
        name = path[len(temporary) :] if path.startswith(temporary) else ""
        # `tempfile` tests a folder by writing a file whose name has eight characters.
        if name.startswith(_TEMPORARY) or _PROBE_FILE.fullmatch(name):
            return ""
        # Hidden files are caches and settings of libraries.
        if any(part.startswith(".") or part == "__pycache__" for part in path.split(os.sep)):
            return ""
        return WRITES + path

    def _describe_lookup(self, args: Any) -> str:
        host = str(os.fsdecode(args[0] or ""))
        return "" if host in self._local or host.startswith("127.") else "connects to " + host


def _describe_start(executable: Any, args: Any) -> str:
    words = [os.fsdecode(word) for word in (args if isinstance(args, (list, tuple)) else [args])]
    programs = [os.path.basename(word) for word in (os.fsdecode(executable or ""), *words[:1])]
    if programs[-1] in _SHELLS and "-c" in words[:-1]:
        # Each word of its command line may be a program.
        programs += map(os.path.basename, words[words.index("-c") + 1].split())
    return next(("starts `" + name + "`" for name in programs if name in SUBMITTERS | SERVED), "")
