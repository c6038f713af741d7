"""Times steps in parts, as the host sees them: the wait for data, the optimizer, and the rest.

It costs nothing that counts, so that a run need not be taken apart to know which changes may pay. On a GPU
the host only launches the optimizer's work; its wait for data is a wait there, too.
"""

from __future__ import annotations

import time

MAX_STEPS = 50
"""Number of steps after which nothing more is added: usual steps are only counted from then on."""


class StepShares:
    """The first steps that are watched one by one.

    Attributes:
        steps: Number of steps.
        seconds: Seconds of these steps; `data` and `optimizer` are parts of them.
    """

    __slots__ = ("_began_s", "_data", "_ended_s", "_optimizer", "data", "optimizer", "seconds", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = self.data = self.optimizer = 0.0
        self._began_s = self._data = self._optimizer = 0.0
        self._ended_s: float | None = None

    def fetch_ended(self, began_s: float) -> None:
        """Notes that a batch to train on has arrived, which the script has waited for since `began_s`."""
        self._data += time.perf_counter() - began_s

    def optimizer_begins(self) -> None:
        """Notes that an optimizer is about to step."""
        self._began_s = time.perf_counter()

    def optimizer_ended(self) -> None:
        """Notes that it has stepped."""
        self._optimizer += time.perf_counter() - self._began_s

    def step_ended(self, now: float, num_steps: int) -> None:
        """Notes that a step has ended, or several."""
        if self._ended_s is not None and self.steps < MAX_STEPS:
            self.steps += num_steps
            self.seconds += now - self._ended_s
            self.data += self._data
            self.optimizer += self._optimizer
        self._ended_s, self._data, self._optimizer = now, 0.0, 0.0

    def interrupt(self) -> None:
        """Leaves the current step out: it has a pause, or is not watched."""
        self._ended_s = None

    def message(self) -> list[float]:
        """Returns steps, seconds, and those of data and optimizer."""
        return [self.steps, self.seconds, self.data, self.optimizer]
