"""Counts usual steps in as few instructions as possible: one loader, one optimizer, no evaluation.

A step evicts our code from the processor's caches, so each Python call costs several times what a
micro-benchmark shows. The wrappers in `hook` therefore only count usual steps, and pass the counts on to
the observer with each message; backward passes and losses are watched at some steps only. Anything
unusual leaves the fast path, and the observer handles it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .points import Wrapper
from .samples import KnownLoader, Pass

MIN_ALIKE = 8
"""Number of steps of one kind before the fast path is taken."""

LOOK_SECONDS = 0.008
MAX_UNSEEN = 8
"""Mean number of steps from one look to the next: as many as fit into `LOOK_SECONDS`, up to this."""


class FastPath:
    """Counters since they were last passed on.

    A look, every few milliseconds, reads the clock and the next loss. The number of steps between two
    looks is random, since a fixed number could meet the same batches in every pass.

    Attributes:
        is_on: Whether steps are only counted.
        moment_s: Time of the latest look; the observer's `_moment_s` is that of the latest step.
        step_s: Seconds per step before that look.
        look_at: Number of `steps` at which the next look is due.
        due_s: Time at which the next message is due.
        feeding_pass: The loader's pass that feeds the steps.
        read: Returns the number of samples in a batch.
        optimizer: Id of the only optimizer that steps.
        steps: Number of steps that have ended.
        samples: Samples of the batches fetched for those steps.
        samples_ahead: Samples fetched since the latest step.
        loss, num_losses: Sum and number of the losses.
        num_alike: Number of steps of one kind in a row.
        backward: The wrapper of torch's backward, which is suspended between two looks.
    """

    __slots__ = (
        *("_draw", "_loader", "_looked_at", "backward", "due_s", "feeding_pass", "is_on", "look_at"),
        *("loss", "moment_s", "num_alike", "num_losses", "optimizer", "read", "samples", "samples_ahead"),
        *("step_s", "steps"),
    )

    def __init__(self) -> None:
        self.moment_s = self.step_s = self.due_s = 0.0
        self.feeding_pass: Pass | None = None
        self._loader: KnownLoader | None = None
        self.read: Callable[[Any], int] = len
        self.optimizer = self.num_alike = 0
        # The script's generators are not used.
        self._draw = random.Random(0).random
        self.backward: Wrapper | None = None
        self.end()
        self.clear()

    def end(self) -> None:
        """Leaves the fast path. The next step of the same kind takes it again."""
        self.is_on = False
        if self.backward is not None:
            self.backward.resume()

    def clear(self) -> None:
        """Sets all counters to zero, at a look or off the fast path."""
        self.steps = self.samples = self.samples_ahead = self.num_losses = self._looked_at = 0
        self.look_at = 1
        self.loss = 0.0

    def step(self, optimizer: int, source: Pass | None, now: float, *, is_usual: bool) -> None:
        """Notes a step that the observer handled; takes the fast path after enough of one kind."""
        loader = None if source is None else source.loader
        is_alike = is_usual and self.optimizer == optimizer and self._loader is loader
        self.num_alike = self.num_alike + 1 if is_alike else 0
        self.optimizer, self.feeding_pass, self._loader = optimizer, source, loader
        if source is not None:
            self.read = source.read
        self.is_on = self.num_alike >= MIN_ALIKE
        self.moment_s = now

    def look(self, now: float) -> bool:
        """Reads the clock, watches the next backward pass, and draws when to look again.

        Returns:
            Whether a message is due.
        """
        if self.backward is not None:
            self.backward.resume()
        steps = self.steps
        self.step_s = step_s = (now - self.moment_s) / (steps - self._looked_at)
        self.moment_s, self._looked_at = now, steps
        unseen = LOOK_SECONDS / step_s if step_s * MAX_UNSEEN > LOOK_SECONDS else MAX_UNSEEN
        self.look_at = steps + 1 + int(2 * unseen * self._draw())
        return now >= self.due_s

    def latest_s(self, now: float) -> float:
        """Returns an estimate of when the latest step ended."""
        return min(now, self.moment_s + (self.steps - self._looked_at) * self.step_s)
