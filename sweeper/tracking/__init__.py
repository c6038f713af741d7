"""Showing a sweep in MLflow; a projection of the folder, never read back."""

from sweeper.tracking.tracker import Confirmation, NullTracker, RunView, SweepInfo, Tracker

__all__ = ["Confirmation", "NullTracker", "RunView", "SweepInfo", "Tracker"]
