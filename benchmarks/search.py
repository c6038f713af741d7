"""How fast a search finds a configuration near the best, on recorded surfaces.

python benchmarks/search.py [bars samplers warm live quick a10 resume]
                                                        writes benchmarks/results/<device>/search.json

bars       our search against a shuffled grid and Optuna's default TPE: measuring seconds to a configuration
           within 5% of the best that fits, share of the best after 5% of the grid's seconds, trials that
           ran out of memory, and configurations that the memory model wrongly skipped
samplers   the same for every sampler of `search.sampler`, each within our own search
warm       searches that start from an earlier sweep in which one thing was different, or misleading, against
           the same without one
live       two of these with real sweeps of search_spaces/quick.yaml
quick      ten real sweeps of search_spaces/quick.yaml: whether they end by themselves, in time, with the
           same winner
a10        the same of search_spaces/a10.yaml (an hour)
resume     sweeps that are interrupted in the middle, against the same uninterrupted

Whole sweeps run, supervisor and all, on a launcher that answers from the recorded surface with recorded
noise (`recorded.tournament`); a trial costs its start-up, warm-up and windows. Confirmation rounds
and quality passes are left out, because they are the same for all.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import Figure, chosen, publish, spread
from recorded.strategies import (
    OURS_TRIALS,
    STRATEGIES,
    Problem,
    Step,
    is_passed_over,
    ours,
    run_recorded,
    scratch,
    spec_of,
    steps_of,
)
from recorded.surfaces import Cell, read
from recorded.tournament import BUDGET, FINALISTS, NEAR, score
from surfaces import recordings
from verdicts import Bench

from sweeper.core.config import TrialConfig
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.errors import UserError
from sweeper.results.numbers.confirmation import Ratio
from sweeper.schema import SweepSpec, load
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker

SEEDS = 20
MAX_SURFACES: int | None = None
"""None: all of them."""
PAST_TRIALS = 24
"""Number of trials of an earlier sweep."""
ROOT = Path(__file__).parents[1]
LIVE = (
    "constraints={}",
    "measure.quality_samples=0",
    "confirm.rounds=0",
    "search.minutes=2",
    "measure.trace=false",
)
LIVE_SECONDS = 120.0
LIVE_PAIRS = {
    "larger model": ("fix.model.hidden_size=512",),
    "other batches": ("space.batch_size.low=16", "space.batch_size.high=512"),
}
LIVE_TURNS = 5
LIVE_ROUNDS = 4
WORTH = 0.8
"""Share of the fastest trial's speed from which a configuration is measured again."""
END_TURNS = 10


