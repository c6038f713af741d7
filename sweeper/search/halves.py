"""Finds which of several changes pay off: each trial makes about half of them, so all trials count for each.

The first trials answer even if there is time for no more: one makes the exact changes, the next one adds
those that are close, and the compiler, which takes longest, comes last.

If changes are measured one at a time, each effect has the noise of two trials. If each change is made in half
of the trials, its effect has the noise of two means. The rows of a stage are those of Plackett and Burman
(10.1093/biomet/33.4.305). The next stage has their mirror image, which separates the effect of two changes
together from the effect of each. A change that clearly pays off after a stage is fixed, so that the others
are measured with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sweeper.core.config import OPEN_SECTIONS, Scalar
from sweeper.core.record import SearchResult
from sweeper.core.samplers import AUTO
from sweeper.interventions import is_exact, takes_long
from sweeper.race.quantiles import t_quantile
from sweeper.search.climb import Asked
from sweeper.spec import CategoricalParameter, SweepSpec

MIN_GAIN = math.log(1.02)
"""Log of the smallest expected gain for which a change is kept."""

ENOUGH = 0.75
"""Smallest share of a stage's trials that is enough to tell the changes apart."""

FIRST_TRIALS, STAGES = -1, 3
FIRST_ROWS: Mapping[int, str] = {
    4: "--+",
    8: "---+-++",
    12: "--+---+++-+",
    16: "+++-++--+-+----",
    20: "--++----+-+-++++--+",
    24: "-----+-+--++--++-+-++++",
}
"""First row by number of trials. The others are its rotations, and one row in which all changes are made."""

NOISE, NOISE_FREEDOM = 0.08, 3
"""Standard deviation of the log of one trial's speed, as recorded on shared hosts, and the degrees of freedom
that this prior counts for."""

USUAL_EFFECT = 0.5
"""Prior standard deviation of a change's effect on the log of the speed."""

LEVEL, CLEAR_LEVEL = 0.95, 0.99
"""Level of an effect's interval, and the higher one by which a change is fixed, as it is checked often."""

Made = frozenset[str]
"""The names of the changes that a trial makes."""

Speeds = Mapping[Made, float | None]
"""Log of samples per second by the changes made; None if they failed or broke a limit."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The gain of a change among the others: the log of a ratio, with the ends of its interval."""

    mean: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.high - self.low

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


@dataclass(slots=True)
class Known:
    """The findings of the trials so far.

    Attributes:
        fixed: The changes that clearly pay off, and are made from now on.
        free: The changes that are still open.
        effects: The effects found so far, by change.
        groups: The open changes, grouped into those that no trial tells apart.
        missing: The next trials, in order; empty once all stages are done.
    """

    free: list[str]
    fixed: list[str] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    missing: list[Made] = field(default_factory=list)

    def learn(self, found: Mapping[str, Effect], *, is_whole: bool) -> None:
        """Adopts a stage's effects; while the stage is incomplete, only new ones and narrower ones."""
        for name, each in found.items():
            before = self.effects.get(name)
            if before is None or is_whole or each.width < before.width:
                self.effects[name] = each

    def is_shown(self, name: str) -> bool:
        """Returns whether a change clearly pays off."""
        return name in self.fixed or (name in self.effects and self.effects[name].is_shown)

    def best(self) -> list[str]:
        """Returns the changes that are expected to pay off together."""
        groups = self.groups or [(name,) for name in self.free]
        paying = {name for group in groups if self.gain(group) >= MIN_GAIN for name in group}
        return [*self.fixed, *(name for name in self.free if name in paying)]

    def gain(self, names: Collection[str]) -> float:
        """Returns the expected gain of some changes together."""
        return sum(self.effects[name].mean for name in names if name in self.effects)


def known(names: Sequence[str], speeds: Speeds) -> Known:
    """Returns the findings of the trials so far about the changes `names`, and the next trials."""
    found = Known(free=list(names))
    for stage in (FIRST_TRIALS, *range(STAGES)):
        rows = [frozenset((*found.fixed, *row)) for row in _rows(found.free, stage)]
        missing = [row for row in rows if row not in speeds]
        found.learn(effects(found.free, found.fixed, speeds), is_whole=not missing)
        found.groups = together(found.free, speeds)
        if missing:
            # Where several trials run at once, the next stage's do not wait for the opening's.
            more = [Made(row) for row in _rows(found.free, 0)] if stage == FIRST_TRIALS else []
            found.missing = list(dict.fromkeys([*missing, *(row for row in more if row not in speeds)]))
            return found
        clear = effects(found.free, found.fixed, speeds, CLEAR_LEVEL)
        found.fixed += [name for name in found.free if name in clear and clear[name].is_shown]
        found.free = [name for name in found.free if name not in found.fixed and not _is_idle(clear, name)]
        if not found.free:
            return found
    return found


