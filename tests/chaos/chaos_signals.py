"""Signals: SIGINT and SIGTERM, once and twice, at random moments of the real command line.

python tests/chaos/chaos_signals.py COUNT SEED

Every COLD-th life is a fresh interpreter, so that its imports are met as well; the others are forked.
The moments begin when the program has taken over its signals: before, they are Python's own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import chaos_stage as stages  # noqa: E402
from chaos_check import check, survivors  # noqa: E402
from chaos_stage import Stage, begin, end_of, live, stage  # noqa: E402

TRIALS = 3
COLD = 4
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
CONFIRMED_SECONDS, UNWOUND_SECONDS, TWICE_SECONDS = 25.5, 5.0, 2.5
"""At most, from the (last) signal to the end; a Ctrl-C that a sweep takes confirms what it has."""
GONE_SECONDS = 3.0
PATIENCE_SECONDS = 90.0
READY_SECONDS = 30.0
CONTINUES = "run the same command to continue"
MENDED = 3
"""Runs that a sweep may need afterwards."""

COLD_LIFE = """
import sys
from sweeper.cli import signals, main

def program():
    sys.path[:0] = [sys.argv.pop(1)]
    import chaos_stage
    chaos_stage._place_witnesses([])
    main()

signals.run_with_signals(program)
"""


def begin_cold(stage: Stage) -> int:
    """Starts a life as a fresh interpreter; returns its process."""
    with open(stage.folder / "lives.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COLD_LIFE, str(HERE), *stage.words()],
            env={**os.environ, **stage.environment()},
            cwd=stage.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process.returncode = 0  # `end_of` waits for it.
    return process.pid


def is_ready(pid: int) -> bool:
    """Returns whether a process takes SIGTERM."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (caught,) = (line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def wait_until_ready(pid: int) -> None:
    """Returns when a process takes SIGTERM."""
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(pid) and time.monotonic() < deadline:
        time.sleep(0.001)


def signals(count: int, seed: int, place: Path, template: Path, every: int = COLD) -> dict[str, Any]:
    """Sends `count` signals or pairs of them, each to a sweep of its own; returns what came of it.

    Args:
        place: Where the sweeps are; what went wrong is kept there.
        template: An MLflow database to begin with.
        every: Every so many-th life is a fresh interpreter; 0 for none.
    """
    kinds = {_is_cold(index, every) for index in range(count)}
    longest = {cold: _calm_seconds(place / f"calm-{cold}", template, cold) for cold in sorted(kinds)}
    rng = random.Random(seed)
    codes: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    violations: list[str] = []
    for index in range(count):
        name = f"{seed}-{index}"
        made = stage(place / name, trials=TRIALS, template=template)
        number = rng.choice([signal.SIGINT, signal.SIGTERM])
        gap = rng.uniform(0.0, 0.5) if index % 2 else None
        cold = _is_cold(index, every)
        moment = rng.uniform(0.0, longest[cold])
        what = f"{number.name}{' twice' if gap is not None else ''}"
        code, seconds, faults = _one(made, number, gap, moment, cold)
        codes[f"{what}: {code}"] += 1
        if sys.stderr.isatty() or "CHAOS_LOUD" in os.environ:
            print(f"{name} {what} at {moment:.3f} s: {code} after {seconds:.3f} s", *faults, file=sys.stderr)
        if code == CODES[number]:
            slowest[what] = round(max(slowest.get(what, 0.0), seconds), 3)
        if faults:
            violations += [f"{name} {what} at {moment:.3f} s, cold {cold}: {each}" for each in faults]
        else:
            shutil.rmtree(made.folder)
    return {
        "count": count,
        "codes": dict(sorted(codes.items())),
        "slowest_s": dict(sorted(slowest.items())),
        "violations": violations,
    }


def _is_cold(index: int, every: int) -> bool:
    return bool(every) and index % every == 0


def _calm_seconds(folder: Path, template: Path, cold: bool) -> float:
    """Returns how long a life takes from when it takes signals, to which nothing happens."""
    made = stage(folder, trials=TRIALS, template=template)
    pid = begin_cold(made) if cold else begin(made)
    wait_until_ready(pid)
    began = time.monotonic()
    code = end_of(pid, PATIENCE_SECONDS)
    assert code == 0, f"the undisturbed sweep ended with {code}:\n{made.log()}"
    seconds = time.monotonic() - began
    shutil.rmtree(folder)
    return seconds


def _one(
    made: Stage, number: signal.Signals, gap: float | None, moment: float, cold: bool
) -> tuple[int | None, float, list[str]]:
    """Returns the exit code, the seconds from the last signal on, and what was not as it should be."""
    pid = begin_cold(made) if cold else begin(made)
    wait_until_ready(pid)
    time.sleep(moment)
    os.kill(pid, number)
    if gap is not None:
        time.sleep(gap)
        os.kill(pid, number)  # It is not waited for yet: the number is its own.
    asked = time.monotonic()
    code = end_of(pid, PATIENCE_SECONDS)
    seconds = time.monotonic() - asked
    return code, seconds, list(_faults(made, number, gap, code, seconds))


def _faults(
    made: Stage, number: signal.Signals, gap: float | None, code: int | None, seconds: float
) -> Iterator[str]:
    said = made.log()
    if code != CODES[number] and not (code == 0 and (made.sweep / "result.json").exists()):
        yield f"it ended with {code}: {said[-300:]!r}"
    if code == CODES[number]:
        if said.count(CONTINUES) != 1:
            yield f"it did not say, once, how to go on: {said[-300:]!r}"
        most = CONFIRMED_SECONDS if number == signal.SIGINT else UNWOUND_SECONDS
        most = TWICE_SECONDS if gap is not None else most
        if seconds > most:
            yield f"it took {seconds:.1f} s to end"
    deadline = time.monotonic() + GONE_SECONDS
    while (left := survivors(made)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if left:
        yield f"processes {left} are left"
    codes = [live(made, PATIENCE_SECONDS)]
    while codes[-1] == 6 and len(codes) < MENDED:
        codes.append(live(made, PATIENCE_SECONDS))
    said = made.log()
    if codes[-1] != 0:
        yield f"then the same command ended with {codes}: {said[-300:]!r}"
    else:
        # What a Ctrl-C had confirmed is shown beside what the continued sweep has: a later state of it.
        yield from (each for each in check(made, TRIALS) if "times: race/" not in each)
    for bad in ("Traceback", "Exception ignored", "Logging error"):
        if bad in said:
            yield f"{bad!r} was printed: {said[-2000:]!r}"


if __name__ == "__main__":
    with stages.theatre() as (folder, database):
        print(json.dumps(signals(int(sys.argv[1]), int(sys.argv[2]), folder, database), indent=1))
