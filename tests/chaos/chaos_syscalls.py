"""System calls: every call by which a sweep changes its home fails in its turn; then the sweep is continued.

python tests/chaos/chaos_syscalls.py KILL|POWER|EIO|ENOSPC|ENOSPC:M|ALL STEP SEED

Every STEP-th call, from a place that the seed gives; 1 is all of them.

The shim (shim.c) is preloaded into all processes of the sweep: the supervisor, the server, keepers, trials.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import chaos_stage as stages  # noqa: E402
from chaos_check import Kept, check, survivors  # noqa: E402
from chaos_stage import Stage, stage, warm_up  # noqa: E402

SEARCHED, ROUNDS = 2, 1
"""With the baseline three trials, and two processes of a confirmation."""
PATIENCE_SECONDS = 90.0
MAX_LIVES = 3
"""Runs that a sweep may need once the fault is over."""
_COUNTER = struct.Struct("<QQ")
KILLED = -9
FAULTS = ("KILL", "POWER", "ENOSPC", "EIO")


class NoCompilerError(Exception):
    """There is no `cc` here."""


def shim(folder: Path) -> Path:
    """Compiles the shim.

    Raises:
        NoCompilerError: There is nothing to compile it with.
    """
    if (compiler := shutil.which("cc")) is None:
        raise NoCompilerError("no `cc` to compile the shim with")
    made = folder / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(HERE / "shim.c"), "-ldl"], check=True
    )
    return made


def syscalls(fault: str, points: Iterable[int] | int, seed: int = 0) -> dict[str, Any]:
    """Has a fault happen at each of `points`, in a sweep of its own each; returns what came of it.

    Args:
        fault: KILL, POWER (what was not synced is gone), EIO, ENOSPC (for good), or ENOSPC:M (for M calls);
            ALL: one after the other.
        points: The calls, from 1; or how many of them, drawn at random.
    """
    warm_up()
    place = Path(tempfile.mkdtemp(prefix="chaos-syscalls-"))
    library = shim(place)
    template, _ = stages.template(place)
    server = Server(library)
    calls = server.count(stage(place / "counted", trials=SEARCHED, rounds=ROUNDS, template=template))
    if isinstance(points, int):
        points = sorted(random.Random(seed).sample(range(1, calls + 1), min(points, calls)))
    codes: Counter[str] = Counter()
    violations: list[str] = []
    tried = met = 0
    turns = FAULTS if fault == "ALL" else (fault,)
    for index, at in enumerate(points):
        fault = turns[index % len(turns)]
        if at > calls:
            break
        tried += 1
        made = stage(
            place / f"{fault.replace(':', '-')}-{at}", trials=SEARCHED, rounds=ROUNDS, template=template
        )
        code, happened, faults = _one(made, server, fault, at)
        met += happened
        codes[str(code)] += 1
        if "CHAOS_LOUD" in os.environ:
            print(f"{fault} at {at}: {code}", *faults, file=sys.stderr, flush=True)
        if faults:
            violations += [f"{fault} at call {at}: {each} ({made.folder})" for each in faults]
        else:
            shutil.rmtree(made.folder)
    server.close()
    if not violations:
        shutil.rmtree(place)
    return {
        "calls": calls,
        "count": tried,
        "met": met,
        "codes": dict(sorted(codes.items())),
        "violations": violations,
    }


class Server:
    """A process with the shim in it that has imported everything, and forks a life when it is asked to.

    The shim can only be preloaded into a process as it starts, and a start takes seconds.
    """

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "chaos_syscalls.py"), "serve"],
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, made: Stage, fault: str = "", at: int = 0) -> tuple[int | None, int, int]:
        """Returns the exit code of a life, how many calls there were, and how many of them failed."""
        counter = made.folder / "counter"
        counter.write_bytes(_COUNTER.pack(0, 0))
        shim_environment = {
            "SHIM_HOME": str(made.home),
            "SHIM_COUNTER": str(counter),
            "SHIM_AT": str(at),
            "SHIM_FAULT": fault,
            "SHIM_DIRTY": str(made.folder / "dirty"),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(made.folder), shim_environment]) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        calls, met = _COUNTER.unpack(counter.read_bytes())
        return code, calls, met

    def count(self, made: Stage) -> int:
        """Returns how many calls a sweep makes to which nothing happens."""
        code, calls, _ = self.live(made)
        assert code == 0, f"the undisturbed sweep ended with {code}:\n{made.log()}"
        assert calls > 0, "the shim has seen no call"
        shutil.rmtree(made.folder)
        return calls

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _one(made: Stage, server: Server, fault: str, at: int) -> tuple[int | None, bool, list[str]]:
    """Returns the exit code, whether the fault happened, and what was not as it should be."""
    kept = Kept(made)
    code, _, met = server.live(made, fault, at)
    return code, met > 0, list(_faults(made, kept, server, fault, code, met))


def _faults(made: Stage, kept: Kept, server: Server, fault: str, code: int | None, met: int) -> Iterator[str]:
    wanted = {0, 7, KILLED} if fault in ("KILL", "POWER") else {0, 6, 7}
    if code not in wanted:
        yield f"it ended with {code}: {made.log()[-400:]!r}"
    kept.look()
    codes: list[int | None] = []
    while len(codes) < MAX_LIVES and (not codes or codes[-1] not in (0, None)):
        codes.append(server.live(made)[0])
    kept.look()
    yield from kept.faults
    said = made.log()
    if codes[-1] != 0:
        yield f"then the same command ended with {codes}: {said[-400:]!r}"
    else:
        yield from check(made, SEARCHED)
    for bad in ("Traceback", "Exception ignored", "Logging error"):
        if bad in said:
            yield f"{bad!r} was printed: {said[-2000:]!r}"


def _serve() -> None:
    """Answers to lines of standard input, each a life, with its exit code."""
    import ctypes

    warm_up()
    import sweeper.cli.app
    import sweeper.cli.run  # noqa: F401

    answers = os.dup(1)
    os.dup2(2, 1)
    begin_shim = ctypes.CDLL(None).shim_begin
    for line in sys.stdin:
        folder, environment = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            begin_shim()
            made = Stage(Path(folder))
            status = 99
            try:
                stages._become(made, made.words())
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        if environment["SHIM_FAULT"] == "POWER":
            code = _end_of_power(Stage(Path(folder)), pid)
        else:
            code = stages.end_of(pid, PATIENCE_SECONDS)
        os.write(answers, json.dumps(code).encode() + b"\n")


def _end_of_power(made: Stage, pid: int) -> int | None:
    """Waits for a life's end, or for the cut: then all that runs is ended, and what was not synced lost."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if _COUNTER.unpack((made.folder / "counter").read_bytes())[1]:
            break
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while left := survivors(made):
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)
    for path in unsynced((made.folder / "dirty").read_text(encoding="utf-8").splitlines()):
        if path.is_file():
            os.truncate(path, 0)
    return KILLED


def unsynced(lines: Iterable[str]) -> Iterator[Path]:
    """Yields the files that were written and not once synced, by what the shim has noted."""
    written: set[str] = set()
    synced: set[str] = set()
    moved = ""
    for line in lines:
        sign, path = line[0], line[1:]
        if sign == "+":
            written.add(path)
        elif sign == "-":
            synced.add(path)
        elif sign == ">":
            moved = path
        else:
            for known in (written, synced):
                known.discard(path)
                if sign == "=" and moved in known:
                    known.discard(moved)
                    known.add(path)
    return map(Path, sorted(written - synced))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve()
    else:
        step = int(sys.argv[2])
        start = int(sys.argv[3]) % step + 1
        found = {**syscalls(sys.argv[1], range(start, 1_000_000, step)), "start": start, "step": step}
        print(json.dumps(found, indent=1))
