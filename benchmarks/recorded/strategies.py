"""Searches recorded surfaces as `sweeper run` does, and with other libraries' samplers."""

from __future__ import annotations

import math
import os
import random
import runpy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import optuna
from optuna.distributions import BaseDistribution
from parts.replay import ReplayLauncher

from sweeper.core.config import Scalar
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.search.distributions import combinations, distributions_of, values
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker

from .surfaces import UNKNOWN, RecordedSurface, Recording

WINDOW_SECONDS, REPEATS, SCREEN_SECONDS = 0.5, 2, 0.25
"""Windows as in search_spaces/quick.yaml; longer ones favour a search that screens."""

FEASIBLE_SHARE = 0.7
"""Share of the configurations that fit into memory."""

DEVIATIONS = 2.0
"""Half-width of an interval, in standard deviations of the mean."""

OURS_TRIALS = 80
NOTHING = "pipelines.tabular"
"""A pipeline that every installation has. It does not run."""

BRACKET, KEPT, RUNGS = 27, 3, (0.25, 0.5, 1.0)
"""For `halving`: configurations in a bracket, of which one in `KEPT` goes on, and seconds of each rung."""


class Problem:
    """A recorded surface with a memory budget.

    Attributes:
        params: The parameters of each of its configurations, by key.
        limit_gib: The memory budget.
        best: Samples per second of the best configuration that fits.
        grid_seconds: Time that measuring every configuration takes.
    """

    def __init__(self, recording: Recording) -> None:
        self.spec, self.cells, self.noise = recording.spec, recording.cells, recording.noise
        if not self.noise:
            raise UserError(
                f"A surface must have repeats, which show its noise, but `{self.spec.name}` has none."
            )
        self.params = {key: each for key, each in combinations(self.spec).items() if key in self.cells}
        peaks = sorted(cell.peak_gib for key in self.params if not (cell := self.cells[key]).failure)
        self.limit_gib = peaks[int(FEASIBLE_SHARE * len(peaks))]
        self.best = max(self.cells[key].throughput for key in self.params if self.fits(key))
        self.grid_seconds = math.fsum(
            self.cells[key].start_seconds + REPEATS * WINDOW_SECONDS for key in self.params
        )

    @property
    def name(self) -> str:
        """The surface's name."""
        return self.spec.name

    def fits(self, key: str) -> bool:
        """Returns whether a configuration runs within the budget."""
        cell = self.cells[key]
        return not cell.failure and cell.peak_gib <= self.limit_gib

    def surface(self, seed: int) -> RecordedSurface:
        """Returns the surface as one search sees it."""
        return RecordedSurface(self.cells, self.noise, limit_gib=self.limit_gib, seed=seed)

    def share(self, key: str) -> float:
        """Returns the throughput of a configuration as a share of the best that fits."""
        return self.cells[key].throughput / self.best

    def contenders(self) -> list[str]:
        """Returns the keys of the configurations that fit and may be the fastest, by 95% intervals."""
        noise = statistics.pstdev(self.noise)
        intervals: dict[str, tuple[float, float]] = {}
        for key in filter(self.fits, self.params):
            half = DEVIATIONS * noise / math.sqrt(self.cells[key].num_processes)
            middle = math.log(self.share(key))
            intervals[key] = middle - half, middle + half
        least = max(low for low, _ in intervals.values())
        return [key for key, (_, high) in intervals.items() if high >= least]


@dataclass(frozen=True)
class Step:
    """One trial of a search.

    Attributes:
        key: Key of its configuration.
        seconds: Time that it took.
        throughput: Measured samples per second, with noise; 0 if it failed.
    """

    key: str
    seconds: float
    throughput: float
    out_of_memory: bool = False


Strategy = Callable[[Problem, int], Iterator[Step]]
"""Takes `(problem, seed)`, and yields the steps of one search for as long as they are requested."""


class Sampler(Protocol):
    """The interface of another library's search: a class of about twenty lines."""

    def __init__(self, space: Mapping[str, BaseDistribution], seed: int) -> None:
        """Begins a search.

        Args:
            space: The values of each parameter by its name, as Optuna's distributions.
        """

    def ask(self) -> Mapping[str, Scalar] | None:
        """Returns a value for each parameter, or None if there is nothing left to try."""

    def tell(self, params: Mapping[str, Scalar], throughput: float | None) -> None:
        """Receives the samples per second of the parameters that it suggested; None if they failed."""


