"""How fast a search finds a configuration near the best, on recorded surfaces.

python benchmarks/search.py [bars samplers resume warm]     writes benchmarks/results/<device>/search.json

bars       our search against a shuffled grid and Optuna's TPE as it comes: measuring seconds to a
           configuration within 5 % of the best that fits, share of the best for a tenth of the grid,
           trials that ran out of memory, and what the memory model wrongly kept from being run
samplers   the same for every sampler of `search.sampler`, each within our own search
warm       searches that start from an earlier sweep in which one thing was otherwise, or misleading, against
           the same without one
resume     sweeps that are cut off in the middle, against the same uninterrupted

Whole sweeps run, supervisor and all, on a launcher that answers from the recorded surface with recorded
noise. Seconds are those of the recorded processes: start-up, warm-up, and windows as planned; diagnosis and
quality passes, alike for all, are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from common import Figure, chosen, publish, spread
from surfaces import NAMES, recordings, surface_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import UserError
from sweeper.search.distributions import combinations, distribution
from sweeper.spec import SweepSpec
from sweeper.sweep.observer import Quiet
from sweeper.sweep.run import run_sweep
from sweeper.sweep.store.journal import Journal
from sweeper.testing.recorded import Cell, RecordedSurface, cells_of, noise_of
from sweeper.testing.replay import ReplayLauncher
from sweeper.tracking import NullTracker

SEEDS = 20
PAST_TRIALS = 24
"""Of an earlier sweep."""
NEAR = 0.95
FINALISTS = 3
ROUNDS = 8
INFEASIBLE_SHARE = 0.7
WINDOW_SECONDS, REPEATS, SCREEN_SECONDS = 0.5, 2, 0.25
"""As in search_spaces/quick.yaml; longer windows favour a search that screens."""


@dataclass(frozen=True)
class Step:
    """One trial of a search: what it was, what it cost, and what it seemed to give (0 where it failed)."""

    key: str
    seconds: float
    throughput: float
    out_of_memory: bool = False


class Problem:
    """A recorded surface with a memory budget."""

    def __init__(
        self, name: str, folder: Path, change: Change | None = None, batches: Sequence[int] = ()
    ) -> None:
        """Reads a recorded surface.

        Args:
            change: Makes other speeds of the recorded ones.
            batches: The sizes in its space; none for those that were recorded.
        """
        self.name = name
        self.spec = surface_of(name)
        if batches:
            tree = self.spec.to_dict()
            tree["space"]["batch_size"]["choices"] = list(batches)
            self.spec = SweepSpec.from_dict(tree)
        self.cells = cells_of(folder / f"{name}.csv")
        if change is not None:
            flats = {key: self.spec.config(p).flatten() for key, p in combinations(surface_of(name)).items()}
            speeds = change({key: flats[key] for key in self.cells if key in flats}, self.cells)
            self.cells = {
                key: replace(cell, throughput=speeds.get(key, cell.throughput))
                for key, cell in self.cells.items()
            }
        self.noise = noise_of(folder / "noise.csv")
        self.params = {key: p for key, p in combinations(self.spec).items() if key in self.cells}
        peaks = sorted(self.cells[key].peak_gib for key in self.params)
        self.limit_gib = peaks[int(INFEASIBLE_SHARE * len(peaks))]
        self.best = max(self.cells[key].throughput for key in self.params if self.fits(key))

    def fits(self, key: str) -> bool:
        return self.cells[key].peak_gib <= self.limit_gib

    def surface(self, seed: int) -> RecordedSurface:
        return RecordedSurface(self.cells, self.noise, limit_gib=self.limit_gib, seed=seed)

    def share(self, key: str) -> float:
        """Returns what a cell reaches of the best that fits."""
        return self.cells[key].throughput / self.best


Change = Callable[[Mapping[str, Mapping[str, Any]], Mapping[str, Cell]], Mapping[str, float]]
"""`(configurations by key, cells by key)`: the speeds of those that change."""

Strategy = Callable[[Problem, int, int], list[Step]]
"""`(problem, seed, trials)`: the steps of one search."""


def ours(sampler: str = "auto", **search: object) -> Strategy:
    """Returns a search by `sampler` as `sweeper run` does it."""

    def run(problem: Problem, seed: int, trials: int) -> list[Step]:
        spec = _spec(problem, seed, trials, sampler, **search)
        with tempfile.TemporaryDirectory(dir=_scratch()) as home:
            _run(Path(home), spec, problem, seed)
            return steps_of(Path(home), problem)

    return run


def _spec(problem: Problem, seed: int, trials: int, sampler: str, **search: object) -> SweepSpec:
    tree = problem.spec.to_dict()
    tree["search"] = {"sampler": sampler, "trials": trials, "minutes": None, "seed": seed, **search}
    tree["measure"] = {
        "window_seconds": WINDOW_SECONDS,
        "repeats": REPEATS,
        "quality_samples": 0,
        "trace": False,
    }
    tree["confirm"] = {"rounds": 0}
    return SweepSpec.from_dict(tree)


def _run(home: Path, spec: SweepSpec, problem: Problem, seed: int) -> None:
    surface = problem.surface(seed)
    run_sweep(
        home,
        spec,
        NullTracker(),
        Quiet(),
        launch=lambda folder: ReplayLauncher(surface, devices=[surface.device]),
    )


def _scratch() -> str | None:
    """Returns a folder in memory where there is one: sweeps write each outcome through to the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def steps_of(home: Path, problem: Problem, name: str = "") -> list[Step]:
    """Returns the searched trials of a sweep in `home`, less what was passed over."""
    steps = []
    for entry in Journal(home / "sweeps" / (name or problem.name)).trials():
        outcome, plan = entry.outcome, entry.job.plan
        if entry.job.stage != "search" or _is_passed_over(outcome):
            continue
        key = entry.job.config.replace({"accumulate_steps": 1}).key()
        seconds = problem.cells[key].start_seconds
        if isinstance(outcome, Measurement):
            seconds += SCREEN_SECONDS if plan.screen_above else 0.0
            seconds += 0.0 if outcome.screened_out else REPEATS * WINDOW_SECONDS
            # What accumulates is a trial of another configuration.
            own = entry.job.config.accumulate_steps == 1
            steps.append(Step(key, seconds, outcome.throughput if own else 0.0))
        else:
            assert isinstance(outcome, Failure)
            steps.append(Step(key, outcome.seconds, 0.0, out_of_memory=True))
    return steps