def most_changes(num_trials: float) -> float:
    """Returns the largest number of changes whose effects `num_trials` trials can tell apart."""
    largest = max((size for size in FIRST_ROWS if ENOUGH * size <= num_trials), default=2)
    return largest - 1 if largest < max(FIRST_ROWS) else math.inf


def num_trials(num_changes: int) -> int:
    """Returns the smallest number of trials that tell the effects of so many changes apart."""
    sizes = (size for size in FIRST_ROWS if num_changes < size)
    return math.ceil(ENOUGH * next(sizes, max(FIRST_ROWS)))


def _is_idle(clear: Mapping[str, Effect], name: str) -> bool:
    """Returns whether a change brings too little even halfway from its mean to its interval's upper end."""
    return name in clear and (clear[name].mean + clear[name].high) / 2 < MIN_GAIN


def _rows(names: Sequence[str], stage: int) -> Iterator[Made]:
    """Yields the changes that each trial of a stage makes: first all of them, or none if it is mirrored."""
    if stage == FIRST_TRIALS:
        exact = [name for name in names if is_exact(name)]
        steps = (exact, [name for name in names if not takes_long(name)], names)
        yield from dict.fromkeys(Made(step) for step in steps if step)
        return
    if len(names) < 2:
        yield from (Made(names), Made())
        return
    size = next((size for size in FIRST_ROWS if len(names) < size), max(FIRST_ROWS))
    first = FIRST_ROWS[size]
    rows = ["+" * len(first), *(first[turn:] + first[:turn] for turn in range(len(first)))]
    is_mirrored = stage % 2 == 1
    for row in rows:
        # If there are more changes than columns, some share one; the third stage turns the columns.
        columns = [row[(number + stage // 2) % len(row)] for number in range(len(names))]
        yield Made(name for name, each in zip(names, columns, strict=True) if (each == "+") != is_mirrored)


def effects(
    names: Collection[str], always: Collection[str], speeds: Speeds, level: float = LEVEL
) -> dict[str, Effect]:
    """Returns the effects of the changes `names` over all trials that make every change in `always`.

    If trials are too few to tell two changes apart, their intervals are as wide as `USUAL_EFFECT` allows.
    Changes that all trials make, or none, are left out.
    """
    fit = _fitted(names, always, speeds)
    if fit is None:
        return {}
    times = fit.times(0.5 + level / 2)
    spread = np.sqrt(np.diag(fit.covariance))
    return {
        name: Effect(float(mean), float(mean - times * each), float(mean + times * each))
        for name, mean, each in zip(fit.names, fit.means, spread, strict=True)
    }


def largest_gain(
    names: Collection[str], speeds: Speeds, without: Collection[Made] = (), level: float = LEVEL
) -> float:
    """Returns the log of the gain that no measured set of changes exceeds, by one-sided intervals.

    It is infinite if nothing was measured.

    Args:
        without: Sets that do not count.
    """
    fit = _fitted(names, (), speeds)
    if fit is None:
        return math.inf
    times, upper = fit.times(level), -math.inf
    for made in (made for made, log in speeds.items() if made and made not in without and log is not None):
        row = np.array([float(name in made) for name in fit.names])
        upper = max(upper, float(row @ fit.means + times * math.sqrt(row @ fit.covariance @ row)))
    return upper


def together(names: Collection[str], speeds: Speeds) -> list[tuple[str, ...]]:
    """Returns the changes, grouped into those that no measured trial tells apart."""
    groups: dict[Made, list[str]] = {}
    measured = {made: index for index, (made, log) in enumerate(speeds.items()) if log is not None}
    for name in names:
        trials = Made(str(index) for made, index in measured.items() if name in made)
        groups.setdefault(trials, []).append(name)
    return [tuple(group) for group in groups.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Effects of changes on the log of the speed, by least squares.

    Attributes:
        means: Effects in the order of `names`, shape (names,).
        covariance: Their covariance, shape (names, names).
        freedom: Degrees of freedom of the variance.
    """

    names: Sequence[str]
    means: Any
    covariance: Any
    freedom: float

    def times(self, level: float) -> float:
        """Returns the standard errors from a mean to the one-sided limit of this level."""
        return t_quantile(level, self.freedom)


def _fitted(names: Collection[str], always: Collection[str], speeds: Speeds) -> _Fit | None:
    among = {made: log for made, log in speeds.items() if log is not None and made.issuperset(always)}
    others = {name for made in among for name in made} - {*names, *always}
    # Changes that have left the search are no longer made, so trials with them are left out if possible.
    rows = [(made, log) for made, log in among.items() if not made & others] or list(among.items())
    columns = [name for name in names if len({name in made for made, _ in rows}) == 2]
    if not columns:
        return None
    matrix = np.array([[1.0, *(float(name in made) for name in columns)] for made, _ in rows])
    logs = np.array([log for _, log in rows])
    level_of_all = float(logs.mean())
    # The first column, the speed without any change, has no prior.
    penalty = np.diag([0.0, *[(NOISE / USUAL_EFFECT) ** 2] * len(columns)])
    inverse = np.linalg.inv(matrix.T @ matrix + penalty)
    fitted = inverse @ matrix.T @ (logs - level_of_all)
    freedom = len(rows) - float(np.trace(inverse @ matrix.T @ matrix))
    rest = float(np.square(logs - level_of_all - matrix @ fitted).sum())
    variance = (rest + NOISE_FREEDOM * NOISE**2) / (freedom + NOISE_FREEDOM)
    return _Fit(
        names=columns,
        means=fitted[1:],
        covariance=(variance * inverse)[1:, 1:],
        freedom=freedom + NOISE_FREEDOM,
    )


# -- as a search -----------------------------------------------------------------------------------


class Halves:
    """Asks for the trials of a search in which each parameter is a change from the script's own value.

    If a parameter has several other values, the first one takes part. Once the best changes are known, they
    are asked for with each of the remaining values instead.
    """

    def __init__(self, spec: SweepSpec) -> None:
        own = spec.baseline_config().flatten()
        self._spec = spec
        self._own = {name: own.get(name) for name in spec.space}
        self._others: dict[str, list[Scalar]] = {}
        for name, parameter in spec.space.items():
            assert isinstance(parameter, CategoricalParameter)
            self._others[name] = [each for each in parameter.choices if each != own.get(name)]
        self._names = [name for name, others in self._others.items() if others]
        self._speeds: dict[Made, float | None] = {}
        self._seen: set[str] = set()

    @staticmethod
    def suits(spec: SweepSpec) -> bool:
        """Returns whether a tune has changes only: no ranges, batch sizes, `model.*` or `data.*`."""
        return (spec.traits.is_of_changes and spec.search.sampler == AUTO) and all(
            isinstance(each, CategoricalParameter)
            and name != "batch_size"
            and name.partition(".")[0] not in OPEN_SECTIONS
            for name, each in spec.space.items()
        )

    def tell(self, result: SearchResult) -> None:
        """Records the result of a trial."""
        self._seen.add(self._spec.config(result.params).key())
        made = self._made(result.params)
        if any(result.params[name] != self._others[name][0] for name in made):
            return
        speed = result.values[0] if result.values else 0.0
        is_good = speed > 0 and not any(each > 0 for each in result.constraints.values())
        self._speeds[made] = math.log(speed) if is_good else None

    def ask(self, taken: Container[str]) -> Asked | None:
        """Returns the next trial and why; None if none is left, or the next one depends on running trials.

        Args:
            taken: Keys of the configurations asked for already.
        """
        found = self.known()
        for made in found.missing:
            params = self.params(made)
            if self._spec.config(params).key() not in taken:
                return Asked(params, _why(made, found, self._names))
        if found.missing:
            return None
        best = self.params(found.best())
        if self._spec.config(best).key() not in taken:
            return Asked(best, "the changes that seem to pay off, combined")
        for name in found.best():
            for value in self._others[name][1:]:
                params = {**best, name: value}
                if self._spec.config(params).key() not in taken:
                    return Asked(params, f"the changes that seem to pay off, with {name} {value}")
        return None

    @property
    def is_done(self) -> bool:
        """Whether no trial is left to ask for, and all have ended."""
        return self.ask(self._seen) is None

    def known(self) -> Known:
        """Returns the findings of the trials so far."""
        return known(self._names, self._speeds)

    def largest_gain(self, without: Collection[Mapping[str, Scalar]]) -> float:
        """Returns the log of the gain that no measured set exceeds (`largest_gain`), without some."""
        return largest_gain(self._names, self._speeds, [self._made(params) for params in without])

    def _made(self, params: Mapping[str, Scalar]) -> Made:
        return Made(name for name in self._names if params[name] != self._own[name])

    def together(self) -> list[tuple[str, ...]]:
        """Returns the changes, grouped into those that no measured trial tells apart."""
        return together(self._names, self._speeds)

    def untried(self) -> list[str]:
        """Returns the changes that no measured trial makes."""
        tried = {name for made, log in self._speeds.items() if log is not None for name in made}
        return [name for name in self._names if name not in tried]

    def params(self, made: Collection[str]) -> dict[str, Scalar]:
        """Returns the parameters of a trial that makes some changes."""
        return {name: self._others[name][0] if name in made else own for name, own in self._own.items()}


def halves_of(spec: SweepSpec, results: Iterable[SearchResult]) -> Halves:
    """Returns the search of a specification, with the results so far."""
    halves = Halves(spec)
    for each in results:
        halves.tell(each)
    return halves


def _why(made: Made, found: Known, names: Sequence[str]) -> str:
    if made == Made(names):
        return "all changes together"
    if made == {name for name in names if is_exact(name)}:
        return "the exact changes together"
    if made == {name for name in names if not takes_long(name)}:
        return "all changes but the compiler"
    if found.fixed:
        return f"{', '.join(found.fixed)}, and half of the changes still open"
    return "half of the changes"
