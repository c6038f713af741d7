"""Runs a call: one process per step, each with a limit, and a row for each as soon as it has ended."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_day import pack
from gpu_day.steps import CALLS, ROOT, SKIPPED, STEPS, UNKNOWN, Step, hide_gpus, write_row
from sweeper.system.process import tree

RESERVE_SECONDS = 20.0
"""Of a call's minutes, what ends it: killing a step that is over its limit, and the table."""
MIN_SECONDS = 8.0
"""No step begins with less."""
KILL_SECONDS = 5.0
MAX_FILES, MAX_MIB = 8, 16
TAIL_CHARACTERS = 6000
SCRIPT = ROOT / "benchmarks" / "gpu.py"
_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Ended:
    """How a step ended: `ok`, `failed`, `timeout` or `skipped`."""

    step: str
    status: str
    seconds: float
    found: str
    tail: str = ""
    left_behind: int = 0


def run_call(
    call: int, out: Path, *, wheels: Path | None, rehearse: bool, minutes: float, only: Sequence[str] = ()
) -> int:
    """Runs the steps of a call and prints a table; returns 0 where none failed.

    Args:
        out: Where `call-N.jsonl` and the steps' files go; rows are added to those that are there.
        wheels: What `pack` has fetched; put on the path of every step.
        only: Names of steps; all of the call's where empty.
    """
    began = time.monotonic()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if rehearse:
        hide_gpus()
    rows = out / f"call-{call}.jsonl"
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    ended: list[Ended] = []
    with _path_of(wheels) as path:
        write_row(rows, {"kind": "call", "call": call, "rehearsal": rehearse, **_machine(path)})
        for step in (step for step in STEPS if step.call == call and step.name in (only or (step.name,))):
            left = 60 * minutes - RESERVE_SECONDS - (time.monotonic() - began)
            limit = min(step.rehearsal_seconds if rehearse else step.seconds, left)
            one = (
                Ended(step.name, "skipped", 0.0, "no time was left")
                if limit < MIN_SECONDS
                else _run(step, limit, rows, out, path, rehearse=rehearse)
            )
            write_row(rows, {"kind": "step", **_fields(one)})
            print(f"{one.status:<8} {one.seconds:6.1f} s  {one.step}: {_line(one.found)}", flush=True)
            ended.append(one)
    write_row(rows, {"kind": "end", "seconds": round(time.monotonic() - began, 1)})
    _show(call, ended, time.monotonic() - began, out)
    return int(any(one.status in ("failed", "timeout") for one in ended))


def _run(step: Step, limit: float, rows: Path, out: Path, path: str, *, rehearse: bool) -> Ended:
    command = [sys.executable, str(SCRIPT), "step", step.name, "--rows", str(rows)]
    command += ["--out", str(out), "--seconds", str(limit), *(["--rehearse"] if rehearse else [])]
    began = time.monotonic()
    scratch_folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with scratch_folder as scratch, tempfile.TemporaryFile() as log:
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            left_behind = end_descendants()
        seconds = time.monotonic() - began
        said = _tail(log)
    last = said.rstrip().rpartition("\n")[2]
    if status is None:
        return Ended(step.name, "timeout", seconds, f"not done after {limit:.0f} s", said, left_behind - 1)
    kind = {0: "ok", SKIPPED: "skipped"}.get(status, "failed")
    return Ended(step.name, kind, seconds, last, said if kind == "failed" else "", left_behind)


def end_descendants() -> int:
    """Kills whatever this process has started or adopted, and returns how many processes that were.

    Processes that a step has put in sessions of their own are adopted by this one when the step ends. One
    that hangs in the driver cannot be killed, and is left after `KILL_SECONDS`.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while left := [pid for pid in tree(os.getpid()) if pid != os.getpid()]:
        if time.monotonic() > deadline:
            break
        for pid in left:
            if not _has_ended(pid):
                ended.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    return len(ended)


def _has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@contextlib.contextmanager
def _path_of(wheels: Path | None) -> Iterator[str]:
    """Yields the steps' PYTHONPATH: the project, its benchmarks, the wheels."""
    with tempfile.TemporaryDirectory() as site:
        if wheels is not None:
            pack.unpack(wheels, Path(site))
        yield python_path(*([site] if wheels is not None else []))


def python_path(*more: str) -> str:
    """Returns a PYTHONPATH with which what a step starts finds the project and its benchmarks."""
    parts = [str(ROOT), str(ROOT / "benchmarks"), *more, os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, parts))


def _machine(path: str) -> Mapping[str, Any]:
    """Returns what every figure of the call depends on."""
    return {
        "device": _device(path),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: _version(name) for name in ("torch", "triton", "numpy", "nvidia-ml-py")},
    }


def _device(path: str) -> str:
    """Returns the model of the device, as results are filed under it."""
    code = "from common import device_model, Execution; print(device_model(Execution()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.stdout.strip() or f"unknown ({done.stderr.strip().rpartition(chr(10))[2]})"


def commit() -> str:
    """Returns the commit of this checkout, or `UNKNOWN` where it is a copy without its history."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    if shutil.which("git") is None:
        return UNKNOWN
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or UNKNOWN


def _version(name: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _fields(one: Ended) -> dict[str, Any]:
    found = {name: getattr(one, name) for name in one.__dataclass_fields__}
    return {**found, "seconds": round(one.seconds, 1)}


def _tail(log: Any) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - TAIL_CHARACTERS))
    return str(log.read().decode(errors="replace"))


def _line(text: str) -> str:
    return text if len(text) <= 150 else f"{text[:149]}…"


def _show(call: int, ended: Sequence[Ended], seconds: float, out: Path) -> None:
    print(f"\nCall {call}, {CALLS[call]}: {seconds:.0f} s")
    for one in ended:
        print(f"  {one.step:<14} {one.status:<8} {one.seconds:6.1f} s  {_line(one.found)}")
    for one in ended:
        if one.status in ("failed", "timeout"):
            print(f"\n--- {one.step}: {one.status}\n{one.tail[-1500:]}")
    files = [file for file in out.rglob("*") if file.is_file()]
    mib = sum(file.stat().st_size for file in files) / 2**20
    print(f"\n{len(files)} files, {mib:.1f} MiB in {out}")
    if len(files) > MAX_FILES or mib > MAX_MIB:
        print(f"That is more than the {MAX_FILES} files and {MAX_MIB} MiB that are meant to come back.")
