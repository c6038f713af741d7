"""Made-up series with seasons, noise that persists, and columns that follow one another."""

from __future__ import annotations

import numpy as np
import pandas as pd

OWN, LEADER, LAG = 0.6, 0.35, 12
"""Share of a column's deviation that stays for an hour, and that of its neighbour's `LAG` hours ago."""

NOISE = 0.5
BURN_IN = 500
"""Rows after which the deviations have forgotten how they began."""

DAY, YEAR = 24.0, 24 * 365.25


def make_series(rows: int, columns: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Returns hourly rows, and the unit [columns] of what is noise in them.

    Each column is a daily and a yearly season plus deviations z, in units of its own:

        z[t, k] = OWN z[t-1, k] + LEADER z[t-LAG, k-1] + NOISE e[t, k],    e standard normal,

    the first column following the last.
    """
    rng = np.random.default_rng(seed)
    noise = NOISE * rng.standard_normal((BURN_IN + rows, columns))
    z = noise.copy()
    neighbour = np.arange(columns) - 1
    for t in range(LAG, len(z)):
        z[t] += OWN * z[t - 1] + LEADER * z[t - LAG][neighbour]
    hour = np.arange(rows)[:, None]
    daily, yearly = rng.uniform(0.5, 1.5, columns), rng.uniform(1.5, 3.0, columns)
    phase = rng.uniform(0, 2 * np.pi, (2, columns))
    season = daily * np.sin(2 * np.pi * hour / DAY + phase[0])
    season += yearly * np.sin(2 * np.pi * hour / YEAR + phase[1])
    level, unit = rng.uniform(-20, 80, columns), np.exp(rng.normal(1, 1, columns))
    frame = pd.DataFrame(
        level + unit * (season + z[BURN_IN:]),
        index=pd.date_range("2015-01-01", periods=rows, freq="h"),
        columns=[f"column_{k}" for k in range(columns)],
    )
    return frame, unit


def forecast_variance(horizon: int, columns: int) -> np.ndarray:
    """Returns the variance [horizon] of the best forecast's error, in units of z, of any one column.

    It is NOISE^2 times the sum of squared weights with which the noise of the steps between enters
    (the moving average form of a vector autoregression; Luetkepohl 2005, section 2.2.2).
    """
    weights = np.zeros((horizon, columns, columns))
    weights[0] = np.eye(columns)
    for step in range(1, horizon):
        weights[step] = OWN * weights[step - 1]
        if step >= LAG:
            weights[step] += LEADER * np.roll(weights[step - LAG], 1, axis=0)
    variance: np.ndarray = NOISE**2 * np.cumsum(np.square(weights).sum(axis=2)[:, 0])
    return variance
