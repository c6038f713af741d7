"""Checks the indicators against their textbook formulas, one day at a time."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import pandas as pd
import pytest

from pipelines.stocks import indicators as own
from pipelines.stocks.market import make_market
from pipelines.stocks.returns import WARM_UP, log_returns

DAYS = 300


@pytest.fixture(scope="module")
def bars() -> pd.DataFrame:
    return next(iter(make_market(1, DAYS, 3, "volatility")))[1]


def table_of(bars: pd.DataFrame) -> pd.DataFrame:
    return own.indicators(bars, log_returns(bars["close"].to_numpy(), 250))


def ema(values: list[float], days: int) -> list[float]:
    found = [values[0]]
    for value in values[1:]:
        found.append(found[-1] + 2 / (days + 1) * (value - found[-1]))
    return found


def test_macd(bars: pd.DataFrame) -> None:
    close = bars["close"].tolist()
    line = [fast - slow for fast, slow in zip(ema(close, 12), ema(close, 26), strict=True)]
    found = own.macd(bars["close"])
    np.testing.assert_allclose(found[0], line)
    np.testing.assert_allclose(found[1], ema(line, 9))


@pytest.mark.parametrize("days", [6, 24])
def test_rsi(bars: pd.DataFrame, days: int) -> None:
    close = bars["close"].tolist()
    rise = fall = 0.0
    wanted = [50.0]
    for before, now in pairwise(close):
        rise += (max(now - before, 0) - rise) / days
        fall += (max(before - now, 0) - fall) / days
        wanted.append(100 - 100 / (1 + rise / fall) if fall else 100.0)
    np.testing.assert_allclose(own.rsi(bars["close"], days), wanted)


def test_bollinger(bars: pd.DataFrame) -> None:
    lower, upper = own.bollinger(bars["close"])
    for day in range(19, DAYS):
        past = bars["close"].tolist()[day - 19 : day + 1]
        assert lower[day] == pytest.approx(fmean(past) - 2 * pstdev(past))
        assert upper[day] == pytest.approx(fmean(past) + 2 * pstdev(past))


def test_kdj(bars: pd.DataFrame) -> None:
    found = own.kdj(bars["high"], bars["low"], bars["close"])
    k = d = 50.0
    for day in range(DAYS):
        past = bars.iloc[max(0, day - 8) : day + 1]
        most, least = max(past["high"]), min(past["low"])
        k = 2 / 3 * k + 1 / 3 * 100 * (bars["close"][day] - least) / (most - least)
        d = 2 / 3 * d + 1 / 3 * k
        assert [series[day] for series in found] == pytest.approx([k, d, 3 * k - 2 * d])


def test_columns_are_what_their_names_say(bars: pd.DataFrame) -> None:
    table = table_of(bars)
    assert table.shape == (DAYS, 40)
    assert table[WARM_UP:].notna().all(axis=None)
    for day in (WARM_UP, 200, DAYS - 1):
        past = bars[: day + 1]
        # The bars begin at another price than the unsplit ones: ratios to the close are the same.
        close, low, volume = past["close"].tolist(), past["low"].tolist(), past["close"] * past["volume"]
        mean, spread = fmean(close[-20:]), 2 * pstdev(close[-20:])
        moves = np.diff(np.log(close))[-60:]
        sd = np.sqrt(np.square(moves).mean())
        wanted = {
            "volatility": np.log(sd),
            "change_5": np.log(close[-1] / close[-6]) / sd / np.sqrt(5),
            "ma_20": (close[-1] - fmean(close[-20:])) / close[-1] / sd / np.sqrt(20),
            "ma_60_slope": (fmean(close[-60:]) - fmean(close[-61:-1])) / close[-1] / sd,
            "amplitude_1": np.log((past["high"].iloc[-1] - low[-1]) / close[-2]),
            "gap": (past["open"].iloc[-1] / close[-2] - 1) / sd,
            "volume_ratio_5": np.log1p(volume.iloc[-1]) - np.log1p(volume.iloc[-5:].mean()),
            "boll_place": (close[-1] - mean + spread) / (2 * spread),
        }
        assert {name: table[name][day] for name in wanted} == pytest.approx(wanted)


def test_neither_the_currency_nor_a_split_changes_them(bars: pd.DataFrame) -> None:
    dear = bars.copy()
    dear[["open", "high", "low", "close"]] *= 100.0
    np.testing.assert_allclose(table_of(dear)[WARM_UP:], table_of(bars)[WARM_UP:], atol=2e-3)

    split, day = bars.copy(), 150
    split.loc[day:, ["open", "high", "low", "close"]] /= 7.0
    split["volume"] = split["volume"].astype(float)
    split.loc[day:, "volume"] *= 7.0
    # The day's own move is lost with the split; beside it nothing is.
    assert log_returns(split["close"].to_numpy(), 250).masked.tolist() == [d == day for d in range(DAYS)]
    before, after = (table_of(each).to_numpy()[WARM_UP:] for each in (bars, split))
    off = np.abs(after - before) / before.std(axis=0)
    assert off.max() < 2.5
    near = np.arange(day, day + WARM_UP) - WARM_UP
    assert np.delete(off, near, axis=0).max() < 0.05
