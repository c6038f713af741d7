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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gpu_day import pack, rehearsal
from gpu_day.steps import CALLS, ROOT, SKIPPED, STEPS, Step, write_row
from sweeper.system.process import tree

RESERVE_SECONDS = 15.0
"""Of a call's time, what ends it: killing a step that is over its limit, and the table."""
MIN_SECONDS = 8.0
"""No step begins with less."""
KILL_SECONDS = 5.0
MAX_FILES, MAX_MIB = 8, 16
LOG_BYTES = 2**20
"""Of what a step prints, the end that is kept."""
TAIL_CHARACTERS = 3000
UNKNOWN = "unknown"
"""The commit of a copy without its history."""
PREPARED = "SWEEPER_GPU_DAY"
"""Environment variable of a process that `environment` was made for."""
SCRIPT = ROOT / "benchmarks" / "gpu.py"
_SUBREAPER = 36
_DEVICE = "from sweeper.telemetry.nvml.devices import gpu_names; print(*gpu_names()[:1])"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a step ended: `ok`, `failed`, `timeout` or `skipped`."""

    step: str
    status: str
    seconds: float
    result: str
    tail: str = ""
    left_behind: int = 0


def run_call(
    call: str,
    out: Path,
    *,
    wheels: Path | None = None,
    rehearse: bool = False,
    only: Sequence[str] = (),
    seconds: float | None = None,
) -> int:
    """Runs the steps of a call and prints a table; returns 0 where none failed.

    Args:
        out: Where `CALL.jsonl`, `CALL.log` and the steps' files go; rows are added to those that are there.
        wheels: What `pack` has fetched; put on the path of every step.
        only: Names of steps; all of the call's where empty.
        seconds: Of a step, where that is less than its time box.
    """
    began = time.monotonic()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = out / f"{call}.jsonl"
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    steps = [step for step in STEPS if step.call == call and step.name in (only or (step.name,))]
    ended: list[Ended] = []
    with environment(wheels, rehearse=rehearse) as environ, (out / f"{call}.log").open("ab") as log:
        write_row(rows, {"kind": "call", "call": call, "rehearsal": rehearse, **_machine(environ)})
        for step in steps:
            left = CALLS[call] - RESERVE_SECONDS - (time.monotonic() - began)
            limit = min(step.seconds, left, seconds or left)
            if left < MIN_SECONDS:
                one = Ended(step.name, "skipped", 0.0, "no time was left")
            else:
                one = _run(step, limit, rows, log, environ, rehearse=rehearse)
            write_row(rows, {"kind": "step", **asdict(one)})
            print(f"{one.status:<8} {one.seconds:6.1f} s  {one.step}: {_line(one.result)}", flush=True)
            ended.append(one)
    taken = time.monotonic() - began
    write_row(rows, {"kind": "end", "seconds": round(taken, 1)})
    for one in ended:
        if one.tail:
            print(f"\n--- {one.step}: {one.status}\n{one.tail[-1500:]}")
    files = [*out.glob(f"{call}[.-]*")]
    mib = sum(file.stat().st_size for file in files) / 2**20
    print(f"\nCall {call}: {taken:.0f} s; {len(files)} files, {mib:.1f} MiB in {out}")
    if len(files) > MAX_FILES or mib > MAX_MIB:
        print(f"That is more than the {MAX_FILES} files and {MAX_MIB} MiB that are meant to come back.")
    return int(any(one.status in ("failed", "timeout") for one in ended))


def _run(
    step: Step, limit: float, rows: Path, log: IO[bytes], environ: Mapping[str, str], *, rehearse: bool
) -> Ended:
    command = [sys.executable, str(SCRIPT), "step", step.name, "--rows", str(rows)]
    command += ["--out", str(rows.parent), "--seconds", str(limit), *(["--rehearse"] if rehearse else [])]
    log.write(f"\n=== {step.name}\n".encode())
    log.flush()
    start, began = log.tell(), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environ, "TMPDIR": scratch},
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            left_behind = end_descendants()
        seconds = round(time.monotonic() - began, 1)
    said = _shorten(Path(log.name), start)
    if status is None:
        # The step itself is one of those that were left.
        return Ended(step.name, "timeout", seconds, f"not done after {limit:.0f} s", said, left_behind - 1)
    kind = {0: "ok", SKIPPED: "skipped"}.get(status, "failed")
    result = f"killed by signal {-status}" if status < 0 else said.rstrip().rpartition("\n")[2]
    return Ended(step.name, kind, seconds, result, said if kind == "failed" else "", left_behind)


def _shorten(path: Path, start: int) -> str:
    """Cuts what was logged from `start` on to its last `LOG_BYTES`, and returns the end of it."""
    with path.open("r+b") as log:
        log.seek(max(start, path.stat().st_size - LOG_BYTES))
        kept = log.read()
        log.seek(start)
        log.write(kept)
        log.truncate()
    return kept.decode(errors="replace")[-TAIL_CHARACTERS:]


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
def environment(wheels: Path | None, *, rehearse: bool) -> Iterator[dict[str, str]]:
    """Yields the environment of steps: the project, its benchmarks and the wheels can be imported."""
    if wheels is None and pack.FOLDER.is_dir():
        wheels = pack.FOLDER
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        if wheels is not None:
            pack.unpack(wheels, site)
        parts = [str(ROOT), str(ROOT / "benchmarks"), *([str(site)] if wheels else [])]
        path = os.pathsep.join([*parts, *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", PREPARED: "1"}
        yield rehearsal.environment(Path(folder), environ) if rehearse else environ


def _machine(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns what every figure of the call depends on."""
    device = _said([sys.executable, "-c", _DEVICE], environ)
    commit = _said(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]) if shutil.which("git") else ""
    return {
        "device": device or "no GPU",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or UNKNOWN,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: _version(name) for name in ("torch", "triton", "numpy", "nvidia-ml-py")},
    }


def _said(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Returns what a command prints; nothing where it takes too long."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environ, timeout=RESERVE_SECONDS
        )
        return done.stdout.strip()
    return ""


def _version(name: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _line(text: str) -> str:
    return text if len(text) <= 150 else f"{text[:149]}…"
