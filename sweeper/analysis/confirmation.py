"""Computes the statistics of the confirmation rounds: log ratios, t intervals and the rule for ties."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.loaders import traits

MIN_ROUNDS = 3
LEVEL = 0.95
PRIOR_ROUNDS, ALIKE_LEVEL = 2, 0.1
"""Number of rounds that the spread of the other pairs is worth, unless an F test at this level tells the
spreads apart. On recorded noise, this makes an interval of three rounds a quarter narrower, and wrong no more
often."""
TIE = math.log(1.03)
"""Of two candidates that cannot be told apart, the simpler one wins if it is at most 3% slower."""
TINY = 1e-18
"""Variance for speeds that are all equal, since it must be above 0."""
HARDLY = 0.35
"""Largest half-width of the rounds' interval that hardly matters, as a share of the drift's: both together
are 6% wider than the drift alone."""
ROBUST_ROUNDS, TRIM = 8, 0.2
"""Number of rounds from which means are trimmed, and the share that is trimmed at either end: a disturbed
round does not decide."""
EARLY_NOISE = 0.09**2
"""Least variance of the log ratio of two single processes: on shared hosts, a neighbour slows one by a third
now and then, which consecutive rounds may not show."""
APART = 2.0
"""Ratio of two speeds from which the configurations drift apart the most."""

Round = Mapping[int, float]
"""Throughput by trial number: one fresh process each, in random order, baseline included."""


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance.

    Attributes:
        freedom: Its degrees of freedom.
    """

    value: float
    freedom: float

    def is_like(self, other: Variance) -> bool:
        """Returns whether both may be estimates of the same variance (F test)."""
        from scipy.special import fdtri

        more, less = sorted((self, other), key=lambda each: -each.value)
        most = float(fdtri(more.freedom, less.freedom, 1 - ALIKE_LEVEL / 2))
        return more.value <= most * less.value


VarianceOf = Callable[[Sequence[float]], Variance]
"""Returns the variance of logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The drift of a machine between two measurements.

    Attributes:
        ratio: Variance of the log of a ratio of `APART` or more.
        speed: Variance of the log of a speed.
    """

    ratio: Variance
    speed: Variance

    def of(self, ratio: float) -> Variance:
        """Returns the variance of a ratio of two trials, given as its log."""
        return Variance(share(ratio) ** 2 * self.ratio.value, self.ratio.freedom)


def share(ratio: float) -> float:
    """Returns the share of the largest drift that a ratio, given as its log, may have.

    Two configurations drift apart by what they do differently: much if one is twice as fast, next to
    nothing if they are equally fast.
    """
    return min(1.0, abs(ratio) / math.log(APART))


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


def interval(
    logs: Sequence[float], level: float = LEVEL, others: Variance | None = None
) -> tuple[float, float, float]:
    """Returns mean, low and high of the t interval of `logs` (95%); infinite for fewer than two.

    From `ROBUST_ROUNDS` on, they are trimmed (Yuen 1974, 10.1093/biomet/61.1.165).

    Args:
        others: The variance of similar differences. It also counts, unless an F test tells it apart.
    """
    mean, count = mean_of(logs), len(logs)
    if count < 2:
        return mean, -math.inf, math.inf
    own = _spread(logs, others)
    return _around(mean, Variance(own.value / count, own.freedom), level)


def mean_of(logs: Sequence[float]) -> float:
    """Returns the mean, trimmed from `ROBUST_ROUNDS` on."""
    cut = _num_trimmed(logs)
    return statistics.fmean(sorted(logs)[cut : len(logs) - cut])


def _num_trimmed(logs: Sequence[float]) -> int:
    """Returns how many logs are trimmed at either end."""
    return int(TRIM * len(logs)) if len(logs) >= ROBUST_ROUNDS else 0


def variance_of(logs: Sequence[float]) -> Variance:
    """Returns the variance of at least two logs; divided by their number, it is the variance of `mean_of`."""
    count, cut = len(logs), _num_trimmed(logs)
    kept, order = count - 2 * cut, sorted(logs)
    drawn_in = [min(max(each, order[cut]), order[count - cut - 1]) for each in logs]
    scale = count * (count - 1) / (kept * (kept - 1))
    return Variance(scale * statistics.variance(drawn_in), kept - 1)


def _plain_variance(logs: Sequence[float]) -> Variance:
    return Variance(statistics.variance(logs), len(logs) - 1)


def _spread(logs: Sequence[float], others: Variance | None, of: VarianceOf = variance_of) -> Variance:
    """Returns the variance of at least two logs, combined with `others` if the two are alike."""
    own = of(logs)
    if others is None or not own.is_like(others):
        return own
    freedom = own.freedom + PRIOR_ROUNDS
    return Variance((own.freedom * own.value + PRIOR_ROUNDS * others.value) / freedom, freedom)


