"""Changes how a model computes: its precision, the layout of its images, its kernels."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .calls import change_calls
from .change import (
    ARITHMETIC,
    CLOSE,
    HALF,
    Change,
    ChangeRefusedError,
    Editor,
    ReportCallback,
    SpeedupCeiling,
    Step,
)
from .facts import is_in_float32, is_on_cpu, is_on_gpu, may_convolve
from .recurrent import keep_in_float32

if TYPE_CHECKING:
    from .calls import Call

CAPTURED_CALLS = 3
"""Calls until which a model is captured: torch runs it, warms it up, and records it."""
_NOT_PLAIN = "the script already computes in a precision other than float32"


class Precision(Change):
    """Computes the model's matrix products in bfloat16; parameters, losses and updates stay in float32."""

    name = "precision"
    choices = ("bf16",)
    kind = CLOSE
    why = "layers multiply in bfloat16, which halves the bytes that they read"
    saves = ARITHMETIC
    rounding = HALF

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not is_in_float32(facts):
            return _NOT_PLAIN
        if is_on_cpu(facts) and not _cpu_has_bf16():
            return "this processor has no instructions for it"
        return ""

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the models that are trained from the second step on."""
        exact = _ExactContext(torch)
        keep_in_float32(torch, lambda: exact.is_on)

        def make(model: Any, call: Call) -> Call:
            kinds = {parameter.device.type for parameter in model.parameters()}
            if len(kinds) != 1 or any(parameter.dtype != torch.float32 for parameter in model.parameters()):
                raise ChangeRefusedError("its parameters are on several devices, or not all in float32")
            device = kinds.pop()
            is_on = torch.is_autocast_enabled

            def call_in_bf16(*args: Any, **kwargs: Any) -> Any:
                if is_on(device):
                    return call(*args, **kwargs)
                with torch.autocast(device, dtype=torch.bfloat16), exact:
                    output = call(*args, **kwargs)
                return _to_float32(torch, output)

            return call_in_bf16

        change_calls(torch, make, report)

    def edit(self, editor: Editor) -> None:
        """Adds a function that makes layers compute in bfloat16, and calls it with the model."""
        editor.call_on_model("in_bfloat16({model})")
        editor.define("in_bfloat16")


class _ExactContext:
    """A context in which the functions that turn numbers into probabilities compute in float32, and dropout.

    With 8 bits, the sigmoid of 6.3 or more is 1, so log(1 - sigmoid) and its gradient are lost. On a GPU, the
    same generator drops other elements of a bfloat16 tensor than of a float32 one, since a thread takes eight
    of them instead of four (aten/src/ATen/native/cuda/Dropout.cu).
    """

    NAMES = ("sigmoid", "softmax", "log_softmax", "exp")
    DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")

    def __init__(self, torch: Any) -> None:
        self._torch, self._depth = torch, 0
        functional = torch.nn.functional
        owners = [(owner, name) for owner in (torch, torch.Tensor) for name in self.NAMES]
        owners += [(owner, name) for owner in (functional, torch) for name in self.DROPOUTS]
        for owner, name in owners:
            if hasattr(owner, name):
                setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, original: Any) -> Any:
        torch = self._torch

        @functools.wraps(original)
        def compute(*args: Any, **kwargs: Any) -> Any:
            # `dropout(input, p, training, inplace)`
            in_place = kwargs.get("inplace") or args[3:4] == (True,)
            is_rounded = args and torch.is_tensor(args[0]) and args[0].dtype == torch.bfloat16
            if self._depth and is_rounded and not in_place:
                args = (args[0].float(), *args[1:])
            return original(*args, **kwargs)

        return compute

    @property
    def is_on(self) -> bool:
        """Whether a model is being called."""
        return self._depth > 0

    def __enter__(self) -> None:
        """Notes that a model is called."""
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """Notes that the model has returned."""
        self._depth -= 1


def _cpu_has_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith(("flags", "Features"))), [])
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "svebf16"))


def _to_float32(torch: Any, part: Any) -> Any:
    """Returns an output with its tensors of 16 bits as float32, in the same kinds of containers.

    Raises:
        ChangeRefusedError: It has a part whose kind is unknown.
    """
    if torch.is_tensor(part):
        return part.float() if part.dtype in (torch.bfloat16, torch.float16) else part
    kind = type(part)
    if part is None or kind in (bool, int, float, str):
        return part
    if kind in (list, tuple):
        return kind(_to_float32(torch, item) for item in part)
    if isinstance(part, tuple) and hasattr(kind, "_make"):
        return kind._make(_to_float32(torch, item) for item in part)
    if isinstance(part, dict):
        changed = {key: _to_float32(torch, value) for key, value in part.items()}
        if kind is dict:
            return changed
        if dataclasses.is_dataclass(part):
            # Outputs of Hugging Face's models are both dicts and data classes.
            return dataclasses.replace(part, **changed)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
        return dataclasses.replace(part, **{key: _to_float32(torch, value) for key, value in fields.items()})
    raise ChangeRefusedError(f"an output of type {kind.__name__} cannot be converted to float32")


class Layout(Change):
    """Stores images and the filters of convolutions with their channels last in memory."""

    name = "layout"
    choices = ("channels_last",)
    kind = CLOSE
    why = "convolutions read all channels of a pixel at once"
    saves = ARITHMETIC
    takes_other_kernels = True

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        return "" if may_convolve(facts) else "it has no convolutions of images"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the models with convolutions of images from the second step on."""
        last = torch.channels_last
        late: set[int] = set()
        _lay_out_state(torch, late)

        def make(model: Any, call: Call) -> Call:
            convolutions = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
            if not any(isinstance(module, convolutions) for module in model.modules()):
                raise ChangeRefusedError("it has no convolutions of images")
            if any(tensor.dim() == 5 for tensor in (*model.parameters(), *model.buffers())):
                # torch would try to lay these out, too, and fail halfway.
                raise ChangeRefusedError("it has parameters or buffers of five dimensions")
            model.to(memory_format=last)
            late.update(
                id(parameter)
                for parameter in model.parameters()
                if parameter.requires_grad and parameter.dim() == 4
            )

            def call_channels_last(*args: Any, **kwargs: Any) -> Any:
                args = tuple(
                    arg.contiguous(memory_format=last) if torch.is_tensor(arg) and arg.dim() == 4 else arg
                    for arg in args
                )
                return call(*args, **kwargs)

            return call_channels_last

        _drop_as_laid_out_before(torch)
        change_calls(torch, make, report)

    def edit(self, editor: Editor) -> None:
        """Lays out the model."""
        editor.call_on_model("{model}.to(memory_format=torch.channels_last)")


