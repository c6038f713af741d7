"""The quantile function, with scipy's as its oracle."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from sweeper.race.quantiles import t_quantile

FREEDOMS = (1, 1.5, 2, 3, 4, 5.5, 7, 10, 26, 100, 1e5)


@pytest.mark.parametrize("p", [0.501, 0.55, 0.9, 0.975, 0.985, 0.999, 0.9999])
def test_t_is_as_scipy_has_it(p: float):
    for freedom in FREEDOMS:
        assert t_quantile(p, freedom) == pytest.approx(float(stdtrit(freedom, p)), rel=1e-7)