def _around(mean: float, of: Variance, level: float = LEVEL) -> tuple[float, float, float]:
    from scipy.special import stdtrit

    half = float(stdtrit(of.freedom, 0.5 + level / 2)) * math.sqrt(of.value)
    return mean, mean - half, mean + half


def later(
    logs: Sequence[float], drift: Variance, others: Variance | None = None, early: Sequence[float] = ()
) -> tuple[float, float, float]:
    """Returns mean, low and high of the mean that as many later rounds will show (95%).

    Args:
        logs: Log ratios or log speeds of consecutive rounds.
        drift: Variance between measurements.
        others: As for `interval`.
        early: Logs of earlier rounds, each at another time: each weighs more than a consecutive round.
    """
    count = len(logs)
    if count < 2:
        return statistics.fmean(logs), -math.inf, math.inf
    own = _spread(logs, others)
    alone = max(own.value, EARLY_NOISE)
    blocks = [*((each, alone) for each in early), (mean_of(logs), own.value / count)]
    variances = [max(drift.value + noise, TINY) for _, noise in blocks]
    weights = [1 / each / math.fsum(1 / other for other in variances) for each in variances]
    mean = math.fsum(weight * log for weight, (log, _) in zip(weights, blocks, strict=True))
    squared = [weight**2 for weight in weights]
    noise = math.fsum(each * noise for each, (_, noise) in zip(squared, blocks, strict=True))
    # Noise and drift of both the present and the later mean; the freedom is Satterthwaite's.
    parts = [
        Variance(noise + own.value / count, own.freedom),
        Variance((math.fsum(squared) + 1) * drift.value, drift.freedom),
    ]
    total = sum(each.value for each in parts)
    squares = sum(each.value**2 / each.freedom for each in parts)
    return _around(mean, Variance(total, total**2 / squares if squares else parts[0].freedom))


def one_more(rounds: Sequence[Round], number: int, to: int, level: float = LEVEL) -> float:
    """Returns how far the log ratio of one later process of each may be from the mean of later rounds.

    The mean is of as many later rounds as `rounds` has. Infinite for fewer than two rounds with both.
    """
    logs = log_ratios(rounds, number, to)
    if len(logs) < 2:
        return math.inf
    # It may be disturbed as any round is, so nothing is trimmed.
    own = _spread(logs, _usual_variance(rounds, {number, to}, _plain_variance), _plain_variance)
    _, low, _ = _around(0.0, Variance((1 - 1 / len(logs)) * own.value, own.freedom), level)
    return -low


def log_ratios(rounds: Sequence[Round], number: int, to: int) -> list[float]:
    """Returns the log of one trial's throughput over another's, for each round with both."""
    return [math.log(each[number] / each[to]) for each in rounds if number in each and to in each]


def versus(rounds: Sequence[Round], number: int, to: int) -> tuple[float, float, float]:
    """Returns the log of one trial's throughput over another's, with the ends of its interval (95%).

    A few rounds say little about their spread, so that of the other pairs in the same rounds counts too.
    All three are infinite if no round has both.
    """
    logs = log_ratios(rounds, number, to)
    if not logs:
        return -math.inf, -math.inf, math.inf
    return interval(logs, others=_usual_variance(rounds, {number, to}))


def _usual_variance(
    rounds: Sequence[Round], apart: Collection[int], of: VarianceOf = variance_of
) -> Variance | None:
    """Returns the pooled variance of the other pairs' log ratios over the rounds; None without other pairs.

    Args:
        apart: The pair to leave out.
    """
    pairs = itertools.combinations(sorted({number for each in rounds for number in each}), 2)
    found = [log_ratios(rounds, *pair) for pair in pairs if set(pair) != set(apart)]
    spreads = [of(logs) for logs in found if len(logs) > 1]
    freedom = sum(each.freedom for each in spreads)
    if not freedom:
        return None
    return Variance(sum(each.freedom * each.value for each in spreads) / freedom, freedom)


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
            others = _usual_variance(rounds, {number, baseline})
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
        # Means of other rounds may be in another order than those of common ones.
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
        _, least, _ = _around(mean, Variance(2 * of.value, of.freedom))
        narrow = max(narrow, HARDLY * (mean - least))
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
    """Returns the values in which a configuration differs from the baseline's."""
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
        drift: As for `ratios`; so is `early`.
    """
    among = ratios(rounds, baseline, drift, early)
    faster = [each.number for each in among if each.low > 1 and each.number not in unfit]
    tied = contenders(rounds, baseline, faster)
    if by_changes:
        base = configs[baseline].flatten()
        winner = min(tied, key=lambda number: len(changes(configs[number], base)), default=None)
        return Chosen(winner=winner, tied=tuple(n for n in tied if n != winner))
    near = [n for n in tied if n == tied[0] or mean_of(log_ratios(rounds, n, tied[0])) >= -TIE]
    winner = min(near, key=lambda number: simplicity(configs[number]), default=None)
    return Chosen(winner=winner, tied=tuple(n for n in tied if n != winner))
