"""The meter as a callback of the Hugging Face Trainer and of Lightning.

    from sweeper.callbacks import for_lightning, for_transformers
    trainer = transformers.Trainer(..., callbacks=[for_transformers()])
    trainer = lightning.Trainer(..., callbacks=[for_lightning()])

Neither library is imported before it is asked for. Outside of a sweep a callback does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweeper.metering import meter


def for_transformers() -> Any:
    """Returns a `transformers.TrainerCallback`: steps of the Trainer, its logged losses, its evaluations."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class MeterCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._meter = meter()
            self._loss: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            samples = args.train_batch_size * args.gradient_accumulation_steps
            self._meter.step(samples=samples, loss=self._loss)
            self._loss = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            # The mean since it was logged last; it is told with the next step.
            self._loss = (logs or {}).get("loss", self._loss)

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            loss = (metrics or {}).get("eval_loss")
            if loss is not None:
                self._meter.evaluated(loss)

    return MeterCallback()


def for_lightning() -> Any:
    """Returns a Lightning `Callback`: batches that were trained on, their loss, validation and its loss.

    Of the two packages (`lightning` and `pytorch_lightning`), the one the script has imported.
    """
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = importlib.import_module(name).Callback

    class MeterCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._meter = meter()
            self._pause = contextlib.ExitStack()

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            self._meter.step(samples=_num_samples(batch), loss=loss)

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            self._pause.enter_context(self._meter.pause())

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            loss = trainer.callback_metrics.get("val_loss")
            if loss is not None and not trainer.sanity_checking:
                self._meter.evaluated(loss)
            self._pause.close()

    return MeterCallback()


def _num_samples(batch: Any) -> int:
    """Returns the length of the first tensor in a batch, however it is nested; 0 where none is seen."""
    return next(_lengths(batch), 0)


def _lengths(part: Any) -> Iterator[int]:
    shape = getattr(part, "shape", None)
    if shape is not None:
        yield from map(int, shape[:1])
        return
    inside: Iterable[Any] = part if isinstance(part, list | tuple) else ()
    if isinstance(part, Mapping):
        inside = part.values()
    elif dataclasses.is_dataclass(part):
        inside = (getattr(part, each.name) for each in dataclasses.fields(part))
    for each in inside:
        yield from _lengths(each)
