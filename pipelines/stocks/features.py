"""Causal features and targets of one instrument: row t knows days up to t, the target those after."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .indicators import indicators
from .returns import WARM_UP, Returns, log_returns

EXPECTED = "expected_target"
"""Column of a made-up market: the best prediction for one who knows its hidden state."""

HORIZON = {"volatility": 5, "return": 1}
"""Days ahead that each target reaches."""

PARTS = {"train": (0.0, 0.70), "val": (0.70, 0.85), "test": (0.85, 1.0)}
"""Shares of each instrument's days, in the order of time."""


def split_instrument(
    frame: pd.DataFrame, target: str, kind: str, evaluate_on: str = "val"
) -> tuple[dict[str, dict[str, np.ndarray]], int]:
    """Returns `features`, `target` and `age` of each part, and the count of masked days.

    The parts are `train`, and `val` with the days of `evaluate_on` in it.

    No window and no horizon crosses a boundary: `age` counts days from the start of the part (a
    window of L days may end where age >= L - 1), and the last days of a part have no target.
    A column `EXPECTED` is handed on. The parts are empty if the close never moves. `kind` is
    `indicators`, or else the features are made from the bars where there are any.
    """
    days = len(frame) - WARM_UP
    shares = {"train": PARTS["train"], "val": PARTS[evaluate_on]}
    edges = {part: [WARM_UP + round(share * days) for share in both] for part, both in shares.items()}
    returns = log_returns(frame["close"].to_numpy(), edges["train"][1])
    if returns.sd == 0:
        return {}, 0
    if "open" in frame:
        features = (indicators if kind == "indicators" else bar_features)(frame, returns)
    else:
        features = frame.drop(columns=["close"])
        known = features.iloc[slice(*edges["train"])]
        # Ready columns (moving averages, ...) have the scale of their own instrument's price.
        features = ((features - known.mean()) / known.std(ddof=0).clip(lower=1e-8)).fillna(0.0)
    ahead = raw_target(returns, target)
    parts = {}
    for part, (first, last) in edges.items():
        inside = ahead[first:last].copy()
        inside[-HORIZON[target] :] = np.nan
        parts[part] = {
            "features": features.to_numpy()[first:last],
            "target": inside,
            "age": np.arange(last - first),
        }
        if EXPECTED in frame:
            parts[part]["expected"] = frame[EXPECTED].to_numpy()[first:last]
    return parts, int(returns.masked.sum())


def bar_features(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Returns features [days, 16] from open, high, low, close and volume; NaN in the warm-up.

    Prices enter as ratios within a day or through the masked returns, and volume as money, so
    that a split leaves no trace. Moves are in units of the volatility of the last 60 days; the
    volatilities themselves keep their level, which is what tells a currency from an oil fund.
    """
    r = pd.Series(returns.values)
    price = r.cumsum()
    log = bars[["open", "high", "low", "close"]].apply(np.log)
    spread = (log["high"] - log["low"]).abs()
    spread = spread.mask(returns.masked).ffill().fillna(0.0)  # a masked day takes the day before's
    gap = (log["open"] - log["close"].shift()).mask(returns.masked, 0.0)
    height = (bars["high"] - bars["low"]).replace(0.0, np.nan)
    money = (bars["close"] * bars["volume"]).apply(np.log1p)
    rise, fall = (side.rolling(14).mean() for side in (r.clip(lower=0), (-r).clip(lower=0)))

    def volatility(days: int) -> pd.Series:
        return (r * r).rolling(days).mean().clip(lower=0.0).pow(0.5).clip(lower=returns.floor)

    def spread_over(days: int) -> pd.Series:
        return spread.rolling(days).mean().clip(lower=returns.floor).apply(np.log)

    unit = volatility(WARM_UP)
    return pd.DataFrame(
        {
            "return_1": r / unit,
            "return_5": r.rolling(5).sum() / (unit * 5**0.5),
            "return_20": r.rolling(20).sum() / (unit * 20**0.5),
            "gap": gap / unit,
            "close_in_range": ((bars["close"] - bars["low"]) / height).fillna(0.5),
            "log_range_1": np.log(spread.clip(lower=returns.floor)),
            "log_range_5": spread_over(5),
            "log_range_20": spread_over(20),
            "log_vol_5": np.log(volatility(5)),
            "log_vol_20": np.log(volatility(20)),
            "log_vol_60": np.log(unit),
            "volume_1": money - money.rolling(20).mean(),
            "volume_5": money.rolling(5).mean() - money.rolling(WARM_UP).mean(),
            "rsi_14": (rise / (rise + fall).replace(0.0, np.nan)).fillna(0.5),
            "macd": (price.ewm(span=12).mean() - price.ewm(span=26).mean()) / unit,
            "above_mean_20": (price - price.rolling(20).mean()) / (unit * 20**0.5),
        }
    )


def raw_target(returns: Returns, kind: str) -> np.ndarray:
    """Returns the target [days] that is known only after each day; NaN where there is none.

    `volatility` is the log of the root mean square return over the next 5 days, `return` the next
    day's return over the instrument's training sd. A horizon that holds a masked day has no target.
    """
    horizon = HORIZON[kind]
    clean = pd.Series(np.where(returns.masked, np.nan, returns.values))
    if kind == "return":
        ahead = clean / returns.sd
    else:
        ahead = np.log(
            (clean * clean).rolling(horizon).mean().clip(lower=0).pow(0.5).clip(lower=returns.floor)
        )
    return ahead.shift(-horizon).to_numpy()