def _lay_out_state(torch: Any, late: set[int]) -> None:
    """Lays out an optimizer's state like its parameters, before the next step of the parameters in `late`.

    The first step created it in the old layout. A fused optimizer refuses that on a GPU, and mixes up
    elements on a CPU, because it walks both in memory order.
    """

    def lay_out(optimizer: Any, *_: Any) -> None:
        if not late:
            return
        for parameter, state in optimizer.state.items():
            if id(parameter) not in late:
                continue
            late.discard(id(parameter))
            for name, value in state.items():
                if torch.is_tensor(value) and value.shape == parameter.shape:
                    state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(lay_out)


def _drop_as_laid_out_before(torch: Any) -> None:
    """Gives dropout its images in their original layout, since it draws in memory order."""
    functional = torch.nn.functional
    for name in ("dropout", "alpha_dropout"):
        setattr(functional, name, _make_contiguous(getattr(functional, name)))


def _make_contiguous(original: Any) -> Any:
    @functools.wraps(original)
    def dropout(input: Any, *args: Any, **kwargs: Any) -> Any:
        laid_out = input.contiguous() if input.dim() == 4 else input
        return original(laid_out, *args, **kwargs)

    return dropout


MODEL, GRAPHS = "model", "graphs"


class Compiled(Change):
    """Compiles the model with torch.compile for inputs of the first shapes; others run uncompiled.

    With `graphs`, a GPU replays the compiled operations from CUDA graphs, which launch them all at once.
    """

    name = "compile"
    choices = (GRAPHS, MODEL)
    kind = CLOSE
    why = "operations are fused into fewer kernels, or launched at once"
    takes_other_kernels = True
    limit_seconds = 240.0

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if facts.get("compiled"):
            return "the script compiles its model itself"
        if value == GRAPHS and not is_on_gpu(facts):
            return "it does not train on a GPU"
        return ""

    def ceiling(self, value: str, step: Step) -> SpeedupCeiling | None:
        """Returns the largest speedup."""
        return step.without_launches() if value == GRAPHS else step.without_arithmetic()

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Compiles the models that are trained at the second step."""

        def make(model: Any, call: Call) -> Call:
            # Compiled dropout then draws as it does uncompiled.
            config: Any = importlib.import_module("torch._inductor.config")
            config.fallback_random = True
            if why := _cannot_compile():
                raise ChangeRefusedError(why)
            compiled = _compile_graphs(torch, call, config) if value == GRAPHS else torch.compile(call)
            first_shapes: list[Any] = []

            def call_compiled(*args: Any, **kwargs: Any) -> Any:
                shapes = _shapes(torch, (args, kwargs))
                if first_shapes:
                    # A pass often ends with a smaller batch, which is not worth another compilation.
                    return (compiled if shapes == first_shapes[0] else call)(*args, **kwargs)
                first_shapes.append(shapes)
                try:
                    return compiled(*args, **kwargs)
                except Exception as error:
                    # A C++ compiler may be missing, for example. The script's own errors are raised again.
                    what = "captured" if value == GRAPHS else "compiled"
                    raise ChangeRefusedError(f"it cannot be {what}: {error}"[:300]) from error

            return call_compiled

        change_calls(torch, make, report)

    def edit(self, editor: Editor) -> None:
        """Compiles the model."""
        mode = 'mode="reduce-overhead"' if editor.value == GRAPHS else ""
        editor.call_on_model(f"{{model}}.compile({mode})")


def _compile_graphs(torch: Any, call: Call, config: Any) -> Call:
    """Returns a compiled call whose operations a GPU replays; the first calls fail if it cannot."""
    compiled = torch.compile(call, mode="reduce-overhead")
    num_calls = 0
    # Otherwise, torch only logs what it does not capture, also of the backward pass of the first call.
    config.triton.cudagraph_or_error = True

    def call_in_graphs(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == CAPTURED_CALLS + 1:
            config.triton.cudagraph_or_error = False
            if not _has_graphs(torch):
                raise ChangeRefusedError("torch has captured none of its operations")
        torch.compiler.cudagraph_mark_step_begin()
        # The next replay overwrites what a graph returns, and the script may keep it.
        return _clone(torch, compiled(*args, **kwargs))

    return call_in_graphs


def _has_graphs(torch: Any) -> bool:
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or not torch.cuda.is_initialized():
        return False
    return trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False) is not None


def _clone(torch: Any, part: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if torch.is_tensor(leaf) else leaf, part)


def _cannot_compile() -> str:
    """Returns why nothing can be compiled here; empty if it can.

    Checked first, since the backward pass is compiled late, and its failure would be the script's.
    """
    try:
        importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    except (AttributeError, ImportError):
        # This torch has no such function.
        return ""
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return ""


def _shapes(torch: Any, part: Any) -> Any:
    if torch.is_tensor(part):
        return tuple(part.shape)
    if isinstance(part, dict):
        return tuple((key, _shapes(torch, value)) for key, value in part.items())
    if isinstance(part, (list, tuple)):
        return tuple(_shapes(torch, item) for item in part)
    return None
