"""Wraps the few functions of torch that reveal training. It is loaded once torch has been imported.

Around torch's own function (·), each wrapper calls these, in this order. Most steps are only counted
(`fast_path`). A wrapper that meets anything unusual leaves the fast path, and the step is watched.

    the script             wrapped              a step that is watched               one that is counted
    ──────────────────────────────────────────────────────────────────────────────────────────────────────
    for batch in loader    loader.__iter__      pass_begins ·                        the same
                           iterator._reset      forget_indices ·                     the same
                           iterator.__next__    fetch_begins fetch(·) fetch_ended    · adds the samples
                             └ ._next_index     · note_index                         the same
    scaler.scale(loss)     GradScaler.scale     · note_scaled_loss                   none: it is unusual
    loss.backward()        autograd.backward    backward_begins · backward_ended     adds the loss ·
    autograd.grad(loss)    autograd.grad        grad_begins · backward_ended         the same
    optimizer.step()       hook before it       step_begins                          nothing
                           hook after it        step_ended                           adds the step; at times,
                                                                                     send_counted and
                                                                                     obey_request
    model.eval()           Module.eval          evaluation_begins ·                  none: it is unusual
    torch.save(state)      torch.save           · saved                              the same

What is called in the observer is guarded, so that it never raises in the script, but for `fetch`, which asks
the loader. What runs in each step uses local names, since attributes cost more.
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import changes
from ..metering import METER_VARIABLE, Channel
from . import EXECUTE, HOOK_VARIABLE, LOSSES_VARIABLE, RECORD
from .observer import TrainingObserver
from .recorder import Recorder
from .samples import PASS, ROWS, forget_indices, note_index
from .step_request import wrap_handler

if TYPE_CHECKING:
    Function = Callable[..., Any]


def install(torch: Any) -> None:
    """Begins to watch this process; leaves it unchanged if it cannot be watched."""
    mode = os.environ[HOOK_VARIABLE]
    if mode == EXECUTE:
        changes.apply(torch, os.environ.get(changes.CHANGES_VARIABLE, ""), changes.complain)
        return
    watch = Recorder if mode == RECORD else TrainingObserver
    observer = watch(torch, Channel(os.environ[METER_VARIABLE]))
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
        changes.apply(torch, os.environ.get(changes.CHANGES_VARIABLE, ""), observer.tell)
        _wrap(torch, observer)
        observer.begin()
    except Exception as error:
        observer.points.fail(error)
    os.register_at_fork(after_in_child=observer.restart)
    atexit.register(observer.points.guard(observer.finish))


def _wrap(torch: Any, observer: TrainingObserver) -> None:
    _watch_optimizers(observer)
    replace = observer.points.replace
    iterators = torch.utils.data.dataloader._BaseDataLoaderIter
    replace(torch.utils.data._utils.signal_handling, "_set_SIGCHLD_handler", wrap_handler)
    replace(torch.utils.data.DataLoader, "__iter__", functools.partial(_watch_pass, observer))
    replace(torch, "save", functools.partial(_watch_save, observer))
    replace(iterators, "__next__", functools.partial(_watch_fetch, torch, observer))
    replace(iterators, "_next_index", _watch_next_index)
    replace(iterators, "_reset", _watch_reset)
    backward = replace(torch.autograd, "backward", functools.partial(_watch_backward, observer))
    observer.fast.backward = backward
    replace(torch.autograd, "grad", functools.partial(_watch_grad, observer))
    replace(torch.nn.Module, "eval", functools.partial(_watch_evaluation, observer))
    # Older versions of torch have it elsewhere.
    scaler = getattr(getattr(torch.amp, "grad_scaler", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    replace(scaler, "scale", functools.partial(_watch_scale, observer))


def _watch_optimizers(observer: TrainingObserver) -> None:
    guard = observer.points.guard
    fast, clock, request_page = observer.fast, time.perf_counter, observer.request_page
    step_begins, step_ended = guard(observer.step_begins), guard(observer.step_ended)
    leave_fast_path, send_counted = guard(observer.leave_fast_path), guard(observer.send_counted)
    obey_request = guard(observer.obey_request)

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
                    if request_page[0]:
                        obey_request()
                return
            leave_fast_path()
        step_ended(optimizer)

    # These two stay registered for good: torch iterates over them as it calls them.
    optimizers = sys.modules["torch.optim.optimizer"]
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)


def _watch_pass(observer: TrainingObserver, original: Function) -> Function:
    pass_begins = observer.points.guard(observer.pass_begins)

    def begin(loader: Any) -> Any:
        pass_begins(loader)
        return original(loader)

    return begin


def _watch_save(observer: TrainingObserver, original: Function) -> Function:
    saved, main = observer.points.guard(observer.saved), threading.main_thread()

    def save(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = original(*args, **kwargs)
        if threading.current_thread() is main:
            saved(time.perf_counter() - began_s, sys._getframe(1))
        return result

    return save


def _watch_fetch(torch: Any, observer: TrainingObserver, original: Function) -> Function:
    guard = observer.points.guard
    fast, has_grad = observer.fast, torch.is_grad_enabled
    fetch_begins, fetch_ended = guard(observer.fetch_begins), guard(observer.fetch_ended)
    leave_fast_path = guard(observer.leave_fast_path)

    def fetch(iterator: Any) -> Any:
        if fast.is_on:
            # `__dict__` is not used: it would make one and slow every later use of the iterator.
            if getattr(iterator, PASS, None) is fast.feeding_pass and has_grad():
                batch = original(iterator)
                try:
                    fast.samples_ahead += fast.read(batch)
                except Exception:
                    # This batch is unlike the ones before.
                    leave_fast_path()
                    fetch_ended(iterator, batch)
                return batch
            leave_fast_path()
        fetch_begins(iterator)
        batch = observer.fetch(original, iterator)
        fetch_ended(iterator, batch)
        return batch

    return fetch


def _watch_next_index(original: Function) -> Function:
    def next_index(iterator: Any) -> Any:
        index = original(iterator)
        rows = getattr(iterator, ROWS, None)
        if rows is not None and type(index) is list:
            rows.append(len(index))
        else:
            note_index(iterator, index)
        return index

    return next_index


def _watch_reset(original: Function) -> Function:
    def reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
        forget_indices(iterator)
        original(iterator, *args, **kwargs)

    return reset


def _watch_scale(observer: TrainingObserver, original: Function) -> Function:
    guard = observer.points.guard
    fast, leave_fast_path = observer.fast, guard(observer.leave_fast_path)
    note_scaled_loss = guard(observer.note_scaled_loss)

    def scale(scaler: Any, outputs: Any) -> Any:
        if fast.is_on:
            leave_fast_path()
        result = original(scaler, outputs)
        note_scaled_loss(result, outputs)
        return result

    return scale


def _watch_backward(observer: TrainingObserver, original: Function) -> Function:
    guard = observer.points.guard
    fast, reads_all = observer.fast, os.environ.get(LOSSES_VARIABLE) == "all"
    backward_begins, backward_ended = guard(observer.backward_begins), guard(observer.backward_ended)
    read_loss = guard(observer.read_loss)

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not fast.is_on:
            backward_begins(tensors)
            original(tensors, *args, **kwargs)
            backward_ended()
            return
        if fast.backward is not None and not reads_all:
            fast.backward.suspend()
        try:
            if tensors.is_cpu:
                fast.loss += tensors.item()
                fast.num_losses += 1
            else:
                read_loss(tensors)
        except (AttributeError, RuntimeError, ValueError):
            # The loss is not a single number.
            read_loss(tensors)
        original(tensors, *args, **kwargs)

    return backward


def _watch_grad(observer: TrainingObserver, original: Function) -> Function:
    guard = observer.points.guard
    grad_begins, backward_ended = guard(observer.grad_begins), guard(observer.backward_ended)

    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.has_backward:
            return original(outputs, *args, **kwargs)
        grad_begins(outputs)
        gradients = original(outputs, *args, **kwargs)
        backward_ended()
        return gradients

    return grad


def _watch_evaluation(observer: TrainingObserver, original: Function) -> Function:
    guard = observer.points.guard
    fast, leave_fast_path = observer.fast, guard(observer.leave_fast_path)
    evaluation_begins = guard(observer.evaluation_begins)

    def evaluate(module: Any) -> Any:
        if fast.is_on:
            leave_fast_path()
        evaluation_begins(module)
        return original(module)

    return evaluate
