"""Compares the candidates of a confirmation with the baseline, and chooses the winner."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.drift import Drift
from sweeper.analysis.intervals import Variance, later
from sweeper.analysis.rounds import Round, log_ratios, usual_variance, versus
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.loaders import traits
from sweeper.race.tally import trimmed_mean

MIN_ROUNDS = 3
TIE = math.log(1.03)
"""Of two candidates that cannot be told apart, the simpler one wins if it is at most 3% slower."""
HARDLY = 0.35
"""Largest half-width of the rounds' interval that is negligible, as a share of the drift's: both together
are 6% wider than the drift alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A candidate compared with the baseline.

    Attributes:
        ratio: Geometric mean over rounds of its throughput over the baseline's of the same round.
        low: Lower end of the 95% interval for a later measurement, `high` the upper one.
        throughput: Geometric mean of its samples per second over rounds.
        rounds: Samples per second of each round.
        now_low: Lower end of the 95% interval for the same hour, `now_high` the upper one. None in results
            of earlier versions, whose `low` and `high` have this meaning.
        speed_low: Lower end of the 95% interval for a later throughput, `speed_high` the upper one.
    """

    number: int
    ratio: float
    low: float
    high: float
    throughput: float
    rounds: tuple[float, ...]
    now_low: float | None = None
    now_high: float | None = None
    speed_low: float | None = None
    speed_high: float | None = None

    @property
    def now(self) -> tuple[float, float]:
        """The interval for the same hour."""
        if self.now_low is None or self.now_high is None:
            return self.low, self.high
        return self.now_low, self.now_high

    @property
    def is_faster_now(self) -> bool:
        """Whether it was faster than the baseline while it was measured."""
        return self.now[0] > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The winner, and what it is tied with.

    Attributes:
        winner: None if nothing is faster than the baseline.
        tied: Other candidates that cannot be told apart from the fastest.
    """

    winner: int | None
    tied: tuple[int, ...] = ()


def ratios(
    rounds: Sequence[Round], baseline: int, drift: Drift | None = None, early: Sequence[Round] = ()
) -> list[Ratio]:
    """Returns each candidate's ratio to the baseline, best first, over the rounds with both.

    Args:
        drift: Drift of the machine until a later measurement; none by default.
        early: Earlier rounds, each at another time; with a drift, they count for the ratio only.
    """
    found = []
    for number in sorted({n for each in rounds for n in each} - {baseline}):
        logs = log_ratios(rounds, number, baseline)
        if not logs:
            continue
        mean, now_low, now_high = versus(rounds, number, baseline)
        low, high = now_low, now_high
        if drift:
            others = usual_variance(rounds, {number, baseline})
            of = drift.of(mean)
            mean, low, high = later(logs, of, others, log_ratios(early, number, baseline))
        shared = tuple(each[number] for each in rounds if number in each and baseline in each)
        of_speed = drift.speed if drift else Variance(0.0, 1)
        speed, speed_low, speed_high = later([math.log(each) for each in shared], of_speed)
        found.append(
            Ratio(
                number=number,
                ratio=math.exp(mean),
                low=math.exp(low),
                high=_exp(high),
                throughput=math.exp(speed),
                rounds=shared,
                now_low=math.exp(now_low),
                now_high=_exp(now_high),
                speed_low=math.exp(speed_low),
                speed_high=_exp(speed_high),
            )
        )
    return sorted(found, key=lambda r: -r.ratio)


def _exp(log: float) -> float:
    return math.exp(log) if math.isfinite(log) else math.inf


def contenders(rounds: Sequence[Round], baseline: int, among: Collection[int] | None = None) -> list[int]:
    """Returns the candidates that may still be the fastest, the fastest so far first.

    Args:
        among: Candidates to consider; all by default.
    """
    order = [each.number for each in ratios(rounds, baseline) if among is None or each.number in among]
    if not order:
        return []
    best = order[0]
    for other in order[1:]:
        # Means over different rounds may rank candidates differently than means over common rounds.
        if versus(rounds, other, best)[1] > 0:
            best = other
    return [best, *(n for n in order if n != best and versus(rounds, n, best)[2] >= 0)]


def is_enough(rounds: Sequence[Round], baseline: int, precision: float, drift: Drift | None = None) -> bool:
    """Returns whether more rounds would add nothing.

    That is so if the fastest has a narrow interval against the baseline and no other contender may be clearly
    faster, or if there are no contenders.

    Args:
        precision: Half-width that is narrow enough, as a share of the ratio; also the largest difference
            that is not worth another round.
        drift: Drift of the machine until a later measurement. An interval is also narrow enough if it hardly
            widens that of a later measurement.
    """
    among = contenders(rounds, baseline)
    if not among:
        return True
    best, *others = among
    if any(versus(rounds, other, best)[2] > math.log1p(precision) for other in others):
        return False
    mean, low, _ = versus(rounds, best, baseline)
    narrow = math.log1p(precision)
    if drift is not None:
        of = drift.of(mean)
        alone = Variance(2 * of.value, of.freedom).half_width()
        narrow = max(narrow, HARDLY * alone)
    return mean - low <= narrow


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
    baseline: int,
    configs: Mapping[int, TrialConfig],
    unfit: Collection[int] = (),
    *,
    by_changes: bool = False,
    drift: Drift | None = None,
    early: Sequence[Round] = (),
) -> Chosen:
    """Returns the winner: the simplest of those that cannot be told apart from the fastest.

    There is none if no interval lies above 1.

    Args:
        unfit: Candidates that must not win, whatever their speed.
        by_changes: Whether the simplest is the one with the fewest changes to the baseline, however
            much slower it seems.
        drift: As for `ratios`; `early` likewise.
    """
    among = ratios(rounds, baseline, drift, early)
    faster = [each.number for each in among if each.low > 1 and each.number not in unfit]
    tied = contenders(rounds, baseline, faster)
    if by_changes:
        base = configs[baseline].flatten()
        winner = min(tied, key=lambda number: len(changes(configs[number], base)), default=None)
        return Chosen(winner=winner, tied=tuple(n for n in tied if n != winner))
    near = [n for n in tied if n == tied[0] or trimmed_mean(log_ratios(rounds, n, tied[0])) >= -TIE]
    winner = min(near, key=lambda number: simplicity(configs[number]), default=None)
    return Chosen(winner=winner, tied=tuple(n for n in tied if n != winner))
