"""A made-up market: daily bars whose hidden volatility persists, so that it can be predicted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from .features import EXPECTED, HORIZON

PERSISTENCE = 0.985
STATE_SD = 0.35
LEVEL_SD = 0.35
DAILY_VOLATILITY = 0.015
STEPS = 16
"""Steps of the walk inside a day; the first is the overnight gap."""


def make_market(stocks: int, days: int, seed: int, target: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields `(symbol, bars)` for each made-up stock.

    Log volatility of stock i on day t is level_i + state_t, with state an AR(1) process of
    stationary sd `STATE_SD`; the day's log return is a Gaussian walk of that volatility.

    Args:
        stocks: Number of instruments.
        days: Bars per instrument.
        seed: The same seed gives the same market.
        target: What the column `EXPECTED` predicts: `volatility` or `return`.
    """
    rng = np.random.default_rng(seed)
    grid, expected = expected_log_vol(HORIZON["volatility"], seed)
    if target == "return":
        grid, expected = np.zeros(1), np.zeros(1)  # the next step of a walk is not predictable
    for number in range(stocks):
        level = np.log(DAILY_VOLATILITY) + LEVEL_SD * rng.standard_normal()
        state = STATE_SD * ar1(rng.standard_normal(days))
        walk = np.exp(level + state)[:, None] * rng.standard_normal((days, STEPS)) / np.sqrt(STEPS)
        path = np.cumsum(walk, axis=1)
        close = np.log(50.0) + np.cumsum(path[:, -1])
        price = np.exp((close - path[:, -1])[:, None] + path)
        yield (
            f"S{number:04d}",
            pd.DataFrame(
                {
                    "open": price[:, 0],
                    "high": price.max(axis=1),
                    "low": price.min(axis=1),
                    "close": price[:, -1],
                    "volume": np.round(np.exp(13 + 0.8 * state + 0.4 * rng.standard_normal(days))),
                    EXPECTED: np.interp(state, grid, expected) + (level if target == "volatility" else 0.0),
                }
            ),
        )


def ar1(noise: np.ndarray) -> np.ndarray:
    """Returns an AR(1) process of stationary sd 1 along axis 0, driven by standard `noise`."""
    state = np.empty_like(noise)
    state[0] = noise[0]
    for t in range(1, len(noise)):
        state[t] = PERSISTENCE * state[t - 1] + np.sqrt(1 - PERSISTENCE**2) * noise[t]
    return state


def expected_log_vol(horizon: int, seed: int, draws: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Returns states [41] and, for each, E[log realised volatility of the next days | state], level 0.

    The expectation is a mean over `draws` futures, the same ones for every state.
    """
    rng = np.random.default_rng([seed, 1])
    grid = STATE_SD * np.linspace(-5, 5, 41)
    shocks = rng.standard_normal((horizon, draws))
    returns = rng.standard_normal((horizon, draws))
    expected = np.empty_like(grid)
    for place, start in enumerate(grid):
        state = np.full(draws, start)
        squares = np.zeros(draws)
        for day in range(horizon):
            state = PERSISTENCE * state + STATE_SD * np.sqrt(1 - PERSISTENCE**2) * shocks[day]
            squares += (np.exp(state) * returns[day]) ** 2
        expected[place] = 0.5 * np.log(squares / horizon).mean()
    return grid, expected
