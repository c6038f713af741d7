"""Publishes sweeps to MLflow, as a projection of the sweep's folder that is never read back."""

from sweeper.tracking.sender import Drained, Sender
from sweeper.tracking.tracker import (
    Confirmation,
    Dataset,
    DeletedError,
    NullTracker,
    RefusedError,
    RejectedError,
    RunView,
    SweepInfo,
    Tracker,
)

__all__ = [
    "Confirmation",
    "Dataset",
    "DeletedError",
    "Drained",
    "NullTracker",
    "RefusedError",
    "RejectedError",
    "RunView",
    "Sender",
    "SweepInfo",
    "Tracker",
]
