"""Kills, faults, leaks, signals and bad input, counted over many runs; every seed is kept.

    python benchmarks/chaos.py                          every part with the counts of PARTS, from a new seed
    python benchmarks/chaos.py supervisors 200 --seed 7  one part
    python benchmarks/chaos.py figures                  runs nothing; writes chaos.json anew
    python benchmarks/chaos.py syscalls-kill 4 --seed 0  every fourth call, from a place that the seed gives

A run adds a line to benchmarks/results/chaos-runs.jsonl. chaos.json is made from the lines of all devices,
because a fault on one device is a fault on all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, Figure, device_model, publish

from sweeper.schema.sections import ExecutionOptions

REPOSITORY = Path(__file__).parents[1]
HARNESS = REPOSITORY / "tests" / "chaos"
RUNS = RESULTS / "chaos-runs.jsonl"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of chaos.

    Attributes:
        words: The script in `tests/chaos` and its first arguments; the count and the seed follow.
        count: The number that the bar asks for; for system calls, n for every n-th call.
        counted: Key of a run's count.
        figures: Other keys of a run, whose largest values are published: key, unit, bar.
    """

    words: tuple[str, ...]
    count: int
    counted: str = "count"
    figures: tuple[tuple[str, str, str], ...] = ()


_GONE = (("slowest_gone_s", "s", "<= 3"),)

PARTS = {
    "supervisors": Part(("chaos_kills.py", "supervisors"), 1000, "kills", _GONE),
    "trials": Part(("chaos_kills.py", "trials"), 1000, "kills", _GONE),
    "real-supervisors": Part(("chaos_real.py", "supervisors"), 100, "kills", _GONE),
    "real-trials": Part(("chaos_real.py", "trials"), 100, "kills", _GONE),
    "race-supervisors": Part(("chaos_race.py", "supervisors"), 100, "kills"),
    "race-keepers": Part(("chaos_race.py", "keepers"), 100, "kills"),
    "race-scripts": Part(("chaos_race.py", "scripts"), 100, "kills"),
    "syscalls-kill": Part(("chaos_syscalls.py", "KILL"), 1),
    "syscalls-power": Part(("chaos_syscalls.py", "POWER"), 1),
    "syscalls-enospc": Part(("chaos_syscalls.py", "ENOSPC"), 1),
    "syscalls-eio": Part(("chaos_syscalls.py", "EIO"), 1),
    "fuzz": Part(
        ("chaos_fuzz.py",), 100_000, figures=(("p99_s", "s", "<= 0.5"), ("max_rss_mb", "MB", "<= 150"))
    ),
    "zoo": Part(("chaos_zoo.py",), 200, figures=_GONE),
    "signals": Part(("chaos_signals.py",), 200),
}


def run(name: str, count: int, seed: int) -> dict[str, Any]:
    """Runs a part; returns what its script has printed."""
    part = PARTS[name]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(HARNESS / part.words[0]), *part.words[1:], str(count), str(seed)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"{part.words[0]} ended with {done.returncode} and no figures.")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=REPOSITORY
    ).stdout.strip()
    return {
        "part": name,
        "seed": seed,
        "commit": commit,
        "device": device_model(ExecutionOptions()),
        **json.loads(done.stdout),
    }


def figures(name: str, runs: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """Yields the figures of a part over all its runs."""
    part = PARTS[name]
    count = sum(record[part.counted] for record in runs)
    faults = sum(len(record["violations"]) for record in runs)
    yield _figure(f"{name}: violations", faults, "<= 0", "", count)
    if "step" in runs[0]:
        calls = max(record["calls"] for record in runs)
        met = {at for record in runs for at in range(record["start"], calls + 1, record["step"])}
        yield _figure(f"{name}: calls that met the fault", 100 * len(met) / calls, ">= 100", "%", calls)
    elif part.count:
        yield _figure(f"{name}: how many", count, f">= {part.count}", "", len(runs))
    if "inside" in runs[0]:
        share = 100 * sum(record["inside"] for record in runs) / max(count, 1)
        yield _figure(f"{name}: landed inside a sweep", share, ">= 95", "%", count)
        windows: Counter[str] = Counter()
        for record in runs:
            windows.update(record["windows"])
        for window, hits in sorted(windows.items()):
            bar = ">= 20" if not name.startswith("real-") else ""
            yield _figure(f"{name}: kills at `{window}`", hits, bar, "", len(runs))
    for key, unit, bar in part.figures:
        yield _figure(f"{name}: {key}", max(record[key] for record in runs), bar, unit, count)


def _figure(figure: str, value: float, bar: str, unit: str, repeats: int) -> Figure:
    return Figure(figure=figure, value=value, low=value, high=value, bar=bar, unit=unit, repeats=repeats)


def main() -> int:
    """Runs the parts asked for and publishes them; returns 1 if a run found a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default="all", choices=["all", "figures", *PARTS])
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    asked = parser.parse_args()
    status = 0
    for name in PARTS if asked.part in ("all", "figures") else [asked.part]:
        if asked.part != "figures":
            record = run(name, asked.count if asked.count is not None else PARTS[name].count, asked.seed)
            for violation in record["violations"][:MAX_NAMED]:
                print(violation, file=sys.stderr)
            status |= bool(record["violations"])
            with open(RUNS, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
        if mine := [entry for entry in runs if entry["part"] == name]:
            publish("chaos", list(figures(name, mine)), f"python benchmarks/chaos.py {name}", RESULTS)
    return status


if __name__ == "__main__":
    sys.exit(main())
