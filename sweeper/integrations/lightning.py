"""Provides the meter as a Lightning callback.

    from sweeper.integrations.lightning import for_lightning
    trainer = lightning.Trainer(..., callbacks=[for_lightning()])

Outside of a sweep the callback does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweeper.metering import Meter, meter


def for_lightning() -> Any:
    """Returns a Lightning `Callback` that reports training batches, their loss and the validation loss.

    It derives from whichever of `lightning` and `pytorch_lightning` the script has imported.
    """
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = importlib.import_module(name).Callback

    class MeterCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._meter = Meter()
            self._pause = contextlib.ExitStack()

        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            # The number of ranks is known only now, since Lightning does not set RANK.
            self._meter = meter() if trainer.is_global_zero else Meter()

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
    """Returns the length of the first tensor in a batch, however nested; 0 if there is none."""
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
