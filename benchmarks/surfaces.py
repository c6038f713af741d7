"""Measures whole search spaces, so that strategies can be compared on them in milliseconds.

python benchmarks/surfaces.py [NAME...]     writes benchmarks/surfaces/<device>/<name>.jsonl

NAME is a specification in benchmarks/surfaces/. A line is one fresh process: some short windows, start-up,
peak memory (`recorded.surfaces`). The first round takes all cells, in a shuffled order. Then a few
cells are repeated many times, which shows how much processes differ. The rest of the hour goes to rounds of
the cells that may be the fastest, by what processes differ: a search is judged by its distance from them. If
interrupted, the same command continues.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from common import chosen, device_folder
from recorded.strategies import Problem
from recorded.surfaces import CORRECT, Head, Process, add, begin, processes_of, read
from verdicts import Bench

from sweeper.core.config import Scalar
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.schema import SweepSpec, load
from sweeper.schema.sections import ExecutionOptions
from sweeper.search.distributions import combinations
from sweeper.sweep.start.setup import device_model

FOLDER = Path(__file__).parent / "surfaces"
SHIPPED = FOLDER / "amd-epyc-2-cores"
"""Recordings of all surfaces, replayed on machines without recordings of their own."""
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
PASSES = 40
MINUTES = 60.0
WARMUP_SECONDS, REPEAT_SECONDS = 0.8, 0.5
ROUNDS = 60
REPEATED = 2
"""Number of cells that are repeated: one among the fastest, one in the middle."""


def surface_of(name: str) -> SweepSpec:
    """Returns the space of a surface."""
    return load(FOLDER / f"{name}.yaml", [])


def recordings() -> list[Path]:
    """Returns the recordings that are replayed: this machine's if it has them all, else those that ship."""
    shipped = sorted(SHIPPED.glob("*.jsonl"))
    own = [device_folder(FOLDER) / path.name for path in shipped]
    return own if all(path.exists() for path in own) else shipped


class Recorder:
    """Runs the cells of a space in separate processes, and writes a line for each."""

    def __init__(self, bench: Bench, path: Path, spec: SweepSpec) -> None:
        self._bench, self._path, self._spec = bench, path, spec
        seconds, repeats = spec.measure.window_seconds, spec.measure.repeats
        self._cell = MeasurePlan(
            window_seconds=seconds,
            repeats=repeats,
            warmup_cap_seconds=WARMUP_SECONDS,
            cap_seconds=2 * seconds * repeats,
            diagnose=False,
        )
        once = max(seconds, REPEAT_SECONDS)
        self._repeat = replace(self._cell, window_seconds=once, repeats=1, cap_seconds=1.5 * once)
        self._template = bench.prepared(spec.pipeline, dict(spec.data))
        begin(path, Head.of(spec, device_model(ExecutionOptions()), bench.torch))
        self.processes = list(processes_of(path))
        self._losses = {
            process.config(spec).quality_key() for process in self.processes if process.loss is not None
        }

    def record(self, params: Mapping[str, Scalar] | None, index: int, *, repeated: bool = False) -> None:
        """Measures a configuration and adds its line.

        Args:
            params: The values of the searched parameters; None for the baseline.
        """
        spec = self._spec
        config = spec.baseline_config() if params is None else spec.config(params)
        samples = spec.measure.quality_samples
        # Configurations that train alike share one loss.
        if repeated or config.quality_key() in self._losses or not isinstance(samples, int):
            samples = 0
        plan = replace(self._repeat if repeated else self._cell, quality_samples=samples)
        outcome = self._bench.trial(self._template, config, plan).outcome
        process = Process(
            configuration=params or {name: config.flatten().get(name) for name in spec.space},
            baseline=params is None,
            round=index,
            repeated=repeated,
            timestamp=round(time.time(), 1),
        )
        if isinstance(outcome, Failure):
            process = replace(process, invalidity=str(outcome.kind))
        elif isinstance(outcome, Measurement):
            quality = outcome.quality
            process = replace(
                process,
                invalidity=CORRECT,
                throughput=tuple(float(f"{w.samples / w.seconds:.6g}") for w in outcome.windows),
                startup_seconds=round(outcome.startup_seconds, 4),
                first_step_seconds=round(outcome.first_step_seconds, 4),
                warmup_seconds=round(outcome.warmup_seconds, 4),
                peak_gib=outcome.gpu_mem_peak_gib or outcome.host_mem_peak_gib,
                loss=quality.val_loss if quality is not None else None,
                disturbed=tuple(outcome.contamination),
            )
            if process.loss is not None:
                self._losses.add(config.quality_key())
        add(self._path, process)
        self.processes.append(process)


def measure(bench: Bench, folder: Path, name: str, passes: int) -> None:
    """Measures a surface for `passes` rounds, or until the time is up."""
    spec = surface_of(name)
    recorder = Recorder(bench, folder / f"{name}.jsonl", spec)
    cells: dict[str, Mapping[str, Scalar] | None] = {**combinations(spec)}
    cells.setdefault(spec.baseline_config().key(), None)
    used = _seconds(recorder.processes)
    for index in range(passes):
        done = {
            process.config(spec).key()
            for process in recorder.processes
            if process.round == index and not process.repeated
        }
        in_it = cells if index == 0 else Problem(read(folder / f"{name}.jsonl")).contenders()
        left = [key for key in in_it if key not in done]
        random.Random(index).shuffle(left)
        for count, key in enumerate(left):
            began = time.perf_counter()
            if used > MINUTES * 60:
                print(f"{name}: the time is up in round {index}")
                return
            recorder.record(cells[key], index)
            used += time.perf_counter() - began
            if count % 50 == 0:
                print(f"{name}: round {index}, {count} of {len(left)}, {used:.0f} s", flush=True)


def _seconds(processes: Sequence[Process]) -> float:
    """Returns the seconds spent, without the pauses between two calls of this command."""
    times = sorted(process.timestamp for process in processes)
    return sum(min(after - before, 10.0) for before, after in itertools.pairwise(times))


def repeat(bench: Bench, folder: Path, name: str) -> None:
    """Repeats a few cells of a surface, in rounds of random order."""
    spec = surface_of(name)
    recorder = Recorder(bench, folder / f"{name}.jsonl", spec)
    cells = combinations(spec)
    typical = _typical(recorder.processes, spec)
    for index in range(ROUNDS):
        done = {
            process.config(spec).key()
            for process in recorder.processes
            if process.round == index and process.repeated
        }
        order = [key for key in typical if key not in done]
        random.Random(index).shuffle(order)
        for key in order:
            recorder.record(cells[key], index, repeated=True)
        if index % 10 == 0:
            print(f"{name}: repeats, round {index} of {ROUNDS}", flush=True)


def _typical(processes: Sequence[Process], spec: SweepSpec) -> list[str]:
    """Returns the keys of the cells that are repeated: fast ones, and ones in the middle."""
    speeds = {
        process.config(spec).key(): process.throughput[0]
        for process in processes
        if process.throughput and process.round == 0 and not (process.repeated or process.baseline)
    }
    order = sorted(speeds, key=lambda key: -speeds[key])
    return [order[len(order) // 20], order[len(order) // 2]][:REPEATED]


def main() -> None:
    asked = chosen(dict.fromkeys(NAMES))
    folder = device_folder(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for passes in range(1, PASSES + 1):
            for name in asked:
                measure(bench, folder, name, passes)
                if passes == 1:
                    # Only now is it known which cells are typical.
                    repeat(bench, folder, name)
        bench.launcher.close()


if __name__ == "__main__":
    main()
