"""Finds the calls of the models that a script trains in its first step, and changes them from the second.

A model is the outermost module with parameters to train that is called with gradients on. It is found
when it is called, so neither its name nor its class must be known.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .change import ChangeRefusedError, ReportCallback, reason_of

MAX_CALLS = 8
"""Maximum calls of a model in a step. A loop over time makes more, and each changed call costs a little."""

SLOT = "_compiled_call_impl"
"""Attribute of a module that torch calls instead of `_call_impl`."""

if TYPE_CHECKING:
    Call = Callable[..., Any]
    # Takes a model and its current call, and returns its new call; both may raise ChangeRefusedError.
    Make = Callable[[Any, Call], Call]


def change_calls(torch: Any, make: Make, report: ReportCallback) -> None:
    """Changes the calls of the models that are trained, once the first step has ended.

    Where gradients are off, as in an evaluation, the calls stay as they were.
    """
    finder = _CallFinder(torch, make, report)
    modules = torch.nn.modules.module
    handles = [
        modules.register_module_forward_pre_hook(finder.call_begins),
        modules.register_module_forward_hook(finder.call_ended, always_call=True),
    ]

    def after_step(*_: Any) -> None:
        if handles:
            for handle in handles:
                handle.remove()
            handles.clear()
            finder.change()

    # It stays registered, since torch iterates over its hooks as it calls them.
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


class _CallFinder:
    """Counts the calls of the outermost modules until the first step has ended."""

    def __init__(self, torch: Any, make: Make, report: ReportCallback) -> None:
        self._torch, self._make, self._report = torch, make, report
        self._depth = 0
        self._calls: dict[int, tuple[Any, int]] = {}

    def call_begins(self, module: Any, _: Any) -> None:
        """Notes that a module is called."""
        self._depth += 1
        if self._depth == 1 and self._torch.is_grad_enabled():
            _, count = self._calls.get(id(module), (None, 0))
            self._calls[id(module)] = module, count + 1

    def call_ended(self, *_: Any) -> None:
        """Notes that a module's call has returned or raised."""
        self._depth -= 1

    def change(self) -> None:
        """Changes the calls of the modules that train."""
        models = [(model, count) for model, count in self._calls.values() if _trains(model)]
        self._calls.clear()
        if not models:
            self._report(False, "no model was seen in its first step")
        for model, count in models:
            name = type(model).__name__
            if count > MAX_CALLS:
                self._report(False, f"its {name} is called {count} times in a step")
                continue
            before = vars(model).get(SLOT)
            try:
                if self._torch.jit.is_scripting() or isinstance(model, self._torch.jit.ScriptModule):
                    raise ChangeRefusedError("it is a torch.jit script module")
                changed = self._make(model, before or model._call_impl)
            except Exception as error:
                self._report(False, _refusal_of(model, error))
                continue
            vars(model)[SLOT] = ChangedCall(self._torch, model, before, changed, self._report)


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _refusal_of(model: Any, error: Exception) -> str:
    return f"its {type(model).__name__} is not changed: {reason_of(error)}"


class ChangedCall:
    """A model's call: changed with gradients on, otherwise as it was. Copies and pickles leave it out.

    The change counts as in effect once such a call has returned.
    """

    def __init__(
        self, torch: Any, model: Any, before: Call | None, changed: Call, report: ReportCallback
    ) -> None:
        self._model, self._before, self._report = weakref.ref(model), before, report
        self._changed: Call | None = changed
        self._has_grad = torch.is_grad_enabled
        self._has_returned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        model = self._model()
        assert model is not None
        if self._changed is not None and self._has_grad():
            try:
                output = self._changed(*args, **kwargs)
            except ChangeRefusedError as error:
                self._changed = None
                self._report(False, _refusal_of(model, error))
            else:
                if not self._has_returned:
                    self._has_returned = True
                    self._report(True)
                return output
        return (self._before or model._call_impl)(*args, **kwargs)

    def __reduce__(self) -> Any:
        return type(None), ()
