"""Adds up what a training does between its steps: it begins passes, and writes checkpoints."""

from __future__ import annotations

from typing import Any

from .lines import line_of


class BetweenSteps:
    """What was done since the first step.

    Attributes:
        place: The `file:line` that wrote the first checkpoint; empty before that.
    """

    def __init__(self) -> None:
        self.place = ""
        self._num_passes = self._num_saves = self._num_batches = 0
        self._pass_s = self._save_s = self._paused_save_s = 0.0
        self._sampler, self._began_s, self._counts = 0, 0.0, False

    def pass_begins(self, loader: Any, now: float, *, has_stepped: bool) -> None:
        """Notes that an iterator of a loader is asked for.

        Args:
            has_stepped: Whether there was a step before.
        """
        self._sampler, self._began_s, self._counts = id(loader._index_sampler), now, has_stepped

    def batch_arrived(self, iterator: Any, now: float, resumed_s: float) -> None:
        """Notes that a batch to train on has arrived.

        Args:
            resumed_s: When the training went on after its latest pause.
        """
        if self._sampler != id(iterator._index_sampler):
            return
        self._sampler = 0
        try:
            self._num_batches = len(iterator._index_sampler)
        except TypeError:
            self._num_batches = 0
        if self._counts:
            self._num_passes += 1
            self._pass_s += now - max(self._began_s, resumed_s)

    def saved(self, seconds: float, frame: Any, *, is_pausing: bool) -> None:
        """Notes that a checkpoint was written.

        Args:
            frame: The frame of its caller.
            is_pausing: Whether the training pauses for an evaluation.
        """
        if not self.place:
            path, line = line_of(frame)
            self.place = f"{path}:{line}" if path else ""
        self._num_saves += 1
        self._save_s += seconds
        if is_pausing:
            self._paused_save_s += seconds

    def message(self) -> dict[str, float]:
        """Returns the counts and seconds so far."""
        return {
            "passes": self._num_passes,
            "pass_s": self._pass_s,
            "batches": self._num_batches,
            "saves": self._num_saves,
            "save_s": self._save_s,
            "paused_save_s": self._paused_save_s,
        }
