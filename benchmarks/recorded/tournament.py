"""Scores searches over recorded surfaces: which finds a good configuration soonest?"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from sweeper.errors import UserError

from .strategies import STRATEGIES, Problem, Step, Strategy, strategy_of
from .surfaces import read

NEAR = 0.95
"""Share of the best that counts as found."""

BUDGET = 0.05
"""Share of the grid's seconds after which `Score.share` is fixed."""

FINALISTS, ROUNDS = 3, 8
"""Number of seemingly fastest configurations to confirm, and of rounds over which their means decide."""

BEGIN, END = "<!-- tournament -->", "<!-- end of tournament -->"
"""Marks around the table in a page."""


@dataclass
class Score:
    """The progress of a search.

    Attributes:
        seconds: Time that its trials took so far.
        near_s: Time after which the configuration that would be confirmed is near the best; infinite
            until then.
        share: Throughput of the best finalist within `BUDGET`, as a share of the best.
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
        """Adds a trial."""
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
        """Whether further trials cannot change the score."""
        spent = self.seconds / self.problem.grid_seconds
        return spent > 1 or (spent > BUDGET and not math.isinf(self.near_s))


def score(strategy: Strategy, problem: Problem, seed: int) -> Score:
    """Returns the score of one search."""
    found = Score(problem, seed)
    for step in strategy(problem, seed):
        found.add(step)
        if found.is_over:
            break
    return found


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A median over seeds, with a bootstrap interval of 95%."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Figure:
        """Returns the median of values with its interval."""
        draw = random.Random(seed)
        medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
        return cls(statistics.median(values), medians[50], medians[1949])


Scores = Mapping[str, Mapping[str, Sequence[Score]]]
"""Scores by the names of the strategy and the surface, one for each seed."""


def table(scores: Scores) -> str:
    """Returns the results as a table in Markdown, the fastest strategy first."""
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
    """Returns each search's seconds until it is near the best; those of the whole grid if it never is."""
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
    """Returns a page with a new table between its marks.

    Raises:
        UserError: The page has no marks.
    """
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not marks.search(page):
        raise UserError(f"The page must have {BEGIN} and {END} around its table, but it does not.")
    return marks.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page)


def labelled(files: Sequence[Path]) -> dict[str, Problem]:
    """Returns the surfaces by name; a repeated name is prefixed with its device's folder."""
    problems = [Problem(read(path)) for path in files]
    names = [each.name for each in problems]
    labels = [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(files, names, strict=True)
    ]
    return dict(zip(labels, problems, strict=True))


def _processes() -> ProcessPoolExecutor:
    # Not forked: the progress bar has a thread.
    return ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"), initializer=_use_one_thread
    )


def _use_one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


def _score_of(asked: tuple[str, Path, int]) -> Score:
    name, path, seed = asked
    return score(_strategy(name), _problem(path), seed)


@cache
def _strategy(name: str) -> Strategy:
    return strategy_of(name)


@cache
def _problem(path: Path) -> Problem:
    return Problem(read(path))


def main(
    files: Annotated[list[Path], typer.Argument(help="Recorded surfaces.")],
    strategies: Annotated[
        list[str], typer.Option("--with", help="Strategies; each takes a few minutes per surface.")
    ] = list(STRATEGIES),  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Searches of each strategy on each surface.")] = 20,
    into: Annotated[Path | None, typer.Option(help="A page whose table is replaced.")] = None,
) -> None:
    """Replays searches over recorded surfaces, and prints who is near the best soonest."""
    try:
        for name in strategies:
            strategy_of(name)
        paths = dict(zip(labelled(files), files, strict=True))
        asked = list(itertools.product(strategies, paths, range(seeds)))
        scores: dict[str, dict[str, list[Score]]] = {
            name: {each: [] for each in paths} for name in strategies
        }
        with _processes() as processes:
            found = processes.map(_score_of, [(name, paths[on], seed) for name, on, seed in asked])
            every = zip(asked, found, strict=True)
            for (name, on, _), each in track(every, "Replaying", len(asked), transient=True):
                scores[name][on].append(each)
        made = table(scores)
        if into is not None:
            into.write_text(written_into(into.read_text(encoding="utf-8"), made), encoding="utf-8")
    except UserError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(made)
