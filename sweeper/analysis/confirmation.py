"""What the rounds of confirmation say: one log ratio a round, a t interval over rounds, a tie rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import TrialConfig

MIN_ROUNDS = 3
LEVEL = 0.95

Round = Mapping[int, float]
"""Throughput by trial number: one fresh process each, in random order, the baseline among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A candidate against the baseline.

    Attributes:
        ratio: Geometric mean over rounds of its throughput over the baseline's of the same round.
        low: Lower end of the 95 % interval, `high` the upper one; a t interval over rounds.
        throughput: Mean samples per second over rounds.
        rounds: Samples per second of each round.
    """

    number: int
    ratio: float
    low: float
    high: float
    throughput: float
    rounds: tuple[float, ...]


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """Returns mean, low and high of the 95 % t interval of `logs`; infinite for fewer than two."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return mean, -math.inf, math.inf
    from scipy.special import stdtrit

    half = float(stdtrit(len(logs) - 1, 0.5 + LEVEL / 2)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return mean, mean - half, mean + half


def ratios(rounds: Sequence[Round], baseline: int) -> list[Ratio]:
    """Returns each candidate's ratio to the baseline, best first, over the rounds both took part in."""
    found = []
    for number in sorted({n for each in rounds for n in each} - {baseline}):
        shared = [each for each in rounds if number in each and baseline in each]
        if not shared:
            continue
        mean, low, high = interval([math.log(each[number] / each[baseline]) for each in shared])
        found.append(
            Ratio(
                number=number,
                ratio=math.exp(mean),
                low=math.exp(low),
                high=math.exp(high) if math.isfinite(high) else math.inf,
                throughput=statistics.fmean(each[number] for each in shared),
                rounds=tuple(each[number] for each in shared),
            )
        )
    return sorted(found, key=lambda r: -r.ratio)


def tied_with(best: int, rounds: Sequence[Round]) -> list[int]:
    """Returns the candidates whose ratio to `best` has an interval that reaches 1, `best` first."""
    tied = [best]
    for number in sorted({n for each in rounds for n in each} - {best}):
        logs = [math.log(r[number] / r[best]) for r in rounds if number in r and best in r]
        if logs and interval(logs)[2] >= 0:
            tied.append(number)
    return tied


def simplicity(config: TrialConfig) -> tuple[object, ...]:
    """Returns a key by which the simpler of two tied configurations comes first.

    Fewer moving parts in production: nothing compiled, fewer processes, plainer arithmetic.
    """
    return (
        config.compile.mode != "eager",
        config.loader.num_workers,
        config.loader.kind != "resident",
        config.loader.pin_memory,
        config.precision.amp != "fp32",
        config.precision.tf32,
        config.accumulate_steps,
        config.batch_size,
    )


def decide(rounds: Sequence[Round], baseline: int, configs: Mapping[int, TrialConfig]) -> int | None:
    """Returns the winner's number: the simplest of those tied with the fastest.

    None where nothing is faster than the baseline: the lower end of no interval is above 1.
    """
    faster = [ratio for ratio in ratios(rounds, baseline) if ratio.low > 1]
    if not faster:
        return None
    numbers = {ratio.number for ratio in faster}
    tied = [number for number in tied_with(faster[0].number, rounds) if number in numbers]
    return min(tied, key=lambda number: simplicity(configs[number]))
