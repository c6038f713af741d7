"""Helps with SQLite databases: the URI of a path, the path in a URI, and what an error means."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import psutil

from sweeper.errors import UserError


def sqlite_uri(path: Path) -> str:
    """Returns the URI by which SQLAlchemy opens the database at an absolute path.

    Raises:
        UserError: The path has a character that the installed SQLAlchemy can express in no URI.
    """
    plain = f"sqlite:///{path}"
    if not {*"%?"} & {*str(path)}:
        return plain
    # Of a URI that begins with `sqlite:///`, MLflow makes the folders before it decodes their names.
    for uri in (plain, f"sqlite+pysqlite:///{quote(str(path))}"):
        if database_in(uri) == str(path):
            return uri
    raise UserError(
        "The path of an MLflow database must not contain ?, or % before two hexadecimal digits, with this"
        f" version of SQLAlchemy, but got {str(path)!r}. Choose another folder with --home."
    )


def database_in(uri: str) -> str:
    """Returns the path of the database that a URI names; empty for one that is not of SQLite."""
    if not uri.startswith("sqlite"):
        return ""
    # Imported late: it is slow to import, and rarely needed.
    import sqlalchemy

    return sqlalchemy.make_url(uri).database or ""


def why_unusable(path: Path | str, error: sqlite3.Error) -> str:
    """Returns a clause that says which database cannot be used, why, and what to do."""
    reason = str(error)
    if "locked" in reason:
        reason = f"{_lockers(path)} keeps it locked. End that, or try again later"
    elif "readonly" in reason:
        reason = "it may not be written. Allow writing to it and to its folder"
    elif "unable to open" in reason:
        reason = "it cannot be opened. Its folder must exist; in a URI, write %25 for % and %3F for ?"
    return f"the MLflow database {path} cannot be used: {reason}"


def _lockers(path: Path | str) -> str:
    """Returns the processes that lock a file, as far as the kernel of this machine names them."""
    processes = []
    # The process may end meanwhile, or belong to another container.
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        status = os.stat(path)
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        pids = {int(fields[4]) for fields in map(str.split, lines) if fields[5:6] == [file]}
        processes = [
            f"{pid} ({psutil.Process(pid).name()})" for pid in sorted(pids - {os.getpid()}) if pid > 0
        ]
    return f"process {', '.join(processes)}" if processes else "another process"
