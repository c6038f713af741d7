"""Which search finds a good configuration soonest: strategies replayed over recorded surfaces.

python -m sweeper.testing.tournament FILE... [--with NAME ...] [--seeds 20] [--into PAGE.md]

A strategy is `ours`, `grid`, `halving`, the name of an Optuna sampler (`tpe`, `gp`, `cmaes`, `random`), or
`FILE.py:CLASS` for one of your own (`Sampler`). What counts is how long a person would have waited for the
trials, start-up and failures included, until the configuration that would be handed over is near the best.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import runpy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Protocol

import optuna
import typer
from optuna.distributions import BaseDistribution
from rich.progress import track

from sweeper.core.config import Scalar
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import UserError
from sweeper.search.distributions import combinations, distributions_of
from sweeper.spec import SweepSpec
from sweeper.sweep.observer import Quiet
from sweeper.sweep.run import run_sweep
from sweeper.sweep.store.journal import Journal
from sweeper.testing.recorded import UNKNOWN, RecordedSurface, Recording, read
from sweeper.testing.replay import ReplayLauncher
from sweeper.tracking import NullTracker

WINDOW_SECONDS, REPEATS, SCREEN_SECONDS = 0.5, 2, 0.25
"""As in search_spaces/quick.yaml; longer windows favour a search that screens."""

INFEASIBLE_SHARE = 0.7
"""So many of the configurations fit into memory."""

NEAR = 0.95
"""Share of the best that counts as found."""

BUDGET = 0.05
"""Share of the grid's seconds after which a search shows what it has."""

FINALISTS, ROUNDS = 3, 8
"""Confirmed at the end: of the three that seem fastest, the best by their means over rounds."""

OURS_TRIALS = 80
NOTHING = "pipelines.tabular"
"""A pipeline that is everywhere; none runs."""

BRACKET, KEPT, RUNGS = 27, 3, (0.25, 0.5, 1.0)
"""Of `halving`: so many begin, one in three goes on, and is measured for so many seconds."""

BEGIN, END = "<!-- tournament -->", "<!-- end of tournament -->"
"""Around the table in a page."""


class Problem:
    """A recorded surface with a memory budget.

    Attributes:
        params: The parameters of each of its configurations, by key.
        limit_gib: The budget.
        best: Samples per second of the best that fits.
        grid_seconds: What measuring every configuration takes.
    """

    def __init__(self, recording: Recording) -> None:
        self.spec, self.cells, self.noise = recording.spec, recording.cells, recording.noise
        self.params = {key: each for key, each in combinations(self.spec).items() if key in self.cells}
        peaks = sorted(cell.peak_gib for key in self.params if not (cell := self.cells[key]).failure)
        self.limit_gib = peaks[int(INFEASIBLE_SHARE * len(peaks))]
        self.best = max(self.cells[key].throughput for key in self.params if self.fits(key))
        self.grid_seconds = math.fsum(
            self.cells[key].start_seconds + REPEATS * WINDOW_SECONDS for key in self.params
        )

    @property
    def name(self) -> str:
        """The surface's name."""
        return self.spec.name

    def fits(self, key: str) -> bool:
        """Returns whether a configuration runs."""
        cell = self.cells[key]
        return not cell.failure and cell.peak_gib <= self.limit_gib

    def surface(self, seed: int) -> RecordedSurface:
        """Returns it as it answers one search."""
        return RecordedSurface(self.cells, self.noise, limit_gib=self.limit_gib, seed=seed)

    def share(self, key: str) -> float:
        """Returns what a configuration reaches of the best that fits."""
        return self.cells[key].throughput / self.best


@dataclass(frozen=True)
class Step:
    """One trial of a search.

    Attributes:
        key: Of its configuration.
        seconds: What it took.
        throughput: Samples per second that it seemed to have; 0 where it failed.
    """

    key: str
    seconds: float
    throughput: float
    out_of_memory: bool = False


Strategy = Callable[[Problem, int], Iterator[Step]]
"""`(problem, seed)`: the steps of one search, for as long as they are asked for."""


