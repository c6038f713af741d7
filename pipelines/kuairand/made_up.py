"""A made-up KuaiRand of the 1K version's shape: who clicks, and for how long, depends on the features."""

from __future__ import annotations

import numpy as np

from .tables import Array, Log, Table, bernoulli_loss

CLICK_RATE = 0.38
PERIOD_MS = (1_649_352_000_000, 1_652_025_599_000)
TAGS = 1200
DEGREES = (
    "full_active",
    "high_active",
    "middle_active",
    "low_active",
    "UNKNOWN",
    "2_14_day_new",
    "30day_retention",
)
PLAY_MEDIAN, PLAY_SIGNAL, PLAY_NOISE = 1.36, 1.1, 1.25
"""Of log(1 + seconds): the median play is 2.9 s, the mean some 15 s, one in five is 0."""


class MadeUp:
    """Users, videos and a log by time, with what is known of them.

    Attributes:
        logit: Of a click, for each row of the log.
        play: Median of log(1 + seconds played), for each row of the log.
    """

    def __init__(self, num_users: int, num_videos: int, num_rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.time_ms = np.sort(rng.integers(*PERIOD_MS, num_rows))
        seen, user = _draw(rng, num_users, num_rows)
        self.users, by_user = _users(rng, len(seen))
        seen, video = _draw(rng, num_videos, num_rows)
        self.videos, by_video = _videos(rng, len(seen))

        u, v = by_user[user], by_video[video]
        logit = 1.2 * v[:, 0] + 0.7 * v[:, 1] + 0.7 * u[:, 0] + 0.6 * np.tanh(u[:, 1] * v[:, 1])
        drawn = logit + rng.logistic(size=num_rows)
        # Clicks are the rows above a quantile, so that their rate is exactly CLICK_RATE.
        edge = np.quantile(drawn, 1 - CLICK_RATE)
        self.logit = logit - edge
        signal = 0.6 * _unit(self.logit) + 0.5 * v[:, 2] + 0.6 * np.tanh(u[:, 1] + v[:, 2])
        middle = PLAY_MEDIAN + PLAY_SIGNAL * _unit(signal)
        # Values below 0 become 0, a play of 0 s; the median of the others does not change.
        played = np.maximum(middle + PLAY_NOISE * rng.standard_normal(num_rows), 0.0)
        self.play = np.maximum(middle, 0.0)
        self.log = Log(
            user,
            video,
            (drawn > edge).astype(np.uint8),
            np.rint(1000 * np.expm1(played)).astype(np.int64),
            self.time_ms,
        )

    def best_losses(self, rows: Array) -> dict[str, float]:
        """Returns each label's loss on `rows` for one who knows how they were made."""
        play = np.log1p(self.log.play_ms[rows] / 1000)
        return {
            "click": bernoulli_loss(self.log.click[rows], self.logit[rows]),
            "play_time": float(np.abs(play - self.play[rows]).mean()),
        }


def _draw(rng: np.random.Generator, count: int, num_rows: int) -> tuple[Array, Array]:
    """Returns the ones of `count` that occur, and which of them each row has; some occur often."""
    weight = rng.lognormal(0.0, 1.0, count)
    drawn = rng.choice(count, num_rows, p=weight / weight.sum())
    seen, row = np.unique(drawn, return_inverse=True)
    return seen, row.astype(np.int32)


def _users(rng: np.random.Generator, count: int) -> tuple[Table, Array]:
    """Returns users, and what of them matters: [users, 2]."""
    taste, age = rng.standard_normal((2, count))
    days = np.clip(np.rint(1200 + 500 * age), 14, 3624)
    follow = np.rint(np.clip(np.exp(4.5 + taste), 0, 5003))
    degree = rng.choice(len(DEGREES), count, p=(0.7, 0.08, 0.07, 0.05, 0.04, 0.03, 0.03))
    effect = rng.standard_normal(len(DEGREES))
    numeric = np.stack(
        (
            rng.choice((0, 1, -124), count, p=(0.9, 0.06, 0.04)),
            rng.integers(0, 2, count),
            follow,
            np.rint(np.exp(3 + 1.8 * rng.standard_normal(count))),
            np.rint(follow * rng.random(count)),
            days,
        ),
        axis=1,
    )
    table = _table(numeric, [np.asarray(DEGREES)[degree]])
    return table, np.stack((taste + 0.5 * effect[degree], age), axis=1)


def _videos(rng: np.random.Generator, count: int) -> tuple[Table, Array]:
    """Returns videos, and what of them matters: [videos, 3]."""
    liked, finished, fame = rng.standard_normal((3, count))
    names = np.asarray([f"{n}" if n % 3 else f"{n},{n // 3}" for n in range(TAGS)] + [""])
    weight = 1 / np.arange(2, TAGS + 2)
    tag = rng.choice(TAGS, count, p=weight / weight.sum())
    effect = np.append(rng.standard_normal(TAGS), 0.0)
    tag[rng.random(count) < 0.03] = TAGS
    kind = np.asarray(("NORMAL", "AD", "UNKNOWN"))[rng.choice(3, count, p=(0.97, 0.02, 0.01))]
    duration = np.rint(np.exp(10.6 + 0.9 * rng.standard_normal(count)))
    duration[rng.random(count) < 0.21] = np.nan
    wide = rng.random(count) < 0.15
    show = np.exp(12 + 1.5 * fame)
    play = 0.6 * show
    counts = (
        show,
        play,
        0.8 * play,
        play / (1 + np.exp(-0.8 * finished)),
        0.03 * play * np.exp(0.8 * liked),
        0.004 * play * np.exp(0.5 * rng.standard_normal(count)),
        0.002 * play * np.exp(0.5 * rng.standard_normal(count)),
        0.003 * play * np.exp(0.5 * rng.standard_normal(count)),
    )
    size = np.where(wide, 1280, 720), np.where(wide, 720, 1280)
    table = _table(np.stack((duration, *size, *np.rint(counts)), axis=1), [kind, names[tag]])
    return table, np.stack((effect[tag], liked, finished), axis=1)


def _table(numeric: Array, text: list[Array]) -> Table:
    codes, levels = [], []
    for column in text:
        known, code = np.unique(column, return_inverse=True)
        # The empty text, which means unknown, comes first.
        codes.append(code if known[0] == "" else code + 1)
        levels.append([str(level) for level in known if level])
    return Table(numeric.astype(np.float32), np.stack(codes, axis=1).astype(np.int32), levels)


def _unit(x: Array) -> Array:
    scaled: Array = (x - x.mean()) / x.std()
    return scaled
