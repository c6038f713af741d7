"""A pytest plugin (`-p strict_cuda_plugin`): the whole run is on the strict stand-in for CUDA."""

from __future__ import annotations

import pytest
from strict_cuda import StrictCuda

_cuda = StrictCuda()


def pytest_configure(config: pytest.Config) -> None:
    _cuda.__enter__()


def pytest_unconfigure(config: pytest.Config) -> None:
    _cuda.__exit__()
