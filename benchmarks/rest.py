"""What resting costs: the speed of a process among others that rest, and alone.

python benchmarks/rest.py [--lives N] [--busy]             writes benchmarks/results/<device>/rest.json

A process takes turns alone, then in turn with another one of the same script, then alone again. Nothing but
the company differs, so the log of the speed in company over that alone is the bias of resting. Two of the
five workloads have no loader workers: their rows are gathered (`sweeper tune`). With --busy, another program
uses a core all the time (rest-busy.json).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from common import Figure, publish

from sweeper.judging.arms import Arm
from sweeper.judging.lives import ScriptLives
from sweeper.race.policy import Start
from sweeper.race.tally import interval_of
from sweeper.script.changes import CHANGES_VARIABLE

UNEDITED = Path(__file__).parent / "unedited"
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Program that keeps a core busy, for as long as its parent lives."""
TURNS = 5
"""Turns in each of the three stretches."""
START = Start(arm=0, round=0, turn_seconds=1.0)
GATHERED = ("env", f"{CHANGES_VARIABLE}=loader=gathered")
WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "mlp, 4 workers": (sys.executable, "mlp.py"),
    "lstm, 4 workers": (sys.executable, "lstm.py"),
    "pictures, 2 workers": (sys.executable, "pictures.py"),
    "mlp, no workers": (*GATHERED, sys.executable, "mlp.py"),
    "lstm, no workers": (*GATHERED, sys.executable, "lstm.py"),
}


def bias(command: tuple[str, ...], turns: int = TURNS) -> float:
    """Returns the log of a process's speed in company over its speed alone.

    Args:
        turns: Turns alone, in company, and alone again.
    """
    arm = Arm(name=command[-1], command=command, folder=UNEDITED)
    with (
        ScriptLives.of([arm]) as lives,
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        try:
            lives.start(0, START)
            # The first turn alone is the process's warm-up.
            before = [_log_speed(lives, 0) for _ in range(turns + 1)][1:]
            lives.start(1, START)
            among = []
            for _ in range(turns):
                among.append(_log_speed(lives, 0))
                _log_speed(lives, 1)
            lives.end(1)
            after = [_log_speed(lives, 0) for _ in range(turns)]
            lives.end(0)
        except BaseException:
            lives.kill()
            raise
    return statistics.fmean(among) - statistics.fmean([*before, *after])


def _log_speed(lives: ScriptLives, life: int) -> float:
    turn = lives.turn(life)
    assert turn is not None, "the training is too short"
    seconds, _, samples, _ = turn
    return math.log(samples / seconds)


def main() -> None:
    """Measures and publishes the bias of each workload, and the mean of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lives", type=int, default=10)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    figures, pooled = [], list[float]()
    with _busy_loop() if options.busy else contextlib.nullcontext():
        for name, command in WORKLOADS.items():
            logs = [bias(command) for _ in range(options.lives)]
            print(name, " ".join(f"{100 * log:+.1f}" for log in logs), flush=True)
            pooled += logs
            figures.append(_figure(f"bias of resting, {name}", logs, "<= 8"))
    figures.append(_figure("bias of resting, pooled", pooled, "<= 3"))
    name, more = ("rest-busy", " --busy") if options.busy else ("rest", "")
    publish(name, figures, f"benchmarks/rest.py --lives {options.lives}{more}")


@contextlib.contextmanager
def _busy_loop() -> Iterator[None]:
    """Keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _figure(name: str, logs: list[float], bar: str) -> Figure:
    mean, low, high = interval_of(logs)
    half = (high - low) / 2
    return Figure(
        figure=name,
        value=100 * abs(mean),
        low=100 * max(0.0, abs(mean) - half),
        high=100 * (abs(mean) + half),
        unit="%",
        bar=bar,
        repeats=len(logs),
    )


if __name__ == "__main__":
    main()
