"""Measures evaluations and other pauses: time between two training steps that is not training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .points import Points, Wrapper

MIN_STEPS_BETWEEN = 2
"""Minimum steps between evaluations: a model put into evaluation mode at every step is part of the step."""


class Pauses:
    """Adds up the time of evaluations.

    An evaluation begins when a model is put into evaluation mode, or a loader that does not train is
    asked for a batch. It ends when the model is put back into training mode, a loader that trains is
    asked for a batch, or a backward pass begins.

    Attributes:
        total_s: Seconds of the pauses that have ended.
        began_s: Time at which the current pause began; None outside of a pause.
        ended_s: Time at which the latest pause ended; 0 before that.
        is_evaluating: Whether a model is in evaluation mode.
    """

    def __init__(self, torch: Any, points: Points, changed: Callable[[], None]) -> None:
        self._torch, self._points, self._changed = torch, points, changed
        self.total_s = 0.0
        self.began_s: float | None = None
        self.ended_s = 0.0
        self.is_evaluating = False
        self._has_batches = False
        self._last_steps = 0
        self._train_wrapper: Wrapper | None = None

    def evaluation_begins(self, module: Any, now: float, steps: int) -> None:
        """Notes that a module was put into evaluation mode after `steps` steps."""
        if self.is_evaluating or not any(parameter.requires_grad for parameter in module.parameters()):
            # A module without trainable parameters is a frozen teacher or feature extractor.
            return
        is_rare = steps - self._last_steps >= MIN_STEPS_BETWEEN
        self._last_steps = steps
        if is_rare:
            self.is_evaluating = True
            self._begin(now)
            # Only in a pause, since some programs call `train` at every step, on hundreds of modules.
            if self._train_wrapper is None:
                self._train_wrapper = self._points.replace(self._torch.nn.Module, "train", self._train)
            else:
                self._train_wrapper.resume()

    def _train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(module: Any, mode: bool = True) -> Any:
            if mode and self.is_evaluating:
                end()
            return original(module, mode)

        end = self._points.guard(lambda: self._end(time.perf_counter()))
        return train

    def fetch_begins(self, trains: bool, now: float, steps: int) -> None:
        """Notes that a loader is asked for a batch, to train on or for another purpose."""
        if trains and not self.is_evaluating:
            if self.began_s is not None:
                self._end(now)
        elif steps:
            self._has_batches = True
            self._begin(now)

    def backward(self, fetch_began: float, is_news: bool) -> None:
        """Ends the pause in which a backward pass begins; training resumed with the latest batch.

        Args:
            fetch_began: Time at which that batch was asked for.
            is_news: Whether that batch's loader was taken for one that does not train.
        """
        assert self.began_s is not None
        if self._has_batches and not is_news:
            self._end(max(fetch_began, self.began_s))
        else:
            # This was no evaluation: nothing was evaluated, or a new loader began to train.
            self._end(self.began_s)

    def _begin(self, now: float) -> None:
        if self.began_s is None:
            self.began_s = now
            self._changed()

    def _end(self, now: float) -> None:
        assert self.began_s is not None
        self.total_s += now - self.began_s
        self.began_s, self.ended_s = None, now
        self.is_evaluating = self._has_batches = False
        if self._train_wrapper is not None:
            self._train_wrapper.suspend()
        self._changed()
