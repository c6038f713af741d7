"""Daily returns of one instrument, without the moves that are no trading: splits, corporate actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WARM_UP = 60
"""Days that the longest feature looks back."""

ROBUST_SIGMAS = 10.0


@dataclass(frozen=True, slots=True)
class Returns:
    """Daily log returns of one instrument.

    Attributes:
        values: [days], 0 where masked and on the first day.
        masked: [days] bool; moves too large for a day of trading: splits, corporate actions.
        sd: Their standard deviation in the training part.
    """

    values: np.ndarray
    masked: np.ndarray
    sd: float

    @property
    def floor(self) -> float:
        """The least volatility that is told from none, so that logarithms stay finite."""
        return 0.05 * self.sd


def log_returns(close: np.ndarray, train_days: int) -> Returns:
    """Returns the log returns of `close` [days], moves beyond 10 robust sigmas masked.

    A robust sigma is 1.4826 times the median absolute deviation. It is taken over the first
    `train_days` only: what is a large move must not depend on days that training may not see.
    """
    values = np.diff(np.log(close), prepend=np.log(close[0]))
    known = values[1:train_days]
    centre = np.median(known)
    sigma = 1.4826 * np.median(np.abs(known - centre)) or known.std()
    masked = np.abs(values - centre) > ROBUST_SIGMAS * sigma if sigma > 0 else np.zeros(len(values), bool)
    values = np.where(masked, 0.0, values)
    return Returns(values, masked, float(values[1:train_days].std()))