def bars(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields our search against a shuffled grid and plain TPE."""
    for problem in problems:
        scores = {
            name: [score(STRATEGIES[name], problem, seed) for seed in range(SEEDS)]
            for name in ("ours", "grid", "tpe")
        }
        near = {name: [run.near_s for run in runs] for name, runs in scores.items()}
        for name, seconds in near.items():
            yield _figure(f"{problem.name}: {name}, seconds to 5 %", seconds, unit="s")
        for other, bar in (("grid", "<= 0.25"), ("tpe", "<= 0.2")):
            ratio = statistics.median(near["ours"]) / statistics.median(near[other])
            yield Figure(
                figure=f"{problem.name}: ours / {other}",
                value=ratio,
                low=ratio,
                high=ratio,
                bar=bar,
                repeats=SEEDS,
            )
        shares = [run.share for run in scores["ours"]]
        yield _figure(
            f"{problem.name}: share of the best for {BUDGET:.0%} of the grid", shares, bar=">= 0.99"
        )
        late = [sum(step.out_of_memory for step in _steps(problem, seed)[5:45]) for seed in range(SEEDS)]
        yield _figure(f"{problem.name}: out of memory in 40 after five", late, bar="<= 2")
        wrongly = [_wrongly_passed_over(problem, seed) for seed in range(SEEDS)]
        yield _figure(f"{problem.name}: better than the winner and kept from running", wrongly, bar="<= 0")


def _steps(problem: Problem, seed: int) -> list[Step]:
    return list(ours()(problem, seed))


def _wrongly_passed_over(problem: Problem, seed: int) -> float:
    """Returns the number of skipped configurations that fit and are faster than all that ran."""
    with tempfile.TemporaryDirectory(dir=scratch()) as home:
        spec = spec_of(problem, seed, "auto", OURS_TRIALS)
        run_recorded(Path(home), spec, problem, seed)
        journal = Journal(Path(home) / "sweeps" / spec.name)
        entries = list(journal.trials())
        refused = {entry.job.config.key() for entry in entries if is_passed_over(entry.outcome)}
        ran = {step.key for step in steps_of(journal, problem) if step.throughput}
    best = max(problem.share(key) for key in ran)
    return sum(
        problem.fits(key) and problem.share(key) > best for key in refused - ran if key in problem.cells
    )


def _figure(title: str, values: Sequence[float], *, bar: str = "", unit: str = "") -> Figure:
    finite = [value if math.isfinite(value) else 1e6 for value in values]
    figure = spread(finite)
    return Figure(
        figure=title,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        bar=bar,
        unit=unit,
        repeats=len(values),
    )


def samplers(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields the same for every sampler, within our own search."""
    for problem in problems:
        for name in ("auto", "climb", "tpe", "cmaes", "random", "gp"):
            # A GP takes seconds to ask, in a separate process.
            seeds, trials = (1, 24) if name == "gp" else (6, 56)
            try:
                runs = [score(ours(name, trials), problem, seed) for seed in range(seeds)]
            except UserError as error:
                print(error)
                continue
            yield _figure(f"{problem.name}: {name}, seconds to 5 %", [run.near_s for run in runs], unit="s")
            shares = [run.share for run in runs]
            yield _figure(f"{problem.name}: {name}, share for {BUDGET:.0%} of the grid", shares)


def resume(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields how many of the interrupted sweeps asked the same as the uninterrupted ones."""
    same, problem = 0, problems[0]
    for seed in range(SEEDS):
        spec = spec_of(problem, seed, "auto", 30)
        with tempfile.TemporaryDirectory(dir=scratch()) as whole, tempfile.TemporaryDirectory() as cut:
            run_recorded(Path(whole), spec, problem, seed)
            run_recorded(Path(cut), spec, problem, seed)
            asked = _asked(Path(whole), problem)
            folder = Path(cut) / "sweeps" / problem.name
            for entry in Journal(folder).trials():
                if entry.number > 5 + seed:
                    shutil.rmtree(entry.folder)
            (folder / "result.json").unlink()
            run_recorded(Path(cut), spec, problem, seed)
            same += asked == _asked(Path(cut), problem)
    yield Figure(
        figure="sweeps cut off that asked the same",
        value=same,
        low=same,
        high=same,
        bar=f">= {SEEDS}",
        repeats=SEEDS,
    )


def _asked(home: Path, problem: Problem) -> list[TrialConfig]:
    return [entry.job.config for entry in Journal(home / "sweeps" / problem.name).trials()]


# -- starting from an earlier sweep ----------------------------------------------------------------


Change = Callable[[Mapping[str, Mapping[str, Any]], Mapping[str, Cell]], Mapping[str, float]]
"""From `(configurations by key, cells by key)` to the new speeds of the cells that change."""


def varied(path: Path, change: Change | None = None, batches: Sequence[int] = ()) -> Problem:
    """Returns a recorded surface on which something is different.

    Args:
        change: Makes new speeds from the recorded ones.
        batches: The batch sizes in its space; empty for the recorded ones.
    """
    recording = read(path)
    spec, cells = recording.spec, recording.cells
    if change is not None:
        flats = {key: spec.config(params).flatten() for key, params in Problem(recording).params.items()}
        speeds = change(flats, cells)
        cells = {
            key: replace(cell, throughput=speeds.get(key, cell.throughput)) for key, cell in cells.items()
        }
    if batches:
        tree = spec.to_dict()
        tree["space"]["batch_size"]["choices"] = list(batches)
        spec = SweepSpec.from_dict(tree)
    return Problem(replace(recording, spec=spec, cells=cells))


def _named(name: str, spec: SweepSpec) -> SweepSpec:
    return spec.model_copy(update={"name": name})


def slower_steps(seconds: float) -> Change:
    """A larger model: each sample takes longer, however it is loaded."""
    return lambda flats, cells: {key: 1 / (1 / cells[key].throughput + seconds) for key in flats}


def times(name: str, value: object, factor: float) -> Change:
    """A value of a parameter that changes the speed by `factor`."""

    def change(flats: Mapping[str, Mapping[str, Any]], cells: Mapping[str, Cell]) -> Mapping[str, float]:
        return {key: factor * cells[key].throughput for key, flat in flats.items() if flat[name] == value}

    return change


def inverted(flats: Mapping[str, Mapping[str, Any]], cells: Mapping[str, Cell]) -> Mapping[str, float]:
    """What was fast is slow."""
    speeds = [cells[key].throughput for key in flats]
    return {key: max(speeds) * min(speeds) / cells[key].throughput for key in flats}


def shuffled(flats: Mapping[str, Mapping[str, Any]], cells: Mapping[str, Cell]) -> Mapping[str, float]:
    """Speeds have nothing to do with configurations."""
    speeds = [cells[key].throughput for key in flats]
    random.Random(0).shuffle(speeds)
    return dict(zip(flats, speeds, strict=True))


def smallest_batch_best(
    flats: Mapping[str, Mapping[str, Any]], cells: Mapping[str, Cell]
) -> Mapping[str, float]:
    """A larger batch is slower."""
    return {key: cells[key].throughput / flat["batch_size"] ** 1.5 for key, flat in flats.items()}


@dataclass(frozen=True)
class Pair:
    """An earlier sweep and the one that starts from it."""

    title: str
    past: Problem
    now: Problem
    misleads: bool = False


def pairs(folder: Path) -> list[Pair]:
    """Returns pairs in which one thing changed, and pairs with a misleading earlier sweep."""

    def of(name: str, **options: Any) -> Problem:
        return varied(folder / f"{name}.jsonl", **options)

    return [
        Pair("larger batches", of("mlp", batches=[64, 128, 256, 512, 1024]), of("mlp")),
        Pair("smaller batches", of("lstm"), of("lstm", batches=[16, 32, 64, 128, 256])),
        Pair("larger model", of("mlp"), of("mlp", change=slower_steps(2e-6))),
        Pair("other data", of("cnn"), of("cnn", change=times("loader.kind", "rows", 0.5))),
        Pair("other torch", of("lstm"), of("lstm", change=times("precision.amp", "bf16", 1.5))),
        Pair("other machine", of("cnn"), of("cnn", change=times("device.cpu_threads", 2, 1.5))),
        Pair("inverted", of("mlp", change=inverted), of("mlp"), misleads=True),
        Pair("shuffled", of("lstm", change=shuffled), of("lstm"), misleads=True),
        Pair("smallest batch best", of("cnn", change=smallest_batch_best), of("cnn"), misleads=True),
    ]


def warm(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields the measuring seconds until near the best, with an earlier sweep over without."""
    for pair in pairs(recordings()[0].parent):
        spent: dict[str, list[float]] = {"off": [], "before": []}
        for seed in range(SEEDS):
            with tempfile.TemporaryDirectory(dir=scratch()) as home:
                before = _named("before", spec_of(pair.past, seed + SEEDS, "auto", PAST_TRIALS))
                run_recorded(Path(home), before, pair.past, seed + SEEDS)
                for start, seconds in spent.items():
                    spec = spec_of(pair.now, seed, "auto", OURS_TRIALS, warm_start=start)
                    run_recorded(Path(home), _named(f"now-{start}", spec), pair.now, seed)
                    steps = steps_of(Journal(Path(home) / "sweeps" / f"now-{start}"), pair.now)
                    seconds.append(score(lambda *_, steps=steps: steps, pair.now, seed).near_s)
        yield from _warm_and_cold(pair.title, spent, "<= 1.1" if pair.misleads else "<= 0.5")


def _warm_and_cold(title: str, spent: Mapping[str, Sequence[float]], bar: str) -> Iterator[Figure]:
    """Yields the seconds until near the best, without and with an earlier sweep, and their ratio."""
    for start, seconds in spent.items():
        yield _figure(f"{title}: warm_start {start}, seconds to 5 %", seconds, unit="s")
    ratio = statistics.median(spent["before"]) / statistics.median(spent["off"])
    repeats = len(spent["off"])
    yield Figure(figure=f"{title}: warm / cold", value=ratio, low=ratio, high=ratio, bar=bar, repeats=repeats)


@dataclass(frozen=True)
class Tried:
    """A trial of a real sweep: the seconds that its trials took until then, and its samples per second."""

    config: TrialConfig
    seconds: float
    throughput: float


def live(_: Sequence[Problem]) -> Iterator[Figure]:
    """Yields the same for real sweeps, in turns with and without the earlier one.

    A trial's own speed is partly luck. So what seemed fast to any of the sweeps is measured again, in rounds.
    """
    usual = load(ROOT / "search_spaces" / "quick.yaml", LIVE)
    for title, changes in LIVE_PAIRS.items():
        runs: dict[str, list[list[Tried]]] = {"off": [], "before": []}
        with tempfile.TemporaryDirectory() as home:
            run_sweep(Path(home), _named("before", usual), NullTracker(), QuietObserver())
            for turn in range(LIVE_TURNS):
                order = list(runs)
                random.Random(turn).shuffle(order)
                for start in order:
                    overrides = [*LIVE, *changes, f"search.warm_start={start}", f"search.seed={turn}"]
                    spec = load(ROOT / "search_spaces" / "quick.yaml", overrides)
                    runs[start].append(list(_really_run(Path(home), _named(f"{start}-{turn}", spec))))
            tried = [trial for turns in runs.values() for run in turns for trial in run]
            speeds = _measured_again(Path(home), usual, tried)
        spent = {start: [_near_seconds(run, speeds) for run in turns] for start, turns in runs.items()}
        yield from _warm_and_cold(f"live, {title}", spent, "<= 0.5")


def _really_run(home: Path, spec: SweepSpec) -> Iterator[Tried]:
    """Runs a sweep, and yields its searched trials."""
    run_sweep(home, spec, NullTracker(), QuietObserver())
    seconds = 0.0
    for entry in Journal(home / "sweeps" / spec.name).trials():
        outcome = entry.outcome
        if entry.job.stage == "search" and isinstance(outcome, Measurement):
            seconds += outcome.startup_seconds + outcome.warmup_seconds
            seconds += math.fsum(window.seconds for window in outcome.windows)
            yield Tried(entry.job.config, seconds, outcome.throughput)


def _measured_again(folder: Path, spec: SweepSpec, tried: Sequence[Tried]) -> dict[str, float]:
    """Returns the samples per second of the configurations that seemed fast, by their keys."""
    fastest = max(trial.throughput for trial in tried)
    configs = {trial.config.key(): trial.config for trial in tried if trial.throughput >= WORTH * fastest}
    logs: dict[str, list[float]] = {key: [] for key in configs}
    plan = MeasurePlan(window_seconds=1.0, repeats=1, warmup_cap_seconds=1.0, diagnose=False)
    again = folder / "again"
    again.mkdir()
    bench = Bench(again)
    template = bench.prepared(str(spec.pipeline), dict(spec.data))
    for turn in range(LIVE_ROUNDS):
        order = list(configs)
        random.Random(turn).shuffle(order)
        for key in order:
            outcome = bench.trial(template, configs[key], plan).outcome
            assert isinstance(outcome, Measurement), outcome
            logs[key].append(math.log(outcome.throughput))
    bench.launcher.close()
    print(f"{len(configs)} configurations measured again, {LIVE_ROUNDS} times", flush=True)
    return {key: math.exp(statistics.fmean(values)) for key, values in logs.items()}


def _near_seconds(run: Sequence[Tried], speeds: Mapping[str, float]) -> float:
    """Returns the seconds until one of the three that seem fastest is near the best, or all of the time."""
    for count, last in enumerate(run, 1):
        finalists = sorted(run[:count], key=lambda trial: -trial.throughput)[:FINALISTS]
        if max(speeds.get(trial.config.key(), 0.0) for trial in finalists) >= NEAR * max(speeds.values()):
            return last.seconds
    return LIVE_SECONDS


def quick(_: Sequence[Problem]) -> Iterator[Figure]:
    """Yields how many sweeps of `quick` end in time, and with the same winner."""
    yield from _ends("quick", 60.0)


def a10(_: Sequence[Problem]) -> Iterator[Figure]:
    """Yields how many sweeps of `a10` end in time, and with the same winner."""
    yield from _ends("a10", 300.0)


def _ends(name: str, most: float) -> Iterator[Figure]:
    """Yields how many sweeps end within `most` seconds, Python's start included, and reach the usual gain."""
    seconds: list[float] = []
    ratios: list[Ratio] = []
    for turn in range(END_TURNS):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "sweeper", "run", name, "--set", f"search.seed={turn}"]
            began = time.monotonic()
            subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
            ).check_returncode()
            seconds.append(time.monotonic() - began)
            (sweep,) = (Path(folder) / "mlruns" / "sweeps").iterdir()
            result = Journal(sweep).result()
            assert result is not None
            winner = result.confirmation.winner
            (ratio,) = [ratio for ratio in result.confirmation.ratios if ratio.trial == winner]
            ratios.append(ratio)
            print(f"{name} {turn}: {seconds[-1]:.0f} s, {result.search_end}; {ratio}", flush=True)
    usual = statistics.median(ratio.ratio for ratio in ratios)
    alike = sum(ratio.low <= usual <= ratio.high for ratio in ratios)
    yield _figure(f"{name}: seconds", seconds, unit="s")
    yield _count(f"{name}: within {most:.0f} s", sum(duration <= most for duration in seconds))
    yield _count(f"{name}: the usual gain inside of their intervals", alike)


def _count(title: str, value: float) -> Figure:
    return Figure(figure=title, value=value, low=value, high=value, bar=">= 9", repeats=END_TURNS)


PARTS = {
    "bars": bars,
    "samplers": samplers,
    "warm": warm,
    "live": live,
    "quick": quick,
    "a10": a10,
    "resume": resume,
}


def main() -> None:
    parts, paths = chosen(PARTS), recordings()[:MAX_SURFACES]
    device = paths[0].parent.name
    print(f"Replayed is what was recorded on {device}.")
    problems = [Problem(read(path)) for path in paths]
    figures = [figure for part in parts.values() for figure in part(problems)]
    publish("search", figures, f"python benchmarks/search.py {' '.join(parts)}", device=device)


if __name__ == "__main__":
    main()
