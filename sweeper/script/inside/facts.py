"""Collects what a training really uses: its precision, optimizer, loader and threads.

A flag that changes none of these has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from ..changes.facts import Facts
from .places import Places
from .points import Points, Wrapper

_OTHER_PRECISIONS = ("apex", "deepspeed", "transformer_engine")
"""Modules that compute in another precision without autocast."""
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


class FactFinder:
    """Watches the first steps for autocast, which cannot be read from any object."""

    def __init__(self, torch: Any, points: Points) -> None:
        self._torch = torch
        self._places = Places(torch, points)
        self._autocast: Any = None
        self._wrapper: Wrapper | None = None
        # The oldest versions of torch have it elsewhere.
        if (modes := getattr(torch, "amp", None)) is not None:
            self._wrapper = points.replace(modes.autocast_mode.autocast, "__enter__", self._wrap_enter)
        self._recurs = False
        self._recurrent = points.replace(torch.nn.RNNBase, "__init__", self._wrap_recurrent)

    def _wrap_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(context: Any) -> Any:
            if getattr(context, "_enabled", False) and self._torch.is_grad_enabled():
                self._autocast = getattr(context, "fast_dtype", None)
            return original(context)

        return enter

    def _wrap_recurrent(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(layer: Any, *args: Any, **kwargs: Any) -> None:
            self._recurs = True
            original(layer, *args, **kwargs)

        return init

    def find(self, optimizer: Any, loader: Facts, sampler: Any = None) -> Facts:
        """Returns the facts, and stops watching.

        Args:
            loader: The loader's settings.
            sampler: The loader's sampler.
        """
        if self._wrapper is not None:
            self._wrapper.restore()
        self._recurrent.restore()
        facts: Facts = {**loader, "places": self._places.stop(sampler, optimizer)}
        facts["threads"] = self._torch.get_num_threads()
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            facts["ranks"] = int(distributed.get_world_size())
        compiled = sys.modules.get("torch._dynamo.utils")
        stats = getattr(compiled, "counters", {}).get("stats", {})
        facts["compiled"] = bool(stats.get("unique_graphs"))
        for group in getattr(optimizer, "param_groups", ())[:1]:
            facts["optimizer"] = type(optimizer).__name__
            facts["fused"] = bool(group.get("fused")) or "Fused" in type(optimizer).__name__
            for parameter in group["params"][:1]:
                facts["device"] = parameter.device.type
                if type(parameter).__name__ not in ("FlatParameter", "DTensor"):
                    self._autocast = self._autocast or parameter.dtype
        groups = getattr(optimizer, "param_groups", ())
        facts["convolves"] = any(parameter.dim() == 4 for group in groups for parameter in group["params"])
        facts["recurs"] = self._recurs
        facts.update(_backends(self._torch))
        is_wrapped = any(name in sys.modules for name in _OTHER_PRECISIONS)
        if self._autocast is not None and not is_wrapped:
            name = str(self._autocast).rpartition(".")[2]
            facts["precision"] = _PRECISIONS.get(name, name)
        return facts


def _backends(torch: Any) -> Facts:
    """Returns what the script has set of cuDNN and of tensor cores, as far as this torch can say."""
    cudnn, settings = torch.backends.cudnn, {}
    for name, owner, flag in (
        ("tf32", torch.backends.cuda.matmul, "allow_tf32"),
        ("cudnn_tf32", cudnn, "allow_tf32"),
        ("cudnn_search", cudnn, "benchmark"),
    ):
        try:
            settings[name] = bool(getattr(owner, flag))
        except (AttributeError, RuntimeError):
            # Newer versions refuse the older name once a script has used the newer one.
            continue
    return cast("Facts", settings)


def loader_settings(iterator: Any) -> Facts:
    """Returns the settings of a loader, as its iterator has them."""
    workers = int(getattr(iterator, "_num_workers", 0) or 0)
    is_pinned = bool(getattr(iterator, "_pin_memory", False))
    settings: Facts = {"num_workers": workers, "pin_memory": is_pinned}
    if workers:
        settings["prefetch_factor"] = int(getattr(iterator, "_prefetch_factor", None) or 2)
        settings["persistent_workers"] = bool(getattr(iterator, "_persistent_workers", False))
    return settings
