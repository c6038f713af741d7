"""Finds the lines where the user's own code makes the loader and the optimizer of a training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .lines import line_of
from .points import Points


class Places:
    """Notes the line of each loader and optimizer as it is made."""

    def __init__(self, torch: Any, points: Points) -> None:
        self._lines: dict[int, str] = {}
        loader, optimizer = torch.utils.data.DataLoader, torch.optim.Optimizer
        self._wrappers = [
            points.replace(loader, "__init__", self._wrap_init(lambda instance: instance._index_sampler)),
            points.replace(optimizer, "__init__", self._wrap_init(lambda instance: instance)),
        ]

    def _wrap_init(self, key: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(instance: Any, *args: Any, **kwargs: Any) -> None:
                original(instance, *args, **kwargs)
                try:
                    path, line = line_of(sys._getframe(1))
                    self._lines[id(key(instance))] = f"{path}:{line}" if path else ""
                except Exception:
                    # Loaders of other kinds have no known place.
                    return

            return init

        return make

    def stop(self, sampler: Any, optimizer: Any) -> dict[str, str]:
        """Stops noting, and returns the absolute `file:line` of the loader and the optimizer, if known.

        Args:
            sampler: Sampler of the loader whose batches are trained on; None without one.
        """
        for wrapper in self._wrappers:
            wrapper.restore()
        instances = {"loader": sampler, "optimizer": optimizer}
        lines = {
            name: self._lines.get(id(value), "") for name, value in instances.items() if value is not None
        }
        return {name: line for name, line in lines.items() if line}
