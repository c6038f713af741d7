"""Provides the meter as a callback of the Hugging Face Trainer.

    from sweeper.integrations.transformers import for_transformers
    trainer = transformers.Trainer(..., callbacks=[for_transformers()])

Outside of a sweep the callback does nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from sweeper.metering import meter


def for_transformers() -> Any:
    """Returns a `transformers.TrainerCallback` that reports steps, logged losses and evaluations."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class MeterCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._meter = meter()
            self._loss: Any = None
            self._name, self._evaluated = "", None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            samples = args.train_batch_size * args.gradient_accumulation_steps
            self._meter.step(samples=samples, loss=self._loss)
            self._loss = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            # The mean since the last log, reported with the next step.
            self._loss = (logs or {}).get("loss", self._loss)

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            # With several data sets, this is called for each one; the first one's loss counts.
            found = metrics or {}
            self._name = self._name or _loss_in(found)
            self._evaluated = found.get(self._name, self._evaluated)
            if self._evaluated is not None:
                self._meter.evaluated(self._evaluated)

    return MeterCallback()


def _loss_in(metrics: Mapping[str, Any]) -> str:
    """Returns the name of an evaluation's loss, which may include its data set; empty without one."""
    named = [name for name in metrics if name.startswith("eval_") and name.endswith("_loss")]
    return "eval_loss" if "eval_loss" in named else next(iter(named), "")
