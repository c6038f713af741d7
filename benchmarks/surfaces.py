"""Measures whole search spaces, so that strategies can be compared on them in milliseconds.

python benchmarks/surfaces.py [mlp lstm cnn noise]     writes benchmarks/surfaces/<device>/<name>.csv

A line is one fresh process: some short windows, start-up, peak memory. Every pass takes the cells
are left in a shuffled order; a pass is some third of what there is time for, so that what changes on
the machine in an hour is not mistaken for a difference between cells. Cut off, the same command goes
on. `noise` repeats a few cells of each surface, in rounds of random order.
"""

from __future__ import annotations

import csv
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import chosen, device_folder
from verdicts import Bench

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.search.distributions import combinations
from sweeper.spec import SweepSpec, load

FOLDER = Path(__file__).parent / "surfaces"
SHIPPED = FOLDER / "amd-epyc-2-cores"
"""Recorded for all: what is replayed where nothing was recorded on the machine itself."""
NAMES = ("mlp", "lstm", "cnn")
PASSES = 3
MINUTES = 40.0
CELL = MeasurePlan(window_seconds=0.1, repeats=3, warmup_cap_seconds=0.8, cap_seconds=0.6, diagnose=False)
REPEAT = replace(CELL, window_seconds=0.5, repeats=1, cap_seconds=0.75)
ROUNDS = 60
REPEATED = 2
"""Cells of each surface that `noise` repeats: one among the fastest, one in the middle."""

FIELDS = (
    "pass",
    "key",
    "outcome",
    "windows",
    "startup_s",
    "first_step_s",
    "warmup_s",
    "memory_gib",
    "flags",
    "at",
)


def surface_of(name: str) -> SweepSpec:
    """Returns the space of a surface."""
    return load(FOLDER / f"{name}.yaml", [])


def recordings() -> Path:
    """Returns the folder whose recordings are replayed: this machine's if it has them all, else SHIPPED."""
    own = device_folder(FOLDER)
    return own if all((own / f"{name}.csv").exists() for name in (*NAMES, "noise")) else SHIPPED


def rows_of(path: Path) -> list[dict[str, str]]:
    """Returns the lines recorded so far; half a line at the end is cut off."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return list(csv.DictReader(whole.splitlines()))


class Recorder:
    """Runs cells in processes of their own, and writes a line for each."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self._bench = bench
        self._path = path
        self.rows = rows_of(path)

    def record(self, template: Job, config: TrialConfig, plan: MeasurePlan, index: int) -> None:
        """Measures `config` and adds its line."""
        record = self._bench.trial(template, config, plan)
        row: dict[str, Any] = {"pass": index, "key": config.key(), "at": round(time.time(), 1)}
        row["outcome"] = "measured"
        if isinstance(record.outcome, Failure):
            row["outcome"] = str(record.outcome.kind)
        elif isinstance(record.outcome, Measurement):
            found = record.outcome
            row["windows"] = " ".join(f"{w.samples / w.seconds:.6g}" for w in found.windows)
            row["startup_s"] = round(found.startup_seconds, 4)
            row["first_step_s"] = round(found.first_step_seconds, 4)
            row["warmup_s"] = round(found.warmup_seconds, 4)
            row["memory_gib"] = found.host_mem_peak_gib
            row["flags"] = " ".join(found.contamination)
        fresh = not self._path.exists()
        with self._path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append({name: str(value) for name, value in row.items()})


def measure(bench: Bench, folder: Path, name: str, passes: int) -> None:
    """Measures a surface until every cell has `passes` lines, or the time is up."""
    spec = surface_of(name)
    recorder = Recorder(bench, folder / f"{name}.csv")
    template = bench.prepared(spec.pipeline, dict(spec.data))
    cells = {key: spec.config(params) for key, params in combinations(spec).items()}
    baseline = spec.baseline_config()
    cells.setdefault(baseline.key(), baseline)
    used = _seconds(recorder.rows)
    for index in range(passes):
        done = {row["key"] for row in recorder.rows if row["pass"] == str(index)}
        left = [key for key in cells if key not in done]
        random.Random(index).shuffle(left)
        for count, key in enumerate(left):
            began = time.perf_counter()
            if used > MINUTES * 60:
                print(f"{name}: the time is up in pass {index}")
                return
            recorder.record(template, cells[key], CELL, index)
            used += time.perf_counter() - began
            if count % 50 == 0:
                print(f"{name}: pass {index}, {count} of {len(left)}, {used:.0f} s", flush=True)


def _seconds(rows: Sequence[dict[str, str]]) -> float:
    """Returns the seconds spent on `rows`; pauses between two calls of this command left aside."""
    times = [float(row["at"]) for row in rows]
    return sum(min(after - before, 10.0) for before, after in itertools.pairwise(times))


def repeat(bench: Bench, folder: Path) -> None:
    """Repeats a few cells of each surface, in rounds of random order."""
    recorder = Recorder(bench, folder / "noise.csv")
    chosen: list[tuple[Job, TrialConfig]] = []
    for name in NAMES:
        spec = surface_of(name)
        template = bench.prepared(spec.pipeline, dict(spec.data))
        configs = {key: spec.config(params) for key, params in combinations(spec).items()}
        chosen += [(template, configs[key]) for key in _typical(folder / f"{name}.csv", configs)]
    for index in range(ROUNDS):
        done = {row["key"] for row in recorder.rows if row["pass"] == str(index)}
        order = [each for each in chosen if each[1].key() not in done]
        random.Random(index).shuffle(order)
        for template, config in order:
            recorder.record(template, config, REPEAT, index)
        if index % 10 == 0:
            print(f"noise: round {index} of {ROUNDS}", flush=True)


def _typical(path: Path, configs: dict[str, TrialConfig]) -> Iterator[str]:
    """Yields the keys of the cells that are repeated: fast ones, and ones in the middle."""
    speeds = {
        row["key"]: float(row["windows"].split()[0])
        for row in rows_of(path)
        if row["outcome"] == "measured" and row["pass"] == "0" and row["key"] in configs
    }
    order = sorted(speeds, key=lambda key: -speeds[key])
    for i in range(REPEATED):
        yield order[len(order) // 20 if i == 0 else len(order) // 2]


def main() -> None:
    asked = chosen(dict.fromkeys((*NAMES, "noise")))
    folder = device_folder(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for passes in range(1, PASSES + 1):
            for name in NAMES:
                if name in asked:
                    measure(bench, folder, name, passes)
            if passes == 1 and "noise" in asked:
                # As soon as it is known which cells are typical.
                repeat(bench, folder)
        bench.launcher.close()


if __name__ == "__main__":
    main()
