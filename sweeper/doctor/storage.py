"""Checks the state folder: permissions, file system, free space, the MLflow database."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from sweeper.core.units import GIB, MIB
from sweeper.doctor.finding import Check, Look, State, make_check
from sweeper.tracking.ui import DATABASE

MIN_DISK, FULL_DISK = 5 * GIB, GIB // 2
STORE_SECONDS = 5.0
MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "beegfs", "ceph", "glusterfs", "afs", "panfs"}
    | {"pvfs2", "wekafs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse"}
)


def looks(home: Path) -> Sequence[Look]:
    """Returns the checks of a home, which need not exist yet."""
    return (
        ("home", lambda: write_access(home)),
        ("disk", lambda: disk(shutil.disk_usage(existing_parent(home)).free)),
        (
            "file system",
            lambda: file_system(home, MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")),
        ),
        ("mlflow store", lambda: store(home.resolve() / DATABASE)),
    )


def existing_parent(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def write_access(home: Path) -> Check:
    """Returns whether files can be created in the home, or the home itself."""
    there = existing_parent(home)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return Check(
            "home",
            State.FAIL,
            f"cannot write in {there}: {error.strerror or error}",
            "Choose a writable folder with --home DIR",
        )
    return Check(
        "home", State.OK, f"{home} {'is writable' if there == home.absolute() else 'can be created'}"
    )


def disk(free: int) -> Check:
    """Returns a check of the free space for the home."""
    remedy = "Free some space, or choose a folder on another disk with --home DIR"
    cases = [(free < FULL_DISK, State.FAIL, remedy), (free < MIN_DISK, State.WARN, remedy)]
    return make_check("disk", f"{free / GIB:.3g} GiB are free for the home", cases)


def file_system(home: Path, mounts: str) -> Check:
    """Returns a check of the file system that the home is on.

    Args:
        mounts: The text of /proc/self/mountinfo (proc(5)): the fifth field is the mount point, and the
            type follows a lone dash.
    """
    path, best, kind = str(home.resolve()), "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if len(fields.split()) < 5 or not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
        # Where two mounts have the same point, the later one hides the earlier.
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    remedy = (
        "SQLite (MLflow's database) is slow and unsafe there; measurements are safe. Choose a folder on a "
        "local disk with --home DIR, and copy it afterwards: a home may be moved"
    )
    text = f"{kind} at {best}{', a network file system' if kind in NETWORK else ''}"
    return make_check("file system", text, [(kind in NETWORK, State.WARN, remedy)])


def store(path: Path) -> Check:
    """Returns whether MLflow's database is intact. It is opened read-only."""
    if not path.exists():
        return Check("mlflow store", State.OK, f"{DATABASE} will be created")
    began = time.monotonic()
    size = f"{path.stat().st_size / MIB:.3g} MiB"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            db.set_progress_handler(lambda: time.monotonic() - began > STORE_SECONDS, 1000)
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
            problem = "" if answer == "ok" else " ".join(str(answer).split())
    except sqlite3.OperationalError as error:
        if time.monotonic() - began > STORE_SECONDS:
            text = f"{path.name}, {size}: no fault found in {STORE_SECONDS:g} s"
            return Check("mlflow store", State.OK, text)
        if "readonly" in str(error):
            # A killed writer left a journal, and rolling it back needs write access.
            text = f"{path.name}, {size}: its writer was killed; the next one repairs it"
            return Check("mlflow store", State.OK, text)
        remedy = "Try again when nothing writes to it, and check its permissions"
        return Check("mlflow store", State.WARN, f"{path} cannot be read now: {error}", remedy)
    except sqlite3.DatabaseError as error:
        problem = str(error)
    if problem:
        return Check(
            "mlflow store",
            State.FAIL,
            f"{path} is damaged: {problem}",
            f"Move it away, and remove the files named `tracked` in {path.parent / 'sweeps'}: `sweeper run` "
            "with the same YAML then restores the runs from the sweep's folder",
        )
    return Check("mlflow store", State.OK, f"{path.name} is intact ({size})")
