"""Counts samples from a model's input, for training without a loader.

The model is the outermost module that has the optimizer's parameters. It is found once, among the
objects of the garbage collector, since patching `Module.__call__` would cost every inner module and break
`torch.compile(fullgraph=True)`. It is then watched through an attribute that torch reads at each call of a
module and leaves out of copies and pickles.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ..changes.calls import SLOT, ChangedCall
from .batches import SizeReader, reader_of
from .garbage import all_objects
from .points import Points

MAX_DEPTH = 5
"""Levels of modules that are tried, since a wrapper may never be called itself."""


class ModelInput:
    """The samples in a model's input while gradients are on.

    Attributes:
        source: Description of what is read; empty before anything is.
    """

    def __init__(self, torch: Any, points: Points) -> None:
        self._torch, self._points = torch, points
        self._begins: Callable[[], None] | None = None
        self._level: list[Any] = []
        self._calls: list[CallObserver] = []
        self._reader: SizeReader | None = None
        self._depth = 0
        self._largest = self._sum = 0
        self.source = ""

    def watch(self, optimizer: Any, begins: Callable[[], None] | None = None) -> None:
        """Watches the model, or one level further inside it if that is never called itself.

        Args:
            begins: Called when the model is called with gradients on; None to leave that as it is.
        """
        self._begins = begins or self._begins
        if self._reader is not None or self._depth >= MAX_DEPTH:
            return
        self._depth += 1
        for call in self._calls:
            call.remove()
        if self._level:
            self._level = [inner for module in self._level for inner in module.children()]
        else:
            root = self._root(optimizer)
            self._level = [] if root is None else [root]
        # A call that torch.compile traces must stay as it was; its replacement is not traced.
        if not self._compiles() or any(map(_is_replaced, self._level)):
            begins, called = self._points.guard(self._call_begins), self._points.guard(self._call_ended)
            self._calls = [CallObserver(module, begins, called) for module in self._level]

    def backward(self) -> None:
        """Counts the batch of a backward pass that begins; a module called in a loop had only one."""
        self._sum += self._largest
        self._largest = 0

    def pop_samples(self) -> int:
        """Returns the samples since the last call."""
        samples, self._sum, self._largest = self._sum, 0, 0
        return samples

    def _root(self, optimizer: Any) -> Any:
        """Returns the outermost module with the optimizer's parameters, or without one, with any to train."""
        kind = self._torch.nn.Module
        modules = [value for value in all_objects() if issubclass(type(value), kind)]
        inner = {id(child) for module in modules for child in (vars(module).get("_modules") or {}).values()}
        wanted = (
            None
            if optimizer is None
            else {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        )

        def num_trained(module: Any) -> int:
            return sum(
                parameter.requires_grad if wanted is None else id(parameter) in wanted
                for parameter in module.parameters()
            )

        outer = [module for module in modules if id(module) not in inner and "_modules" in vars(module)]
        best = max(outer, key=num_trained, default=None)
        return best if best is not None and num_trained(best) else None

    def _compiles(self) -> bool:
        utils = sys.modules.get("torch._dynamo.utils")
        return bool(utils is not None and utils.counters["frames"])

    def _call_begins(self) -> None:
        if self._begins is not None and self._torch.is_grad_enabled():
            self._begins()

    def _call_ended(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not self._torch.is_grad_enabled():
            return
        inputs = (args, kwargs)
        if self._reader is None:
            self._reader = self._reader_of(module, inputs, output)
            if self._reader is None:
                return
            for call in self._calls:
                if not call.is_of(module):
                    call.remove()
        try:
            size = self._reader.read(inputs)
        except (AttributeError, IndexError, KeyError, TypeError):
            # It was called in another way, such as by keyword or without an argument.
            self._reader = None
            return
        self._largest = max(self._largest, size)

    def _reader_of(self, module: Any, inputs: Any, output: Any) -> SizeReader | None:
        reader = reader_of(inputs)
        if reader is None or reader.what != 0:
            return reader
        dimension = 1 if _has_batch_second(module, reader.part(inputs), output) else 0
        self.source = f"dimension {dimension} of the input of {type(module).__name__}"
        return SizeReader(reader.path, dimension)


def _has_batch_second(module: Any, tensor: Any, output: Any) -> bool:
    """Returns whether the input is (time, batch, ...), as recurrent modules have it by default."""
    if len(tensor.shape) < 2 or not any(
        getattr(layer, "batch_first", True) is False for layer in module.modules()
    ):
        return False
    time, batch = tensor.shape[:2]
    reader = reader_of(output)
    if reader is None or reader.what != 0 or time == batch:
        return True
    out = reader.part(output).shape
    # One output per sequence has only the batch dimension; otherwise the modules' settings decide.
    return not (out[0] == time and (len(out) < 2 or out[1] != batch))


def _is_replaced(module: Any) -> bool:
    return hasattr(module, "_orig_mod") or isinstance(vars(module).get(SLOT), ChangedCall)


class CallObserver:
    """Takes the place of a module's compiled call; reads its input, and passes the call on."""

    def __init__(self, module: Any, begins: Callable[[], None], called: Callable[..., None]) -> None:
        self._module, self._begins, self._called = weakref.ref(module), begins, called
        self._before = vars(module).get(SLOT)
        vars(module)[SLOT] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        module = self._module()
        assert module is not None
        call = module._call_impl if self._before is None else self._before
        self._begins()
        output = call(*args, **kwargs)
        self._called(module, args, kwargs, output)
        return output

    def __reduce__(self) -> Any:
        # A copy or a pickle has no hook.
        return type(None), ()

    def is_of(self, module: Any) -> bool:
        """Returns whether this is the call of a module."""
        return self._module() is module

    def remove(self) -> None:
        """Restores the module, unless somebody has compiled it since."""
        module = self._module()
        if module is not None and vars(module).get(SLOT) is self:
            if self._before is None:
                del vars(module)[SLOT]
            else:
                vars(module)[SLOT] = self._before