# -- ours ------------------------------------------------------------------------------------------


def ours(sampler: str = "auto", trials: int = OURS_TRIALS, **search: object) -> Strategy:
    """Returns a search as `sweeper run` does it, supervisor included."""

    def run(problem: Problem, seed: int) -> Iterator[Step]:
        spec = spec_of(problem, seed, sampler, trials, **search)
        with tempfile.TemporaryDirectory(dir=scratch()) as home:
            run_recorded(Path(home), spec, problem, seed)
            yield from steps_of(Journal(Path(home) / "sweeps" / spec.name), problem)

    return run


def spec_of(problem: Problem, seed: int, sampler: str, trials: int, **search: object) -> SweepSpec:
    """Returns the specification of a sweep over a recorded surface."""
    # The pipeline does not run, and need not be here.
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
        QuietObserver(),
        launch=lambda folder: ReplayLauncher(surface, devices=[surface.device]),
    )


def scratch() -> str | None:
    """Returns a folder in memory, if there is one, because sweeps sync each outcome to the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def steps_of(journal: Journal, problem: Problem) -> Iterator[Step]:
    """Yields the searched trials of a sweep, except those that did not run."""
    for entry in journal.trials():
        outcome, plan = entry.outcome, entry.job.plan
        if entry.job.stage != "search" or is_passed_over(outcome):
            continue
        key = entry.job.config.replace({"accumulate_steps": 1}).key()
        seconds = problem.cells.get(key, UNKNOWN).start_seconds
        if isinstance(outcome, Measurement):
            seconds += SCREEN_SECONDS if plan.screen_above else 0.0
            seconds += 0.0 if outcome.is_screened else REPEATS * WINDOW_SECONDS
            # A trial that accumulates is not of the recorded configuration.
            own = entry.job.config.accumulate_steps == 1
            yield Step(key, seconds, outcome.throughput if own else 0.0)
        else:
            assert isinstance(outcome, Failure)
            yield Step(key, outcome.seconds, 0.0, out_of_memory=True)


def is_passed_over(outcome: object) -> bool:
    """Returns whether a trial did not run because it was not expected to fit."""
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

    As in Hyperband (Li et al. 2018), with the length of the measurement as the budget.
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
    """Returns a search by a sampler, without presets, screening or memory model; each trial runs in full."""

    def run(problem: Problem, seed: int) -> Iterator[Step]:
        surface, space = problem.surface(seed), distributions_of(problem.spec)
        sampler = make(space, seed)
        while (params := _asked(sampler)) is not None:
            key = problem.spec.config(_choices(params, space)).key()
            step = _measured(problem, surface, key, REPEATS * WINDOW_SECONDS)
            sampler.tell(params, step.throughput or None)
            yield step

    return run


def _asked(sampler: Sampler) -> Mapping[str, Scalar] | None:
    try:
        return sampler.ask()
    except StopIteration:
        # A library may give up this way; inside a generator, this exception would become an error.
        return None


def _choices(params: Mapping[str, Scalar], space: Mapping[str, BaseDistribution]) -> dict[str, Scalar]:
    """Returns the values of a space that equal the suggested ones, which may be of numpy's types.

    Raises:
        UserError: A value is not in the space.
    """
    found: dict[str, Scalar] = {}
    for name, value in params.items():
        known = values(space[name]) if name in space else ()
        equal = [each for each in known if each == value]
        if not equal:
            raise UserError(f"A search must suggest one of {list(known)} for `{name}`, but got {value!r}.")
        found[name] = equal[0]
    return found


class OptunaSampler:
    """One of Optuna's samplers with its defaults; a failed trial gets the state FAIL."""

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
        """Returns the sampler's suggestion."""
        self._trial = self._study.ask(self._space)
        params: Mapping[str, Scalar] = self._trial.params
        return params

    def tell(self, params: Mapping[str, Scalar], throughput: float | None) -> None:
        """Reports the result to the study."""
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
        UserError: There is no strategy of this name.
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
