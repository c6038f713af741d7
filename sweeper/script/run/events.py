"""Collects the events of one source of a script's progress: counts, speeds and losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.quantities import COUNTS, LOSSES, RATES, samples_per_second
from sweeper.script.run.timeline import Timeline

MIN_COUNTS = 3
"""Number of counts from which they are trusted over reported speeds."""

ROUGH_SECONDS = 50.0
"""Times below this, reported in whole seconds, may be off by a percent or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Samples per step and per epoch, tokens per sample; 0 if unknown."""

    per_step: float = 0.0
    per_epoch: float = 0.0
    tokens: float = 0.0


class EventStream:
    """The events of one source.

    Attributes:
        counted: Timeline by the reported counts and their times.
        rated: Timeline by the reported speeds.
        names: Names of the reported quantities.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.counted, self.rated = Timeline(), Timeline()
        self._base = self._last = self._steps_of_epoch = 0.0
        self._evaluating_since: float | None = None
        self._paused = 0.0
        self._epoch_ended_s: float | None = None
        self.names: dict[str, None] = {}

    @property
    def timeline(self) -> Timeline:
        """The timeline by counts if there are enough, since they need no unit; otherwise by speeds."""
        counted = len(self.counted.stretches) >= MIN_COUNTS or not self.rated.stretches
        return self.counted if counted else self.rated

    @property
    def by(self) -> str:
        """The quantities that the timeline is based on."""
        kind = COUNTS if self.timeline is self.counted else RATES
        return ", ".join(name for name in kind if name in self.names)

    def add(self, values: Mapping[str, float], moment: float, *, is_evaluation: bool = False) -> None:
        """Adds the quantities reported at a moment.

        Args:
            is_evaluation: Whether they are about validation, so that their counts are not training.

        Raises:
            TrialFailedError: A loss is not a number.
        """
        self.names.update(dict.fromkeys(values))
        if is_evaluation or "val_loss" in values:
            self._count_evaluation(moment)
        else:
            self._steps_of_epoch = values.get("steps", self._steps_of_epoch)
            self._count(values, moment)
        if not is_evaluation:
            self._rate(values, moment)
        for name in LOSSES:
            if name in values:
                self.timeline.add_loss(name, values[name], self.timeline.samples)

    def _count_evaluation(self, moment: float) -> None:
        """Counts the time since the last training event as a pause."""
        if self.counted.stretches:
            since = self._evaluating_since or self.counted.stretches[-1].end_s
            self._paused += max(0.0, moment - since)
            self._evaluating_since = moment

    def _count(self, values: Mapping[str, float], moment: float) -> None:
        name = next((name for name in reversed(COUNTS) if name in values), None)
        if name is None or (name == "step" and not self._sizes.per_step):
            return
        self._evaluating_since = None
        value = values[name]
        if value < self._last:
            # A new epoch starts counting again.
            self._base += max(self._last, self._steps_of_epoch if name == "step" else 0.0)
        self._last = value
        per_step = self._sizes.per_step
        samples = (self._base + value) * (per_step if name == "step" else 1.0)
        self.counted.count(moment, samples, round(samples / per_step) if per_step else 0, self._paused)

    def _rate(self, values: Mapping[str, float], moment: float) -> None:
        sizes = self._sizes
        if "epoch_seconds" in values:
            values = {**values, "epoch_seconds": self._epoch_seconds(values["epoch_seconds"], moment)}
        for name in RATES:
            if values.get(name):
                speed = samples_per_second(
                    name,
                    values[name],
                    per_step=sizes.per_step,
                    per_epoch=sizes.per_epoch,
                    tokens=sizes.tokens,
                )
                if speed is not None:
                    self.rated.rate(moment, speed, sizes.per_step)
                    return

    def _epoch_seconds(self, printed: float, moment: float) -> float:
        """Returns how long an epoch took, in seconds.

        A small whole number is rounded: the time since the previous report counts if it is within a second.
        """
        since, self._epoch_ended_s = self._epoch_ended_s, moment
        if since is None or printed >= ROUGH_SECONDS or not printed.is_integer():
            return printed
        passed = moment - since
        return passed if abs(passed - printed) < 1 else printed
