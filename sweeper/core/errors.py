"""Deprecated: `sweeper.errors`, under the name that 0.1.0 had for it; users' pipelines import it."""

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
    "sweeper.core.errors is sweeper.errors now; import from there.", DeprecationWarning, stacklevel=2
)
