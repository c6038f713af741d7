"""The usual technical indicators of one instrument, causal and without the scale of its price."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .returns import WARM_UP, Returns


def indicators(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Returns indicators [days, 40] from open, high, low, close and volume; NaN in the warm-up.

    Each is computed by its usual formula, on prices without splits, and then made comparable over
    instruments and years: what is a price becomes its distance to the close in units of the
    volatility of the last 60 days, what is a volume its ratio to the mean one.
    """
    price = unsplit(bars, returns)
    close, high, low = price["close"], price["high"], price["low"]
    r = pd.Series(returns.values)
    sd = (r * r).rolling(WARM_UP).mean().clip(lower=0.0).pow(0.5).clip(lower=returns.floor)
    unit = sd * close
    before = close.shift()
    table: dict[str, pd.Series] = {}
    for days in (5, 10, 20, 30, 60):
        mean = close.rolling(days).mean()
        table[f"ma_{days}"] = (close - mean) / (unit * days**0.5)
        table[f"ma_{days}_slope"] = mean.diff() / unit
    for days in (12, 26):
        table[f"ema_{days}"] = (close - ema(close, days)) / (unit * days**0.5)
    line, signal = macd(close)
    table |= {"macd": line / unit, "macd_signal": signal / unit, "macd_bar": 2 * (line - signal) / unit}
    for days in (6, 12, 24):
        table[f"rsi_{days}"] = rsi(close, days) / 100
    lower, upper = bollinger(close)
    width = (upper - lower) / unit
    table["boll_place"] = ((close - lower) / (upper - lower).where(width > 1e-6)).fillna(0.5)
    table["boll_width"] = width
    table["boll_upper"], table["boll_lower"] = (upper - close) / unit, (close - lower) / unit
    for name, series in zip("kdj", kdj(high, low, close), strict=True):
        table[f"kdj_{name}"] = series / 100
    table["gap"] = (price["open"] / before - 1).mask(returns.masked, 0.0) / sd
    for days in (1, 2, 3, 5, 10, 20):
        table[f"change_{days}"] = r.rolling(days).sum() / (sd * days**0.5)
    amplitude = ((high - low) / before).mask(returns.masked).ffill()  # a masked day takes the day before's
    for days in (1, 5, 20):
        mean = amplitude.rolling(days).mean()
        table[f"amplitude_{days}"] = pd.Series(np.log(mean.clip(lower=returns.floor)))
    money = bars["close"] * bars["volume"]  # a split does not change it
    for days in (5, 10, 20, 60):
        table[f"volume_ratio_{days}"] = pd.Series(np.log1p(money) - np.log1p(money.rolling(days).mean()))
    table["volatility"] = pd.Series(np.log(sd))
    return pd.DataFrame(table)


def unsplit(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Returns open, high, low and close with the masked moves taken out; a masked day is a point."""
    close = pd.Series(np.exp(np.cumsum(returns.values)))
    within = bars[["open", "high", "low", "close"]].div(bars["close"], axis=0)
    return within.mask(pd.Series(returns.masked), 1.0).mul(close, axis=0)


def ema(series: pd.Series, days: int) -> pd.Series:
    """Returns the exponential mean: each day 2 / (days + 1) of the way to the day's value."""
    return series.ewm(span=days, adjust=False).mean()


def macd(close: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Returns MACD(12, 26) and its signal line of 9 days (Appel)."""
    line = ema(close, 12) - ema(close, 26)
    return line, ema(line, 9)


def rsi(close: pd.Series, days: int) -> pd.Series:
    """Returns the relative strength index, 0 to 100, with Wilder's smoothing; 50 where nothing moved."""
    change = close.diff().fillna(0.0)
    rise, fall = (
        side.ewm(alpha=1 / days, adjust=False).mean()
        for side in (change.clip(lower=0), -change.clip(upper=0))
    )
    return (100 * rise / (rise + fall).replace(0.0, np.nan)).fillna(50.0)


def bollinger(close: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Returns the lower and the upper band: 2 standard deviations of 20 days about their mean."""
    mean, sd = close.rolling(20).mean(), close.rolling(20).std(ddof=0)
    return mean - 2 * sd, mean + 2 * sd


def kdj(high: pd.Series, low: pd.Series, close: pd.Series) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Returns K, D and J of 9 days: a third of the way to the day's value, beginning at 50."""
    least, most = low.rolling(9, min_periods=1).min(), high.rolling(9, min_periods=1).max()
    place = (100 * (close - least) / (most - least).replace(0.0, np.nan)).fillna(50.0)
    k = _third_of_the_way(place)
    d = _third_of_the_way(k)
    return k, d, 3 * k - 2 * d


def _third_of_the_way(series: pd.Series) -> pd.Series:
    begun = pd.concat([pd.Series([50.0]), series], ignore_index=True)
    return begun.ewm(alpha=1 / 3, adjust=False).mean().iloc[1:].reset_index(drop=True)
