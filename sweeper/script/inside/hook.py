"""Wraps the few functions of torch that reveal training. It is loaded once torch has been imported.

_BaseDataLoaderIter.__next__, _next_index, _reset     batches, and the rows that were asked for
autograd.backward, autograd.grad                      backward passes and losses
GradScaler.scale                                      losses before they were scaled
hooks before and after each optimizer's step          steps; where a training rests
Module.eval                                           evaluations

Steps like those before are only counted (`fast_path`); `observer` handles all others.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import changes
from ..metering import VARIABLE as CHANNEL
from ..metering import Channel
from . import EXECUTE, LOSSES_VARIABLE, RECORD, VARIABLE
from .observer import TrainingObserver
from .recorder import Recorder
from .rest import wrap_handler
from .samples import PASS, ROWS, forget_indices, note_index

if TYPE_CHECKING:
    Function = Callable[..., Any]


def install(torch: Any) -> None:
    """Begins to watch this process; leaves it unchanged if it cannot be watched."""
    mode = os.environ[VARIABLE]
    if mode == EXECUTE:
        changes.apply(torch, os.environ.get(changes.VARIABLE, ""), changes.complain)
        return
    watch = Recorder if mode == RECORD else TrainingObserver
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
        # Changes come first, so that the changed code is watched as well.
        changes.apply(torch, os.environ.get(changes.VARIABLE, ""), observer.tell)
        _wrap(torch, observer)
        observer.begin()
    except Exception as error:
        observer.points.fail(error)
    os.register_at_fork(after_in_child=observer.restart)
    atexit.register(observer.points.guard(observer.finish))


def _wrap(torch: Any, observer: TrainingObserver) -> None:
    """Wraps what a training loop calls, in the order of a step.

        the loader's `__next__`     fetch_begins, take, fetch_ended
        `autograd.backward`         backward_begins, backward_ended
        `autograd.grad`             grad_begins, backward_ended, if `backward` is never called
        the optimizer's `step`      step_begins, step_ended
        `Module.eval`               evaluation_begins

    The right side is called on the observer. While `fast.is_on`, the wrappers only add numbers up; whatever
    is unlike the steps before leaves that path.
    """
    points = observer.points
    reads_all = os.environ.get(LOSSES_VARIABLE) == "all"
    fast, clock, has_grad = observer.fast, time.perf_counter, torch.is_grad_enabled
    rest_page, rest = observer.rest_page, points.guard(observer.rest)
    leave_fast_path, send_counted = (
        points.guard(observer.leave_fast_path),
        points.guard(observer.send_counted),
    )
    step_begins, step_ended = points.guard(observer.step_begins), points.guard(observer.step_ended)

    # Named parameters cost less than `*args`.
    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not fast.is_on:
            step_begins(optimizer)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if fast.is_on:
            if fast.samples_ahead and id(optimizer) == fast.optimizer:
                fast.steps += 1
                fast.samples += fast.samples_ahead
                fast.samples_ahead = 0
                if fast.steps >= fast.look_at:
                    if fast.look(clock()):
                        send_counted()
                    if rest_page[0]:
                        rest()
                return
            leave_fast_path()
        step_ended(optimizer)

    # These two stay registered for good: torch iterates over them as it calls them.
    optimizer = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(before_step)
    optimizer.register_optimizer_step_post_hook(after_step)

    def fetch(original: Function) -> Function:
        def fetch_watched(iterator: Any) -> Any:
            if fast.is_on:
                # `__dict__` is not used: it would make one and slow every later use of the iterator.
                if getattr(iterator, PASS, None) is fast.feeding_pass and has_grad():
                    batch = original(iterator)
                    try:
                        fast.samples_ahead += fast.read(batch)
                    except Exception:
                        # This batch is unlike the ones before.
                        leave_fast_path()
                        ended(iterator, batch)
                    return batch
                leave_fast_path()
            begins(iterator)
            batch = observer.take(original, iterator)
            ended(iterator, batch)
            return batch

        begins, ended = points.guard(observer.fetch_begins), points.guard(observer.fetch_ended)
        return fetch_watched

    def backward(original: Function) -> Function:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not fast.is_on:
                begins(tensors)
                original(tensors, *args, **kwargs)
                ended()
                return
            if fast.backward is not None and not reads_all:
                fast.backward.rest()
            try:
                if tensors.is_cpu:
                    fast.loss += tensors.item()
                    fast.num_losses += 1
                else:
                    take_loss(tensors)
            except (AttributeError, RuntimeError, ValueError):
                # The loss is not a single number.
                take_loss(tensors)
            original(tensors, *args, **kwargs)

        begins, ended = points.guard(observer.backward_begins), points.guard(observer.backward_ended)
        take_loss = points.guard(observer.take_loss)
        return backward

    def grad(original: Function) -> Function:
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if observer.has_backward:
                return original(outputs, *args, **kwargs)
            begins(outputs)
            gradients = original(outputs, *args, **kwargs)
            ended()
            return gradients

        begins, ended = points.guard(observer.grad_begins), points.guard(observer.backward_ended)
        return grad

    def evaluate(original: Function) -> Function:
        def eval(module: Any) -> Any:
            if fast.is_on:
                leave_fast_path()
            begins(module)
            return original(module)

        begins = points.guard(observer.evaluation_begins)
        return eval

    def scale(original: Function) -> Function:
        def scale(scaler: Any, outputs: Any) -> Any:
            if fast.is_on:
                leave_fast_path()
            result = original(scaler, outputs)
            note_scaled_loss(result, outputs)
            return result

        note_scaled_loss = points.guard(observer.note_scaled_loss)
        return scale

    def next_index(original: Function) -> Function:
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            rows = getattr(iterator, ROWS, None)
            if rows is not None and type(index) is list:
                rows.append(len(index))
            else:
                note_index(iterator, index)
            return index

        return next_index

    def reset(original: Function) -> Function:
        def reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            forget_indices(iterator)
            original(iterator, *args, **kwargs)

        return reset

    iterators = torch.utils.data.dataloader._BaseDataLoaderIter
    points.replace(torch.utils.data._utils.signal_handling, "_set_SIGCHLD_handler", wrap_handler)
    points.replace(iterators, "__next__", fetch)
    points.replace(iterators, "_next_index", next_index)
    points.replace(iterators, "_reset", reset)
    fast.backward = points.replace(torch.autograd, "backward", backward)
    points.replace(torch.autograd, "grad", grad)
    points.replace(torch.nn.Module, "eval", evaluate)
    # Older versions of torch have it elsewhere.
    scaler = getattr(getattr(torch.amp, "grad_scaler", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    points.replace(scaler, "scale", scale)
