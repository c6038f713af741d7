"""Tells when a training goes on to another stage, in which another optimizer steps."""

from __future__ import annotations

import weakref
from typing import Any

MIN_STAGE_STEPS = 8
"""Number of steps without an earlier optimizer after which they are a stage; others take turns."""


class Stages:
    """The stages of a training so far.

    Attributes:
        number: Number of stages after the first.
        began_at: Number of steps before the latest stage.
    """

    def __init__(self) -> None:
        self.number = self.began_at = 0
        # By id: the optimizer, and its first and latest step.
        self._steps: dict[int, tuple[Any, int, int]] = {}
        self._newest_at = 0

    def step(self, optimizer: Any, steps: int) -> None:
        """Notes a step of an optimizer, before which `steps` were taken."""
        key = id(optimizer)
        entry = self._steps.get(key)
        is_known = entry is not None and entry[0]() is optimizer
        first = entry[1] if entry is not None and is_known else steps
        self._steps[key] = weakref.ref(optimizer), first, steps
        if not is_known:
            self._newest_at = steps
        if self._newest_at and steps - self._newest_at == MIN_STAGE_STEPS:
            earlier = [key for key, (_, first, _) in self._steps.items() if first < self._newest_at]
            if all(self._steps[key][2] < self._newest_at for key in earlier):
                self.number += 1
                self.began_at = self._newest_at
                for key in earlier:
                    del self._steps[key]
