"""Wraps the few points of torch that tell of training. Loaded once torch has been imported."""

from __future__ import annotations

import atexit
import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..metering import VARIABLE as CHANNEL
from ..metering import Channel
from . import DIAGNOSE, VARIABLE
from .diagnoser import Diagnoser
from .observer import Observer

if TYPE_CHECKING:
    Function = Callable[..., Any]


def install(torch: Any) -> None:
    """Begins to watch this process; what cannot be watched leaves it as it is."""
    watch = Diagnoser if os.environ.get(VARIABLE) == DIAGNOSE else Observer
    observer = watch(torch, Channel(os.environ[CHANNEL]))
    observer.tell(
        {
            "hello": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "program": sys.argv[0] if getattr(sys, "argv", None) else "",
            }
        }
    )
    try:
        _wrap(torch, observer)
    except Exception as error:
        observer.points.fail(error)
    os.register_at_fork(after_in_child=observer.restart)
    atexit.register(observer.finish)


def _wrap(torch: Any, observer: Observer) -> None:
    points = observer.points
    # These two stay registered for good: torch iterates over them as it calls them.
    optimizer = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(points.guarded(observer.step_begins))
    optimizer.register_optimizer_step_post_hook(points.guarded(observer.step_ended))

    def fetch(original: Function) -> Function:
        def fetch_watched(iterator: Any) -> Any:
            fetching(iterator)
            batch = observer.take(original, iterator)
            fetched(iterator, batch)
            return batch

        fetching, fetched = points.guarded(observer.fetching), points.guarded(observer.fetched)
        return fetch_watched

    def backward(original: Function) -> Function:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            begins(tensors)
            original(tensors, *args, **kwargs)
            ended()

        begins, ended = points.guarded(observer.backward_begins), points.guarded(observer.backward_ended)
        return backward

    def evaluate(original: Function) -> Function:
        def eval(module: Any) -> Any:
            evaluates(module)
            return original(module)

        evaluates = points.guarded(observer.evaluates)
        return eval

    def scale(original: Function) -> Function:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            scaled(result, outputs)
            return result

        scaled = points.guarded(observer.scaled)
        return scale

    points.replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", fetch)
    points.replace(torch.autograd, "backward", backward)
    points.replace(torch.nn.Module, "eval", evaluate)
    points.replace(torch.amp.grad_scaler.GradScaler, "scale", scale)
