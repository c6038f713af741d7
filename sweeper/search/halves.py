"""Finds which of several changes pay: each trial makes about half of them, and so tells of all.

Measured one at a time, every change has the noise of two trials. Where each is made in half of the trials,
and not made in the others, it has that of two means. The rows are Plackett's and Burman's
(10.1093/biomet/33.4.305); the next ones are their mirror image, which keeps what two changes do together
apart from what each does. What is clear after a stage is fixed, so that the others are seen beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sweeper.core.config import OPEN_SECTIONS, Scalar
from sweeper.core.record import SearchResult
from sweeper.core.samplers import AUTO
from sweeper.search.climb import Asked
from sweeper.spec import CategoricalParameter, SweepSpec

MIN_GAIN = math.log(1.02)
"""Changes that are expected to bring less are left out."""

ENOUGH = 0.75
"""Of a stage's trials: with fewer, changes cannot be told apart."""

STAGES = 3
FIRST_ROWS: Mapping[int, str] = {
    4: "--+",
    8: "---+-++",
    12: "--+---+++-+",
    16: "+++-++--+-+----",
    20: "--++----+-+-++++--+",
    24: "-----+-+--++--++-+-++++",
}
"""By number of trials: the first row, of which the others but one are rotations; in that all are made."""

NOISE, NOISE_FREEDOM = 0.08, 3
"""Standard deviation of the log of one trial's speed, as recorded on shared hosts, before a search has its
own; and for how many degrees of freedom it counts."""

USUAL_EFFECT = 0.5
"""Standard deviation of the log of what changes bring."""

LEVEL, CLEAR_LEVEL = 0.95, 0.99
"""Of an effect's interval; and of the one by which a change is fixed, since that is looked at often."""

Made = frozenset[str]
"""The names of the changes that a trial makes."""

