"""Compares the candidates of a confirmation with the baseline, and chooses the winner."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.loaders import traits
from sweeper.race.drift import Drift, later_mean
from sweeper.race.log import BASELINE, Round
from sweeper.race.policy import keeps_failing
from sweeper.race.tally import LAST_LEVEL, LEVEL, Tally, Variance, contenders

TIE = math.log(1.03)
"""Of two candidates that cannot be told apart, the simpler one wins if it is at most 3% slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A candidate compared with the baseline.

    Attributes:
        ratio: Geometric mean over rounds of its throughput over the baseline's of the same round.
        low: Lower end of the 95% interval for a later measurement, `high` the upper one.
        throughput: Geometric mean of its samples per second over rounds.
        rounds: Samples per second of each round.
        sitting_low: Lower end of the 95% interval for the same hour, `sitting_high` the upper one. None in
            results of version 0.1, whose `low` and `high` have this meaning.
        throughput_low: Lower end of the 95% interval for a later throughput, `throughput_high` the upper one.
    """

    trial: int
    ratio: float
    low: float
    high: float
    throughput: float
    rounds: tuple[float, ...]
    sitting_low: float | None = None
    sitting_high: float | None = None
    throughput_low: float | None = None
    throughput_high: float | None = None

    @property
    def now(self) -> tuple[float, float]:
        """The interval for the same hour."""
        if self.sitting_low is None or self.sitting_high is None:
            return self.low, self.high
        return self.sitting_low, self.sitting_high

    @property
    def has_interval(self) -> bool:
        """Whether it has an interval; earlier versions gave none to a single round."""
        return bool(self.high) and math.isfinite(self.high)

    @property
    def is_faster_now(self) -> bool:
        """Whether it was faster than the baseline while it was measured."""
        return self.now[0] > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerChoice:
    """The winner, and what it is tied with.

    Attributes:
        winner: None if nothing is faster than the baseline.
        ties: Other candidates that cannot be told apart from the fastest.
    """

    winner: int | None
    ties: tuple[int, ...] = ()


def ratios(rounds: Sequence[Round], drift: Drift | None = None, early: Sequence[Round] = ()) -> list[Ratio]:
    """Returns each candidate's ratio to the baseline, best first, over the rounds with both.

    Args:
        drift: Drift of the machine until a later measurement; none by default.
        early: Earlier rounds of the sweep, far apart in time; used only if `drift` is given, for the ratio.
    """
    candidates = sorted({number for one in rounds for number in one.lives} - {BASELINE})
    arm_ratios = [
        ratio for number in candidates if (ratio := _ratio(rounds, number, drift, early)) is not None
    ]
    return sorted(arm_ratios, key=lambda ratio: -ratio.ratio)


def _ratio(rounds: Sequence[Round], number: int, drift: Drift | None, early: Sequence[Round]) -> Ratio | None:
    tally = Tally.of(rounds, number)
    if not tally.logs:
        return None
    unknown = (-math.inf, math.inf)
    sitting_low, sitting_high = tally.interval() if tally.carries_interval else unknown
    mean, low, high = tally.mean, sitting_low, sitting_high
    if drift:
        mean, *ends = later_mean(tally, drift.variance_of(mean), Tally.of(early, number).logs)
        low, high = ends if tally.carries_interval else unknown
    shared = tuple(one.speeds[number] for one in rounds if {number, BASELINE} <= one.speeds.keys())
    of_speed = drift.speed if drift else Variance(0.0, 1)
    speed, throughput_low, throughput_high = later_mean(
        Tally([math.log(throughput) for throughput in shared], is_in_turns=False), of_speed
    )
    return Ratio(
        trial=number,
        ratio=math.exp(mean),
        low=math.exp(low),
        high=math.exp(high),
        throughput=math.exp(speed),
        rounds=shared,
        sitting_low=math.exp(sitting_low),
        sitting_high=math.exp(sitting_high),
        throughput_low=math.exp(throughput_low),
        throughput_high=math.exp(throughput_high),
    )


def simplicity(config: TrialConfig) -> tuple[object, ...]:
    """Returns a sort key that puts the simpler of two tied configurations first.

    Simpler means fewer moving parts: nothing compiled, fewer processes, plainer arithmetic.
    """
    return (
        config.compile.mode != "eager",
        config.loader.num_workers,
        not traits(config.loader.kind).is_resident,
        config.loader.pin_memory,
        config.precision.amp != "fp32",
        config.precision.tf32 is True,
        config.accumulate_steps,
        config.batch_size,
    )


def changes(config: TrialConfig, baseline: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Returns the values in which a configuration differs from the baseline."""
    return {name: value for name, value in config.flatten().items() if value != baseline.get(name)}


def choose_winner(
    rounds: Sequence[Round],
    configs: Mapping[int, TrialConfig],
    unfit: Collection[int] = (),
    *,
    by_changes: bool = False,
    drift: Drift | None = None,
    early: Sequence[Round] = (),
    before: Sequence[Round] = (),
) -> WinnerChoice:
    """Returns the winner: the simplest of those that cannot be told apart from the fastest.

    There is none if no interval lies above 1.

    Args:
        unfit: Candidates that must not win, whatever their speed.
        by_changes: Whether the simplest is the one with the fewest changes to the baseline, however
            much slower it seems.
        drift: As for `ratios`; `early` likewise.
        before: Rounds of the race before this one. With `by_changes`, they count where candidates are
            compared with each other: what that race has shown to pay is not left out again.
    """
    arm_ratios = [ratio for ratio in ratios(rounds, drift, early) if not keeps_failing(rounds, ratio.trial)]
    faster = [ratio.trial for ratio in arm_ratios if ratio.low > 1]
    rounds, level = ([*before, *rounds], LEVEL) if by_changes else (rounds, LAST_LEVEL)
    tied = contenders(rounds, [number for number in faster if number not in unfit], level)
    if by_changes:
        base = configs[BASELINE].flatten()
        winner = min(tied, key=lambda number: len(changes(configs[number], base)), default=None)
        return WinnerChoice(winner=winner, ties=tuple(n for n in tied if n != winner))
    near = [n for n in tied if n == tied[0] or Tally.of(rounds, n, tied[0]).mean >= -TIE]
    winner = min(near, key=lambda number: simplicity(configs[number]), default=None)
    return WinnerChoice(winner=winner, ties=tuple(n for n in tied if n != winner))