def _is_passed_over(outcome: object) -> bool:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.OOM_EXPECTED


def passed_over(home: Path, problem: Problem) -> list[TrialConfig]:
    """Returns the configurations that the sweep in `home` passed over."""
    entries = Journal(home / "sweeps" / problem.name).trials()
    return [entry.job.config for entry in entries if _is_passed_over(entry.outcome)]


def plain(asked: Callable[[Problem, int], Iterator[tuple[str, Callable[[float | None], None]]]]) -> Strategy:
    """Returns a search without presets, screening or memory model: every trial takes whole windows."""

    def run(problem: Problem, seed: int, trials: int) -> list[Step]:
        surface, steps = problem.surface(seed), []
        for key, tell in itertools.islice(asked(problem, seed), trials):
            outcome = surface(problem.spec.config(problem.params[key]))
            if isinstance(outcome, Failure):
                steps.append(Step(key, outcome.seconds, 0.0, out_of_memory=True))
                tell(None)
            else:
                seconds = problem.cells[key].start_seconds + REPEATS * WINDOW_SECONDS
                steps.append(Step(key, seconds, outcome.throughput))
                tell(outcome.throughput)
        return steps

    return run


def shuffled_grid(problem: Problem, seed: int) -> Iterator[tuple[str, Callable[[float | None], None]]]:
    """Yields every cell once, in random order."""
    keys = sorted(problem.params)
    random.Random(seed).shuffle(keys)
    for key in keys:
        yield key, lambda _: None


