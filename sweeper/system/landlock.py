"""Restricts where a thread, and whatever it starts, may write (Landlock, kernel 5.13 or newer).

Landlock needs no privileges and works in containers. It judges the place that a path leads to, so a link
does not lead around it, and refuses before anything is changed. It does not judge modes, owners, times and
extended attributes, nor files that are already open. Version 3 and newer can judge whether a file is
truncated by its path alone, which is not used: whoever opens a file to read it would pay for that question.

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on all of Linux' architectures."""
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38

WRITE_FILE = 1 << 1
"""The right to open a file for writing."""
_REFER = 1 << 13
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
"""Removing files and folders, and making files of any kind, folders and links."""
_SINCE = {WRITE_FILE: 1, _CHANGE_FOLDERS: 1, _REFER: 2}

EVERYTHING = WRITE_FILE | _CHANGE_FOLDERS | _REFER

MOVES_SINCE = 2
"""The version since which a file can be moved to another folder."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


@cache
def version() -> int:
    """Returns the version of Landlock's interface; 0 where the kernel does not offer it."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def restrict_thread(writable: Mapping[Path, int]) -> None:
    """Takes from the calling thread, for good, the right to write anywhere but below some places.

    Processes that the thread starts inherit this; other threads are not affected.

    Args:
        writable: The rights below each file or folder; what does not exist is left out.

    Raises:
        OSError: The kernel does not offer it.
    """
    handled = sum(right for right, since in _SINCE.items() if version() >= since)
    rules = _Ruleset(handled)
    ruleset = _call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0))
    try:
        for path, rights in writable.items():
            _allow(ruleset, path, rights & handled)
        _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # Only a folder has entries to make or remove.
        rule = _PathBeneath(rights if path.is_dir() else rights & WRITE_FILE, place)
        _call(_ADD_RULE, ctypes.c_int(ruleset), _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    return _check(int(_libc.syscall(number, *arguments)))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
