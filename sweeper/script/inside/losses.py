"""Reads the training loss of a step, unscaled and as if it had been computed on the whole batch."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from ..metering import Losses

LEARNING_STEPS = 3
"""Number of first steps that show whether losses are divided by the accumulated backward passes."""
TOLERANCE = 1e-3
COPY_SECONDS = 0.01
"""Seconds between two losses that are copied from a GPU."""


class StepLosses:
    """Reads the losses of backward passes; reads those on a GPU only now and then, without waiting."""

    def __init__(self, torch: Any) -> None:
        self._is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._losses = Losses()
        self._scaled: Callable[[], Any] | None = None
        self._unscaled: Callable[[], Any] | None = None
        self._divisor: float | None = None
        self._factor = 1.0
        self._copied_s = 0.0

    def note_scaled_loss(self, result: Any, outputs: Any) -> None:
        """Notes that a GradScaler has multiplied a loss by its scale."""
        if hasattr(outputs, "backward") and result is not outputs:
            self._scaled, self._unscaled = weakref.ref(result), weakref.ref(outputs)

    @property
    def are_scaled(self) -> bool:
        """Whether a GradScaler is in use."""
        return self._scaled is not None

    def add(self, total: float, count: int) -> None:
        """Adds losses that were read elsewhere, by their sum."""
        self._losses.add_number(total, count)

    def read(self, tensors: Any, steps: int) -> None:
        """Reads the loss that a backward pass begins with; ignores anything but a single number."""
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if self._scaled is not None and self._unscaled is not None and loss is self._scaled():
            loss = self._unscaled()
        try:
            if steps < LEARNING_STEPS:
                self._divisor = _divisor_of(loss)
            if loss.is_cpu:
                self._losses.add_number(loss.item())
            elif loss.numel() == 1 and time.perf_counter() - self._copied_s >= COPY_SECONDS:
                self._copied_s = time.perf_counter()
                if not self._is_capturing():
                    self._losses.add(loss)
        except (AttributeError, RuntimeError, ValueError):
            return

    def step_ended(self, steps: int, backwards: int) -> None:
        """Notes the number of backward passes of a step."""
        if steps <= LEARNING_STEPS:
            # A step may follow another on the same batch without a counted backward pass in between.
            divisor = self._divisor
            is_shared = backwards > 1 and divisor is not None and abs(divisor / backwards - 1) < TOLERANCE
            self._factor = float(backwards) if is_shared else 1.0

    def pop_mean(self) -> float | None:
        """Returns the mean loss since the last call; None if there is none."""
        mean = self._losses.pop_mean()
        return None if mean is None else mean * self._factor


def _divisor_of(loss: Any) -> float | None:
    """Returns the number by which a loss was divided last; None if it was not."""
    function = loss.grad_fn
    name = type(function).__name__
    if not name.startswith(("DivBackward", "MulBackward")):
        return None
    try:
        saved = function._saved_other
        # Reading a tensor on the device would wait for it.
        other = float(saved) if saved.is_cpu else 0.0
    except (AttributeError, RuntimeError, TypeError, ValueError):
        # The tensor needs gradients itself, or was freed.
        return None
    if not other:
        return None
    return other if name.startswith("Div") else 1 / other