def stock_tpe(problem: Problem, seed: int) -> Iterator[tuple[str, Callable[[float | None], None]]]:
    """Yields what Optuna's TPE suggests as it comes; what runs out of memory is told FAIL."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    space = {name: distribution(parameter) for name, parameter in problem.spec.space.items()}
    while True:
        trial = study.ask(space)

        def tell(value: float | None, trial: optuna.Trial = trial) -> None:
            failed = optuna.trial.TrialState.FAIL if value is None else None
            study.tell(trial, value, state=failed)

        yield problem.spec.config(trial.params).key(), tell


def seconds_to_near(problem: Problem, steps: Sequence[Step], seed: int) -> float:
    """Returns the measuring seconds after which the configuration that would be confirmed is near the best.

    Of the three that seem fastest, confirmation picks the best of their means over rounds. Infinite where
    it never is.
    """
    spent, seen = 0.0, dict[str, float]()
    draw = random.Random(seed)
    for step in steps:
        spent += step.seconds
        if not step.throughput:
            continue
        seen[step.key] = step.throughput
        finalists = sorted(seen, key=lambda key: -seen[key])[:FINALISTS]
        means = {
            key: problem.share(key) * math.exp(statistics.fmean(draw.choices(problem.noise, k=ROUNDS)))
            for key in finalists
        }
        if problem.share(max(means, key=lambda key: means[key])) >= NEAR:
            return spent
    return math.inf


def share_after(problem: Problem, steps: Sequence[Step], trials: int) -> float:
    """Returns what the best of the three that seem fastest after so many trials reaches of the best."""
    seen = {step.key: step.throughput for step in steps[:trials] if step.throughput}
    finalists = sorted(seen, key=lambda key: -seen[key])[:FINALISTS]
    return max((problem.share(key) for key in finalists), default=0.0)


def bars(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields our search against a shuffled grid and plain TPE."""
    reached = []
    for problem in problems:
        grid = len(problem.params)
        trials = {"ours": 80, "grid": grid, "tpe": 200}
        strategies = {"ours": ours(), "grid": plain(shuffled_grid), "tpe": plain(stock_tpe)}
        runs = {
            name: [strategy(problem, seed, trials[name]) for seed in range(SEEDS)]
            for name, strategy in strategies.items()
        }
        near = {
            name: [seconds_to_near(problem, steps, seed) for seed, steps in enumerate(each)]
            for name, each in runs.items()
        }
        for name, each in near.items():
            yield _figure(f"{problem.name}: {name}, seconds to 5 %", each, unit="s")
        for other, bar in (("grid", "<= 0.25"), ("tpe", "<= 0.667")):
            ratio = statistics.median(near["ours"]) / statistics.median(near[other])
            yield Figure(
                figure=f"{problem.name}: ours / {other}",
                value=ratio,
                low=ratio,
                high=ratio,
                bar=bar,
                repeats=SEEDS,
            )
        tenth = [share_after(problem, steps, grid // 10) for steps in runs["ours"]]
        reached.append(statistics.median(tenth))
        yield _figure(f"{problem.name}: share of the best for a tenth of the grid", tenth, bar=">= 0.98")
        for name, bar in (("ours", "<= 2"), ("tpe", "")):
            late = [sum(step.out_of_memory for step in steps[5:45]) for steps in runs[name]]
            yield _figure(f"{problem.name}: {name}, out of memory in 40 after five", late, bar=bar)
        wrongly = [_wrongly_passed_over(problem, seed, 80) for seed in range(SEEDS)]
        yield _figure(f"{problem.name}: better than the winner and kept from running", wrongly, bar="<= 0")
    count = sum(share > 0.98 for share in reached)
    yield Figure(
        figure="surfaces above 98 %", value=count, low=count, high=count, bar=">= 2", repeats=len(reached)
    )


def _wrongly_passed_over(problem: Problem, seed: int, trials: int) -> float:
    """Returns how many configurations fit, are faster than all that were run, and were passed over."""
    with tempfile.TemporaryDirectory(dir=_scratch()) as home:
        _run(Path(home), _spec(problem, seed, trials, "auto"), problem, seed)
        refused = {config.key() for config in passed_over(Path(home), problem)}
        steps = steps_of(Path(home), problem)
    ran = {step.key for step in steps if step.throughput}
    best = max(problem.share(key) for key in ran)
    return sum(
        problem.fits(key) and problem.share(key) > best for key in refused - ran if key in problem.cells
    )


def _figure(title: str, values: Sequence[float], *, bar: str = "", unit: str = "") -> Figure:
    finite = [value if math.isfinite(value) else 1e6 for value in values]
    found = spread(finite)
    return Figure(
        figure=title,
        value=found.value,
        low=found.low,
        high=found.high,
        bar=bar,
        unit=unit,
        repeats=len(values),
    )


def samplers(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields the same for every sampler, within our own search."""
    for problem in problems:
        tenth = len(problem.params) // 10
        for name in ("auto", "climb", "tpe", "cmaes", "random", "gp"):
            # A GP takes seconds to ask, in a process of its own.
            seeds, trials = (1, 24) if name == "gp" else (6, 56)
            try:
                runs = [ours(name)(problem, seed, trials) for seed in range(seeds)]
            except UserError as error:
                print(error)
                continue
            near = [seconds_to_near(problem, steps, seed) for seed, steps in enumerate(runs)]
            yield _figure(f"{problem.name}: {name}, seconds to 5 %", near, unit="s")
            shares = [share_after(problem, steps, min(tenth, trials)) for steps in runs]
            yield _figure(f"{problem.name}: {name}, share for a tenth of the grid", shares)


def resume(problems: Sequence[Problem]) -> Iterator[Figure]:
    """Yields how many of the sweeps that were cut off asked the same as the uninterrupted ones."""
    same, problem = 0, problems[0]
    for seed in range(SEEDS):
        spec = _spec(problem, seed, 30, "auto")
        with tempfile.TemporaryDirectory(dir=_scratch()) as whole, tempfile.TemporaryDirectory() as cut:
            _run(Path(whole), spec, problem, seed)
            _run(Path(cut), spec, problem, seed)
            asked = _asked(Path(whole), problem)
            folder = Path(cut) / "sweeps" / problem.name
            for entry in Journal(folder).trials():
                if entry.number > 5 + seed:
                    shutil.rmtree(entry.folder)
            (folder / "result.json").unlink()
            _run(Path(cut), spec, problem, seed)
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


def slower_steps(seconds: float) -> Change:
    """A larger model: each sample takes longer, however it is loaded."""
    return lambda flats, cells: {key: 1 / (1 / cells[key].throughput + seconds) for key in flats}


def times(name: str, value: object, factor: float) -> Change:
    """A value that makes a training faster or slower than it did."""

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
    """Returns pairs in which one thing changed, and those whose past misleads."""

    def of(name: str, **options: Any) -> Problem:
        return Problem(name, folder, **options)

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
    """Yields the measuring seconds to near the best with an earlier sweep, over those without."""
    for pair in pairs(recordings()):
        spent: dict[str, list[float]] = {"off": [], "before": []}
        for seed in range(SEEDS):
            with tempfile.TemporaryDirectory(dir=_scratch()) as home:
                before = _spec(pair.past, seed + SEEDS, PAST_TRIALS, "auto")
                _run(Path(home), before.model_copy(update={"name": "before"}), pair.past, seed + SEEDS)
                for start, found in spent.items():
                    spec = _spec(pair.now, seed, 80, "auto", warm_start=start)
                    name = f"{pair.now.name}-{start}"
                    _run(Path(home), spec.model_copy(update={"name": name}), pair.now, seed)
                    steps = steps_of(Path(home), pair.now, name)
                    found.append(seconds_to_near(pair.now, steps, seed))
        for start, found in spent.items():
            yield _figure(f"{pair.title}: warm_start {start}, seconds to 5 %", found, unit="s")
        ratio = statistics.median(spent["before"]) / statistics.median(spent["off"])
        yield Figure(
            figure=f"{pair.title}: warm / cold",
            value=ratio,
            low=ratio,
            high=ratio,
            bar="<= 1.1" if pair.misleads else "<= 0.5",
            repeats=SEEDS,
        )


PARTS = {"bars": bars, "samplers": samplers, "warm": warm, "resume": resume}


def main() -> None:
    parts, folder = chosen(PARTS), recordings()
    print(f"Replayed is what was recorded on {folder.name}.")
    problems = [Problem(name, folder) for name in NAMES]
    with contextlib.chdir(Path(__file__).parents[1]):
        figures = [figure for part in parts.values() for figure in part(problems)]
    publish("search", figures, f"python benchmarks/search.py {' '.join(parts)}", device=folder.name)


if __name__ == "__main__":
    main()
