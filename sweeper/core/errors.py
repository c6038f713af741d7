"""Deprecated alias of `sweeper.errors`, kept for pipelines written for 0.1.0."""

import warnings

from sweeper.errors import (
    EnvironmentStopError,
    NothingFeasibleError,
    StorageError,
    SweepConflictError,
    SweeperError,
    UserError,
    did_you_mean,
)

__all__ = [
    "EnvironmentStopError",
    "NothingFeasibleError",
    "StorageError",
    "SweepConflictError",
    "SweeperError",
    "UserError",
    "did_you_mean",
]

warnings.warn(
    "sweeper.core.errors is deprecated; import from sweeper.errors.", DeprecationWarning, stacklevel=2
)
