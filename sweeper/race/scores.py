"""How a race stands: each arm's ratio so far, with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sweeper.race.log import BASELINE, Round
from sweeper.race.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One arm.

    Attributes:
        processes: Number of its processes that have taken a turn.
        ratio: Its speed over the baseline's so far; None for the baseline, and before the first common turn.
        low: Lower end of the 95% interval, zero while a single turn of each carries none; `high` is the upper
            one, then infinite.
        is_continued: Whether it takes part in the next round.
    """

    arm: int
    turns: int
    processes: int
    ratio: float | None = None
    low: float = 0.0
    high: float = math.inf
    is_continued: bool = True


def scores(rounds: Sequence[Round], arms: Sequence[int], continued: Collection[int]) -> list[Score]:
    """Returns how the arms of a race stand, the baseline first, then the fastest.

    Args:
        rounds: The rounds so far, the unfinished one included.
        continued: The arms that take part in the next round.
    """
    return sorted(
        (_score(rounds, arm, is_continued=arm in continued) for arm in arms),
        key=lambda score: (score.arm != BASELINE, -(score.ratio or 0.0)),
    )


def _score(rounds: Sequence[Round], arm: int, *, is_continued: bool) -> Score:
    lives = [one.lives[arm] for one in rounds if arm in one.lives and one.lives[arm].turns]
    tally = Tally.of(rounds, arm) if arm != BASELINE else Tally([])
    low, high = tally.interval() if tally.carries_interval else (-math.inf, math.inf)
    return Score(
        arm=arm,
        turns=sum(len(life.turns) for life in lives),
        processes=len(lives),
        ratio=math.exp(tally.mean) if tally.logs else None,
        low=math.exp(low),
        high=math.exp(high),
        is_continued=is_continued,
    )
