"""Publishes sweeps to MLflow, as a projection of the sweep's folder that is never read back."""

from sweeper.tracking.sender import DrainResult, Sender
from sweeper.tracking.tracker import (
    Confirmation,
    Dataset,
    DeletedError,
    NullTracker,
    RejectedError,
    RunView,
    SweepInfo,
    Tracker,
    TrackerRefusedError,
)

__all__ = [
    "Confirmation",
    "Dataset",
    "DeletedError",
    "DrainResult",
    "NullTracker",
    "RejectedError",
    "RunView",
    "Sender",
    "SweepInfo",
    "Tracker",
    "TrackerRefusedError",
]