Speeds = Mapping[Made, float | None]
"""By what was made: the log of samples per second, or None where that failed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The gain of a change in company of the others: the log of a ratio, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The interval's."""
        return self.high - self.low

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes that it brings nothing."""
        return self.low > 0


@dataclass(slots=True)
class Known:
    """The findings of the trials so far.

    Attributes:
        fixed: The changes that are made from now on, as they clearly pay.
        free: Those that are still open.
        effects: Of all that were in a stage with enough trials.
        missing: The next trials, the first first; empty once all stages are done.
    """

    free: list[str]
    fixed: list[str] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    missing: list[Made] = field(default_factory=list)

    def learn(self, found: Mapping[str, Effect], *, is_whole: bool) -> None:
        """Takes over the effects that a stage shows; while it is not whole, those that it shows better."""
        for name, each in found.items():
            before = self.effects.get(name)
            if before is None or is_whole or each.width < before.width:
                self.effects[name] = each

    def is_shown(self, name: str) -> bool:
        """Returns whether a change clearly pays."""
        return name in self.fixed or (name in self.effects and self.effects[name].is_shown)

    def best(self) -> list[str]:
        """Returns the changes that are expected to pay together."""
        return [*self.fixed, *(name for name in self.free if self._gain(name) >= MIN_GAIN)]

    def _gain(self, name: str) -> float:
        return self.effects[name].mean if name in self.effects else 0.0


def known(names: Sequence[str], speeds: Speeds) -> Known:
    """Returns what the trials so far tell of some changes, and which trials come next."""
    found = Known(free=list(names))
    for stage in range(STAGES):
        rows = [frozenset((*found.fixed, *row)) for row in _rows(found.free, stage)]
        missing = [row for row in rows if row not in speeds]
        found.learn(effects(found.free, found.fixed, speeds), is_whole=not missing)
        if missing:
            found.missing = missing
            return found
        clear = effects(found.free, found.fixed, speeds, CLEAR_LEVEL)
        found.fixed += [name for name in found.free if name in clear and clear[name].is_shown]
        found.free = [name for name in found.free if name not in found.fixed and not _is_idle(clear, name)]
        if not found.free:
            return found
    return found


def most_changes(num_trials: float) -> float:
    """Returns of how many changes so many trials can tell what each brings."""
    largest = max((size for size in FIRST_ROWS if ENOUGH * size <= num_trials), default=2)
    return largest - 1 if largest < max(FIRST_ROWS) else math.inf


def _is_idle(clear: Mapping[str, Effect], name: str) -> bool:
    """Returns whether a change is far from bringing anything: by half of a wide interval, it does not."""
    return name in clear and (clear[name].mean + clear[name].high) / 2 < MIN_GAIN


def _rows(names: Sequence[str], stage: int) -> Iterator[Made]:
    """Yields what the trials of a stage make, all of the changes first."""
    if len(names) < 2:
        yield from (Made(names), Made())
        return
    size = next((size for size in FIRST_ROWS if len(names) < size), max(FIRST_ROWS))
    first = FIRST_ROWS[size]
    rows = ["+" * len(first), *(first[turn:] + first[:turn] for turn in range(len(first)))]
    is_mirrored = stage % 2 == 1
    for row in rows:
        # More changes than columns share them; turned, they do so with others in each stage.
        columns = [row[(number + stage // 2) % len(row)] for number in range(len(names))]
        yield Made(name for name, each in zip(names, columns, strict=True) if (each == "+") != is_mirrored)


def effects(
    names: Collection[str], always: Collection[str], speeds: Speeds, level: float = LEVEL
) -> dict[str, Effect]:
    """Returns the effects of changes over all trials that make those that are made `always`.

    By least squares; where trials are too few to tell two changes apart, their intervals are as wide as
    `USUAL_EFFECT` allows. Changes that all trials make, or none, are left out.
    """
    from scipy.special import stdtrit

    among = {made: log for made, log in speeds.items() if log is not None and made.issuperset(always)}
    others = {name for made in among for name in made} - {*names, *always}
    # What has left the search is no longer made.
    rows = [(made, log) for made, log in among.items() if not made & others] or list(among.items())
    columns = [name for name in names if len({name in made for made, _ in rows}) == 2]
    if not columns:
        return {}
    matrix = np.array([[1.0, *(float(name in made) for name in columns)] for made, _ in rows])
    logs = np.array([log for _, log in rows])
    level_of_all = float(logs.mean())
    # Nothing is expected of the first column, the speed without any change.
    penalty = np.diag([0.0, *[(NOISE / USUAL_EFFECT) ** 2] * len(columns)])
    inverse = np.linalg.inv(matrix.T @ matrix + penalty)
    fitted = inverse @ matrix.T @ (logs - level_of_all)
    freedom = len(rows) - float(np.trace(inverse @ matrix.T @ matrix))
    rest = float(np.square(logs - level_of_all - matrix @ fitted).sum())
    variance = (rest + NOISE_FREEDOM * NOISE**2) / (freedom + NOISE_FREEDOM)
    spread = np.sqrt(variance * np.diag(inverse))
    times = float(stdtrit(freedom + NOISE_FREEDOM, 0.5 + level / 2))
    return {
        name: Effect(float(mean), float(mean - times * each), float(mean + times * each))
        for name, mean, each in zip(columns, fitted[1:], spread[1:], strict=True)
    }


# -- as a search -----------------------------------------------------------------------------------


class Halves:
    """Asks for the trials of a search whose parameters are changes: the script's own way, or another.

    A parameter with several other values takes part with its first one. Once the best is known, it is asked
    for with the others in its place.
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
        """Returns whether a search is one of changes alone."""
        return (spec.confirm.ladder and spec.search.sampler == AUTO) and all(
            isinstance(each, CategoricalParameter)
            and name != "batch_size"
            and name.partition(".")[0] not in OPEN_SECTIONS
            for name, each in spec.space.items()
        )

    def tell(self, result: SearchResult) -> None:
        """Records the result of a trial."""
        self._seen.add(self._spec.config(result.params).key())
        made = {name for name in self._names if result.params[name] != self._own[name]}
        if any(result.params[name] != self._others[name][0] for name in made):
            return
        speed = result.values[0] if result.values else 0.0
        is_good = speed > 0 and not any(each > 0 for each in result.constraints.values())
        self._speeds[Made(made)] = math.log(speed) if is_good else None

    def ask(self, taken: Container[str]) -> Asked | None:
        """Returns the next trial and why; None if there is none, or not before others have ended.

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
            return Asked(best, "what seems to pay, together")
        for name in found.best():
            for value in self._others[name][1:]:
                params = {**best, name: value}
                if self._spec.config(params).key() not in taken:
                    return Asked(params, f"what seems to pay, with {name} {value}")
        return None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to ask, and all have ended."""
        return self.ask(self._seen) is None

    def known(self) -> Known:
        """Returns what the trials so far tell."""
        return known(self._names, self._speeds)

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
    if found.fixed:
        return f"{', '.join(found.fixed)}, and half of what is still open"
    return "half of the changes"
