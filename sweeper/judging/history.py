"""Keeps what the latest commits were judged, in a file, and says since when a training is slower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.codec import decode, encode
from sweeper.errors import UserError
from sweeper.judging.speed import Speed
from sweeper.judging.verdict import Verdict
from sweeper.system.files import write_json

MAX_JUDGEMENTS = 30
"""Number of latest commits that the file keeps."""
MADE_UP = 0.97
"""Ratio to what it was from which a training is no longer slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCommit:
    """What a commit was judged.

    Attributes:
        commit: The commit of the working tree, with `+` if files differ from it.
        base: The commit that it was compared with.
        ratio: Its speed over that of the base; `low` and `high` are its 95% interval.
        losses: Whether it trains the same, as in the JSON of a verdict.
    """

    commit: str
    base: str
    speed: str
    ratio: float
    low: float
    high: float
    losses: str


def judgement_of(verdict: Verdict, commit: str, base: str) -> JudgedCommit:
    """Returns what a commit was judged."""
    speed = verdict.speed
    return JudgedCommit(
        commit=commit,
        base=base,
        speed=str(speed.answer),
        ratio=speed.ratio,
        low=speed.low,
        high=speed.high,
        losses=str(verdict.training.answer),
    )


def read_history(path: Path) -> list[JudgedCommit]:
    """Returns what is in a file, the oldest first; nothing if there is no file.

    Raises:
        UserError: It cannot be read, or has other content.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return [decode(JudgedCommit, entry) for entry in tree["judgements"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`--history` must be a file that `sweeper judge` has written, but {str(path)!r} cannot be read"
            f" ({type(error).__name__}: {error}). Remove it, or name another one."
        ) from None


def write_history(path: Path, history: Sequence[JudgedCommit]) -> None:
    """Writes the latest judgements."""
    write_json(path, {"judgements": [encode(one) for one in history[-MAX_JUDGEMENTS:]]})


def with_judgement(history: Sequence[JudgedCommit], latest: JudgedCommit) -> list[JudgedCommit]:
    """Returns a history with a judgement, which replaces an earlier one of the same commits."""
    others = [one for one in history if (one.commit, one.base) != (latest.commit, latest.base)]
    return [*others, latest][-MAX_JUDGEMENTS:]


def slower_since(history: Sequence[JudgedCommit]) -> JudgedCommit | None:
    """Returns the first of the latest judgements since which the training is slower; None if it is not.

    Where each commit is compared with the one before it, the training is slower until the ratios make up for
    it. Where all are compared with the same commit, only those that are slower count.
    """
    first: JudgedCommit | None = None
    ratio = 1.0
    for before, now in zip([None, *history], history, strict=False):
        follows = before is not None and now.base == before.commit.rstrip("+")
        is_change = now.speed in (Speed.SLOWER, Speed.FASTER)
        ratio = (ratio if follows else 1.0) * (now.ratio if is_change else 1.0)
        if ratio > MADE_UP or not (follows or now.speed == Speed.SLOWER):
            first = None
        elif now.speed == Speed.SLOWER:
            first = first or now
    return first