class Sampler(Protocol):
    """What another library's search needs, to take part: a class of some twenty lines."""

    def __init__(self, space: Mapping[str, BaseDistribution], seed: int) -> None:
        """Begins a search.

        Args:
            space: The values of each parameter by its name, as Optuna's distributions.
        """

    def ask(self) -> Mapping[str, Scalar] | None:
        """Returns a value for each parameter, or None if there is nothing left to try."""

    def tell(self, params: Mapping[str, Scalar], throughput: float | None) -> None:
        """Takes the samples per second of what was asked for; None if it failed."""


@dataclass
class Score:
    """How far a search has come.

    Attributes:
        seconds: What its trials took so far.
        near_s: The seconds after which what would be confirmed was near the best; infinite until then.
        share: What the best of the finalists reached of the best, within `BUDGET`.
    """

    problem: Problem
    seed: int
    seconds: float = 0.0
    near_s: float = math.inf
    share: float = 0.0
    _seen: dict[str, float] = field(default_factory=dict)

    @cached_property
    def _draw(self) -> random.Random:
        return random.Random(self.seed)

    def add(self, step: Step) -> None:
        """Enters a trial."""
        self.seconds += step.seconds
        if not step.throughput:
            return
        self._seen[step.key] = step.throughput
        finalists = sorted(self._seen, key=lambda key: -self._seen[key])[:FINALISTS]
        shares = {key: self.problem.share(key) for key in finalists}
        means = {key: share * math.exp(self._mean_noise()) for key, share in shares.items()}
        if math.isinf(self.near_s) and shares[max(means, key=lambda key: means[key])] >= NEAR:
            self.near_s = self.seconds
        if self.seconds <= BUDGET * self.problem.grid_seconds:
            self.share = max(shares.values())

    def _mean_noise(self) -> float:
        return statistics.fmean(self._draw.choices(self.problem.noise, k=ROUNDS))

    @property
    def is_over(self) -> bool:
        """Whether nothing else is to be learned of the search."""
        spent = self.seconds / self.problem.grid_seconds
        return spent > 1 or (spent > BUDGET and not math.isinf(self.near_s))


def score(strategy: Strategy, problem: Problem, seed: int) -> Score:
    """Returns how one search goes."""
    found = Score(problem, seed)
    for step in strategy(problem, seed):
        found.add(step)
        if found.is_over:
            break
    return found


# -- ours ------------------------------------------------------------------------------------------


def ours(sampler: str = "auto", trials: int = OURS_TRIALS, **search: object) -> Strategy:
    """Returns a search as `sweeper run` does it, supervisor and all."""

    def run(problem: Problem, seed: int) -> Iterator[Step]:
        spec = spec_of(problem, seed, sampler, trials, **search)
        with tempfile.TemporaryDirectory(dir=scratch()) as home:
            run_recorded(Path(home), spec, problem, seed)
            yield from steps_of(Journal(Path(home) / "sweeps" / spec.name), problem)

    return run


def spec_of(problem: Problem, seed: int, sampler: str, trials: int, **search: object) -> SweepSpec:
    """Returns the specification of a sweep over a recorded surface."""
    # Nothing of the pipeline runs, and it need not be here.
    tree = {**problem.spec.to_dict(), "pipeline": NOTHING}
    tree["search"] = {"sampler": sampler, "trials": trials, "minutes": None, "seed": seed, **search}
    tree["measure"] = {
        "window_seconds": WINDOW_SECONDS,
        "repeats": REPEATS,
        "quality_samples": 0,
        "trace": False,
    }
    tree["confirm"] = {"rounds": 0}
    return SweepSpec.from_dict(tree)


def run_recorded(home: Path, spec: SweepSpec, problem: Problem, seed: int) -> None:
    """Runs a sweep whose trials are answered from the recording."""
    surface = problem.surface(seed)
    run_sweep(
        home,
        spec,
        NullTracker(),
        Quiet(),
        launch=lambda folder: ReplayLauncher(surface, devices=[surface.device]),
    )


