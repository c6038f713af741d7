"""The usual step in as few instructions as possible: one loader, one optimizer, no evaluation.

A step evicts our code from the processor's caches, so each Python call costs several times what a
micro-benchmark shows. The wrappers in `hook` therefore only count usual steps, and pass the counts on to
the observer with each message. Anything unusual leaves the fast path, and the observer handles it.
"""

from __future__ import annotations

from typing import Any

MIN_STEPS = 8
"""Steps of one kind before the fast path is taken."""


class FastPath:
    """Counters since they were last passed on.

    Attributes:
        is_on: Whether steps are only counted.
        moment_s: End of the latest step.
        due_s: When the next message is due.
        feeding_pass: The loader's pass that feeds them.
        optimizer: The only one that steps.
        steps: Steps that have ended.
        samples: Samples of the batches fetched for them.
        samples_ahead: Samples fetched since the latest step.
        backwards: Backwards since the latest step.
        loss, num_losses: Sum and number of the losses.
        num_alike: Steps of one kind in a row.
    """

    __slots__ = (
        *(
            "samples_ahead",
            "backwards",
            "due_s",
            "is_on",
            "loss",
            "moment_s",
            "num_alike",
            "num_losses",
            "optimizer",
        ),
        *("samples", "feeding_pass", "steps"),
    )

    def __init__(self) -> None:
        self.moment_s = self.due_s = 0.0
        self.feeding_pass: Any = None
        self.optimizer = 0
        self.end()
        self.clear()

    def end(self) -> None:
        """Leaves the fast path."""
        self.is_on, self.num_alike = False, 0

    def clear(self) -> None:
        """Sets all counters to zero."""
        self.steps = self.samples = self.samples_ahead = self.backwards = self.num_losses = 0
        self.loss = 0.0

    def step(self, optimizer: int, source: Any, *, is_usual: bool) -> None:
        """Notes a step that the observer handled; takes the fast path after enough of one kind."""
        is_alike = is_usual and self.optimizer == optimizer and self.feeding_pass is source
        self.num_alike = self.num_alike + 1 if is_alike else 0
        self.optimizer, self.feeding_pass = optimizer, source
        self.is_on = self.num_alike >= MIN_STEPS
