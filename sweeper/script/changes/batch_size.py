"""Enlarges the batches of a training, and its learning rate with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from .change import CHANGES_TRAINING, Change, Editor, ReportCallback
from .facts import has_loader

FACTORS = (2, 4, 8, 16, 32, 64)
LINEAR = ("SGD",)
"""Optimizers whose rate grows linearly with the batch (Goyal et al., 2017); others use the square root."""


class BatchSize(Change):
    """Changes the batch size of loaders that shuffle and have the script's batch size.

    A value such as `2048/64` is the new size and the script's own.
    """

    name = "batch_size"
    choices = ()
    kind = CHANGES_TRAINING
    why = "each step trains on more samples; the learning rate grows with the batch"

    def accepts(self, value: str) -> bool:
        """Returns whether a text is a valid value."""
        new, _, old = value.partition("/")
        return new.isdecimal() and old.isdecimal() and int(new) > 0 and int(old) > 0

    def is_own(self, value: str) -> bool:
        """Returns whether a value leaves the script as it is."""
        new, _, old = value.partition("/")
        return new == old

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not facts.get("batch_size"):
            return "its batch size is unknown"
        return "" if has_loader(facts) else "its batches do not come from a DataLoader"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the loaders and optimizers that are made from now on."""
        new, old = map(int, value.split("/"))
        self._change_loaders(torch, old, new / old, report)
        self._change_rates(torch, new / old)

    def edit(self, editor: Editor) -> None:
        """Enlarges the batch of the loader and the rate of the optimizer."""
        factor = int(editor.value) / int(editor.original)
        editor.scale_argument("optimizer", "lr", lambda kind: _growth(kind, factor))
        editor.scale_argument("loader", "batch_size", lambda _: factor)

    def _change_loaders(self, torch: Any, old: int, factor: float, report: ReportCallback) -> None:
        data = torch.utils.data
        original = data.BatchSampler.__init__

        @functools.wraps(original)
        def init(batches: Any, sampler: Any, batch_size: int, *args: Any, **kwargs: Any) -> None:
            if batch_size == old and not isinstance(sampler, data.SequentialSampler):
                batch_size = round(batch_size * factor)
                report(True)
            original(batches, sampler, batch_size, *args, **kwargs)

        data.BatchSampler.__init__ = init
        loader_init = data.DataLoader.__init__

        @functools.wraps(loader_init)
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            loader_init(loader, *args, **kwargs)
            size = getattr(loader.batch_sampler, "batch_size", None)
            if loader.batch_size == old and size is not None and size != old:
                # Some scripts print the attribute or compute with it; it can only be set in `__dict__`.
                loader.__dict__["batch_size"] = size

        data.DataLoader.__init__ = make

    def _change_rates(self, torch: Any, factor: float) -> None:
        for kind in {value for value in vars(torch.optim).values() if _is_optimizer(torch, value)}:
            kind.__init__ = _scale_rate(kind.__init__, _growth(kind.__name__, factor))


def _growth(kind: str, factor: float) -> float:
    """Returns by how much the rate of an optimizer grows with the batch."""
    return factor if kind in LINEAR else math.sqrt(factor)


def _is_optimizer(torch: Any, value: Any) -> bool:
    base = torch.optim.Optimizer
    return isinstance(value, type) and issubclass(value, base) and value is not base


def _scale_rate(original: Any, times: float) -> Any:
    @functools.wraps(original)
    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        # AdamW's `__init__` calls Adam's.
        if not getattr(optimizer, "_sweeper_rated", False):
            optimizer._sweeper_rated = True
            for group in (*optimizer.param_groups, optimizer.defaults):
                if group.get("lr") is not None:
                    group["lr"] = group["lr"] * times

    return init