def scratch() -> str | None:
    """Returns a folder in memory where there is one: sweeps write each outcome through to the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def steps_of(journal: Journal, problem: Problem) -> Iterator[Step]:
    """Yields the searched trials of a sweep, less what was passed over."""
    for entry in journal.trials():
        outcome, plan = entry.outcome, entry.job.plan
        if entry.job.stage != "search" or is_passed_over(outcome):
            continue
        key = entry.job.config.replace({"accumulate_steps": 1}).key()
        seconds = problem.cells.get(key, UNKNOWN).start_seconds
        if isinstance(outcome, Measurement):
            seconds += SCREEN_SECONDS if plan.screen_above else 0.0
            seconds += 0.0 if outcome.screened_out else REPEATS * WINDOW_SECONDS
            # What accumulates is a trial of another configuration.
            own = entry.job.config.accumulate_steps == 1
            yield Step(key, seconds, outcome.throughput if own else 0.0)
        else:
            assert isinstance(outcome, Failure)
            yield Step(key, outcome.seconds, 0.0, out_of_memory=True)


def is_passed_over(outcome: object) -> bool:
    """Returns whether a trial did not run, since it was not expected to fit."""
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.OOM_EXPECTED


# -- the others ------------------------------------------------------------------------------------


def _measured(problem: Problem, surface: RecordedSurface, key: str, seconds: float) -> Step:
    outcome = surface(problem.spec.config(problem.params[key]))
    if isinstance(outcome, Failure):
        return Step(key, outcome.seconds, 0.0, out_of_memory=True)
    return Step(key, problem.cells[key].start_seconds + seconds, outcome.throughput)


def grid(problem: Problem, seed: int) -> Iterator[Step]:
    """Yields every configuration once, in random order."""
    surface, keys = problem.surface(seed), sorted(problem.params)
    random.Random(seed).shuffle(keys)
    for key in keys:
        yield _measured(problem, surface, key, REPEATS * WINDOW_SECONDS)


def halving(problem: Problem, seed: int) -> Iterator[Step]:
    """Yields brackets of successive halving: many for a moment, the best of them for longer.

    As Hyperband has it (Li et al. 2018), with the length of the measurement as the budget.
    """
    surface, keys = problem.surface(seed), sorted(problem.params)
    random.Random(seed).shuffle(keys)
    for first in range(0, len(keys), BRACKET):
        left = keys[first : first + BRACKET]
        for seconds in RUNGS:
            steps = [_measured(problem, surface, key, seconds) for key in left]
            yield from steps
            ranked = sorted((step for step in steps if step.throughput), key=lambda step: -step.throughput)
            left = [step.key for step in ranked[: max(1, len(left) // KEPT)]]


def asking(make: Callable[[Mapping[str, BaseDistribution], int], Sampler]) -> Strategy:
    """Returns a search by a sampler: without presets, screening or memory model, each trial in full."""

    def run(problem: Problem, seed: int) -> Iterator[Step]:
        surface, sampler = problem.surface(seed), make(distributions_of(problem.spec), seed)
        while (params := sampler.ask()) is not None:
            key = problem.spec.config(params).key()
            step = _measured(problem, surface, key, REPEATS * WINDOW_SECONDS)
            sampler.tell(params, step.throughput or None)
            yield step

    return run


class OptunaSampler:
    """One of Optuna's samplers at its defaults; what fails is told FAIL."""

    def __init__(
        self,
        make: Callable[[int], optuna.samplers.BaseSampler],
        space: Mapping[str, BaseDistribution],
        seed: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(direction="maximize", sampler=make(seed))
        self._space = dict(space)
        self._trial: optuna.Trial | None = None

    def ask(self) -> Mapping[str, Scalar]:
        """Returns what it suggests."""
        self._trial = self._study.ask(self._space)
        params: Mapping[str, Scalar] = self._trial.params
        return params

    def tell(self, params: Mapping[str, Scalar], throughput: float | None) -> None:
        """Tells the study."""
        assert self._trial is not None
        failed = optuna.trial.TrialState.FAIL if throughput is None else None
        self._study.tell(self._trial, throughput, state=failed)


def of_optuna(make: Callable[[int], optuna.samplers.BaseSampler]) -> Strategy:
    """Returns the search of one of Optuna's samplers, which is made from a seed."""
    return asking(lambda space, seed: OptunaSampler(make, space, seed))


STRATEGIES: Mapping[str, Strategy] = {
    "ours": ours(),
    "grid": grid,
    "halving": halving,
    "random": of_optuna(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "tpe": of_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "gp": of_optuna(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "cmaes": of_optuna(lambda seed: optuna.samplers.CmaEsSampler(seed=seed)),
}


def strategy_of(name: str) -> Strategy:
    """Returns a strategy by its name.

    Raises:
        UserError: There is none of this name.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    path, _, kind = name.partition(":")
    if not (path.endswith(".py") and kind):
        raise UserError(
            f"A strategy must be one of {', '.join(STRATEGIES)}, or FILE.py:CLASS, but got {name!r}."
        )
    if not Path(path).is_file():
        raise UserError(f"A strategy's file must exist, but {path} does not.")
    found = runpy.run_path(path)
    if kind not in found:
        raise UserError(f"{path} must have the class {kind!r}, but it has none of this name.")
    make: Callable[[Mapping[str, BaseDistribution], int], Sampler] = found[kind]
    return asking(make)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A median over seeds, with a bootstrap interval of 95%."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Figure:
        """Returns the median of values."""
        draw = random.Random(seed)
        medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
        return cls(statistics.median(values), medians[50], medians[1949])


Scores = Mapping[str, Mapping[str, Sequence[Score]]]
"""By the strategy's and the surface's name, one for each seed."""


def table(scores: Scores) -> str:
    """Returns the results as a table in Markdown, the soonest first."""
    surfaces = list(next(iter(scores.values())))
    means = {name: _over_all([_near(each) for each in found.values()]) for name, found in scores.items()}
    lines = [
        "| strategy | " + " | ".join(f"`{each}`" for each in surfaces) + f" | all | after {BUDGET:.0%} |",
        "|---" * (len(surfaces) + 3) + "|",
    ]
    for name in sorted(scores, key=lambda each: means[each].value):
        found = scores[name]
        cells = [_seconds(Figure.of(_near(found[each]))) for each in surfaces]
        share = Figure.of([each.share for one in found.values() for each in one])
        shares = f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"
        lines.append(f"| `{_short(name)}` | " + " | ".join([*cells, _seconds(means[name]), shares]) + " |")
    return "\n".join(lines)


def _near(scores: Sequence[Score]) -> list[float]:
    """Returns the seconds to near the best; what never came there needs those of the whole grid."""
    return [min(each.near_s, each.problem.grid_seconds) for each in scores]


def _over_all(seconds: Sequence[Sequence[float]]) -> Figure:
    """Returns the geometric mean over surfaces of the medians over seeds."""
    draw = random.Random(0)

    def mean(drawn: Callable[[Sequence[float]], Sequence[float]]) -> float:
        return math.exp(statistics.fmean(math.log(statistics.median(drawn(each))) for each in seconds))

    means = sorted(mean(lambda each: draw.choices(each, k=len(each))) for _ in range(2000))
    return Figure(mean(lambda each: each), means[50], means[1949])


def _seconds(of: Figure) -> str:
    return f"{of.value:.3g} s [{of.low:.3g}, {of.high:.3g}]"


def _short(name: str) -> str:
    path, _, kind = name.partition(":")
    return kind or path


def written_into(page: str, text: str) -> str:
    """Returns a page with another table between its marks.

    Raises:
        UserError: It has no marks.
    """
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not marks.search(page):
        raise UserError(f"The page must have {BEGIN} and {END} around its table, but it has not.")
    return marks.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page)


def main(
    files: Annotated[list[Path], typer.Argument(help="Recorded surfaces.")],
    strategies: Annotated[
        list[str], typer.Option("--with", help="Strategies; each costs some minutes a surface.")
    ] = list(STRATEGIES),  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Searches of each strategy on each surface.")] = 20,
    into: Annotated[Path | None, typer.Option(help="A page whose table is replaced.")] = None,
) -> None:
    """Replays searches over recorded surfaces, and prints who is near the best soonest."""
    try:
        asked = {name: strategy_of(name) for name in strategies}
        problems = [Problem(read(path)) for path in files]
        scores: dict[str, dict[str, list[Score]]] = {
            name: {each.name: [] for each in problems} for name in asked
        }
        rounds = itertools.product(problems, range(seeds), asked.items())
        total = len(problems) * seeds * len(asked)
        for problem, seed, (name, strategy) in track(rounds, "Replaying", total, transient=True):
            scores[name][problem.name].append(score(strategy, problem, seed))
        found = table(scores)
        if into is not None:
            into.write_text(written_into(into.read_text(encoding="utf-8"), found), encoding="utf-8")
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(found)


if __name__ == "__main__":
    typer.run(main)
