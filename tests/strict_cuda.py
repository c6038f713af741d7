"""A strict stand-in for CUDA on a machine without a GPU: torch's own Python over a fake C layer.

`torch.cuda` stays torch's code, so that lazy initialisation happens, and fails, where this version of torch
has it. What is replaced lies below it: the `torch._C._cuda_*` functions, what streams, events and graphs call
in their C classes, and device memory, which is a tensor subclass on the CPU. The stand-in is as strict as a
GPU:

- What torch's C layer refuses before it needs a device is refused, by that layer where the build has it.
- A call that needs an initialised CUDA raises before it is; so does any call after a fork.
- A tensor on the device cannot be mixed with one on the host, nor read on a stream that did not wait for it.
- Whatever makes the host wait is counted, warned of in debug mode, and an error inside a capture.
- A captured graph replays its operations on the memory that they were captured with, and runs nothing before.
- cuDNN's dropout state is made anew after a generator's state was set, which breaks graphs that use it.

It says nothing about kernels, speed, or numerics in half precision: autocast computes in float32 here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import operator
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

# Imported before torch has CUDA: what it takes from the C layer at import is more than is replaced here.
import torch._dynamo
import torch._inductor.utils
from torch.utils._python_dispatch import TorchDispatchMode

NAME, CAPABILITY, TOTAL_BYTES = "NVIDIA Standin", (8, 6), 3 * 2**30
UUID = "12345678-1234-1234-1234-123456789abc"
CYCLES_PER_SECOND = 2e9
CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_MISSING = object()


class StrictCuda:
    """One GPU, or several; use it as a context manager.

    Attributes:
        num_devices: GPUs that the driver shows.
        syncs: How often the host waited for the device.
        free_bytes: What the driver says is free.
        home: The device that this process has set, and all its tensors are on.
        refuses: Why a setting is refused, by its name.
    """

    def __init__(self, num_devices: int = 1) -> None:
        self.num_devices = num_devices
        self.syncs = 0
        self.free_bytes = TOTAL_BYTES
        self.home, self.most_bytes = 0, float(TOTAL_BYTES)
        self.refuses: dict[str, str] = {}
        self._undo = contextlib.ExitStack()
        self._poisoned_by: int | None = None
        self._sync_mode, self._warned_of_mode = 0, False
        self._local = threading.local()
        self._ids = itertools.count(1)
        self._busy_until = 0.0
        self._sequence = itertools.count(1)
        self._all_done_up_to = 0
        self._clocks: dict[int, dict[int, int]] = {}
        self.capture: Capture | None = None
        self.generators: tuple[Generator, ...] = ()
        self.dropout_state: object | None = None

    def __enter__(self) -> StrictCuda:
        global _active
        assert _active is None, "there is one already"
        with contextlib.ExitStack() as self._undo:
            self._undo.callback(self._leave)
            _active = self
            for patch in (self._patch_state, self._patch_c, self._patch_classes, self._patch_tensors):
                patch()
            # All is in place, so none of it is undone here.
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _leave(self) -> None:
        global _active
        if self.capture is not None:
            self.capture.__exit__(None, None, None)
        _active = None

    def _set(self, owner: Any, name: str, value: Any) -> None:
        # An inherited attribute comes back when this is removed.
        known = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if known is _MISSING:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, known)

    # -- what torch.cuda rests on -----------------------------------------------------------------

    def _patch_state(self) -> None:
        cuda = torch.cuda
        for name, value in {
            "_initialized": False,
            "_cached_device_count": None,
            "_queued_calls": [],
            "_lazy_seed_tracker": type(cuda._lazy_seed_tracker)(),
            "default_generators": (),
            "_is_in_bad_fork": self._is_in_bad_fork,
            "_device_count_nvml": lambda: self.num_devices,
            "_get_device_properties": self._properties,
            "_cudart": SimpleNamespace(cudaMemGetInfo=lambda device: (self.free_bytes, TOTAL_BYTES)),
        }.items():
            self._set(cuda, name, value)
        self._set(torch.version, "cuda", torch.version.cuda or "13.0")
        self._set(torch._C, "_has_cuda", True)
        self._set(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
        self._set(torch._C, "_accelerator_getDeviceIndex", cuda.current_device)
        self._set(torch._C, "_accelerator_setDeviceIndex", cuda.set_device)
        self._set(torch._C, "_accelerator_getStream", cuda.current_stream)
        self._set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)

    def _patch_c(self) -> None:
        for name, function in {
            "init": self._init,
            "getDeviceCount": self._device_count,
            "getArchFlags": self._arch_flags,
            "setDevice": self._set_device,
            "getDevice": lambda: self.device,
            "synchronize": self._synchronize,
            "sleep": self._sleep,
            "set_sync_debug_mode": self._set_sync_mode,
            "get_sync_debug_mode": lambda: self._sync_mode,
            "getCurrentStream": self._current_stream,
            "getDefaultStream": lambda index: (0, index, 1),
            "setStream": self._set_stream,
            "resetPeakMemoryStats": self._needs_init,
            "memoryStats": self._memory_stats,
            "emptyCache": lambda: None,
            "setMemoryFraction": self._set_memory_fraction,
            "isCurrentStreamCapturing": lambda: self.is_capturing,
            "exchangeDevice": self._exchange_device,
            "maybeExchangeDevice": self._exchange_device,
        }.items():
            real = getattr(torch._C, f"_cuda_{name}", None)
            self._set(torch._C, f"_cuda_{name}", _of_numbers(name, function, real))
        self._set(torch._C, "_host_emptyCache", lambda: None)
        self._set(torch.cuda, "_exchange_device", torch._C._cuda_exchangeDevice)
        self._set(torch.cuda, "_maybe_exchange_device", torch._C._cuda_maybeExchangeDevice)

    def _patch_classes(self) -> None:
        graphs = torch.cuda.graphs
        self._set(graphs, "_cuda_isCurrentStreamCapturing", lambda: self.is_capturing)
        self._set(graphs, "_graph_pool_handle", lambda: (0, next(self._ids)))
        self._set(torch.cuda, "_POOL_HANDLE", lambda value: value)
        for module, own in (
            *((module, own) for module in (torch.cuda, torch.cuda.streams) for own in (Stream, Event)),
            *((module, CUDAGraph) for module in (torch.cuda, graphs)),
        ):
            self._set(module, own.__name__, own)
        self._set(graphs.graph, "default_capture_stream", None)

    def _patch_tensors(self) -> None:
        self._set(torch.nn.Module, "_apply", _swapping(torch.nn.Module._apply))
        group = torch._C._group_tensors_by_device_and_dtype
        self._set(torch._C, "_group_tensors_by_device_and_dtype", functools.partial(_grouped, group))
        for name in ("to", "cuda", "pin_memory", "is_pinned", "record_stream"):
            self._set(torch.Tensor, name, _method(getattr(torch.Tensor, name), name))
        for name in _FACTORIES:
            self._set(torch, name, _factory(getattr(torch, name)))

    def _init(self) -> None:
        self._poison()
        self.generators = tuple(Generator() for _ in range(self.num_devices))
        torch.cuda.default_generators = self.generators  # type: ignore[assignment]

    def _poison(self) -> None:
        if self._poisoned_by is None:
            self._poisoned_by = os.getpid()

    def _is_in_bad_fork(self) -> bool:
        return self._poisoned_by not in (None, os.getpid())

    def _device_count(self) -> int:
        # The runtime's own call initialises the driver, after which a forked child cannot use it.
        self._poison()
        return self.num_devices

    def _arch_flags(self) -> str:
        self._poison()
        return "sm_80 sm_86 sm_90"

    def _needs_init(self, device: int) -> None:
        if not torch.cuda.is_initialized():
            raise RuntimeError(f"Invalid device argument {device}: did you call init?")

    def _set_device(self, device: int) -> None:
        torch.cuda._lazy_init()
        if device >= self.num_devices:
            raise RuntimeError("CUDA error: invalid device ordinal")
        self._local.device = self.home = device

    def _exchange_device(self, device: int) -> int:
        if device < 0:
            return -1
        torch.cuda._lazy_init()
        before = self.device
        self._local.device = device
        return before

    def _properties(self, device: int) -> SimpleNamespace:
        major, minor = CAPABILITY
        return SimpleNamespace(
            name=NAME,
            major=major,
            minor=minor,
            total_memory=TOTAL_BYTES,
            uuid=UUID,
            multi_processor_count=72,
            pci_domain_id=0,
            pci_bus_id=device,
            pci_device_id=0,
        )

    def _memory_stats(self, device: int) -> dict[str, Any]:
        self._needs_init(device)
        return {"reserved_bytes": {"all": {"current": 2**20, "peak": 2**21}}}

    def _set_memory_fraction(self, fraction: float, device: int) -> None:
        self._needs_init(device)
        if "memory_fraction" in self.refuses:
            raise RuntimeError(self.refuses["memory_fraction"])
        self.most_bytes = fraction * TOTAL_BYTES

    # -- time, streams and waiting ------------------------------------------------------------------

    def _sleep(self, cycles: int) -> None:
        self._busy_until = max(self._busy_until, time.perf_counter()) + cycles / CYCLES_PER_SECOND

    def now(self) -> float:
        """Returns when the device will have done all that was asked of it."""
        return max(self._busy_until, time.perf_counter())

    def wait_until(self, moment: float) -> None:
        """Has the host wait."""
        time.sleep(max(0.0, moment - time.perf_counter()))

    def _synchronize(self) -> None:
        # Of which debug mode knows nothing.
        self._refuse_in_capture()
        self.syncs += 1
        self.wait_until(self.now())
        self._all_done_up_to = next(self._sequence)

    def sync(self) -> None:
        """Has the host wait for the device, as an operation that needs its result does."""
        self._refuse_in_capture()
        self.syncs += 1
        if self._sync_mode == 1:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        elif self._sync_mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        self.wait_until(self.now())

    def _refuse_in_capture(self) -> None:
        if self.is_capturing:
            raise RuntimeError(CAPTURING)

    def _set_sync_mode(self, mode: int) -> None:
        if not self._warned_of_mode:
            self._warned_of_mode = True
            warnings.warn(
                "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing "
                "operations (function set_sync_debug_mode)",
                stacklevel=2,
            )
        if mode not in range(3):
            raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
        self._sync_mode = mode

    @property
    def device(self) -> int:
        """This thread's current device."""
        return getattr(self._local, "device", 0)

    @property
    def stream(self) -> int:
        """This thread's current stream; 0 is the default one."""
        return getattr(self._local, "stream", 0)

    def _current_stream(self, index: int) -> tuple[int, int, int]:
        return self.stream, index, 1

    def _set_stream(self, *, stream_id: int, device_index: int, device_type: int) -> None:
        self._local.stream = stream_id

    def clock(self, stream: int) -> dict[int, int]:
        """Returns how much of each stream's work a stream has waited for."""
        return self._clocks.setdefault(stream, {})

    def tick(self) -> tuple[int, int]:
        """Counts a piece of work on the current stream; returns the stream and the work's number."""
        stream, number = self.stream, next(self._sequence)
        self.clock(stream)[stream] = number
        return stream, number

    def check_order(self, written: tuple[int, int]) -> None:
        """Raises where the current stream reads what another one may not have written yet."""
        stream, number = written
        waited_for = max(self._all_done_up_to, self.clock(self.stream).get(stream, 0))
        if stream != self.stream and waited_for < number:
            raise AssertionError(f"stream {self.stream} reads what stream {stream} may still be writing")

    def allocate(self, num_bytes: int) -> None:
        """Notes that the device's memory is asked for so many bytes."""
        if num_bytes > self.most_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.")
        self.host_call()

    def host_call(self) -> None:
        """Notes that the host allocates or pins memory: in another thread, that ends a global capture."""
        capture = self.capture
        if capture is not None and not self.is_capturing and capture.mode == "global":
            capture.broken = True

    @property
    def is_capturing(self) -> bool:
        """Whether this thread captures a graph."""
        return self.capture is not None and self.capture.thread == threading.get_ident()

    def lstm_dropout(self) -> None:
        """Uses cuDNN's dropout state, which is made anew after a generator's state was set."""
        generator = self.generators[0]
        if self.dropout_state is None or generator.resets_dropout:
            if self.is_capturing:
                raise RuntimeError(CAPTURING)
            self.dropout_state, generator.resets_dropout = object(), False
        if self.is_capturing:
            assert self.capture is not None
            self.capture.dropout_state = self.dropout_state


_active: StrictCuda | None = None


def active() -> StrictCuda:
    """Returns the stand-in that is installed."""
    assert _active is not None
    return _active


class _State:
    """A generator's state; the one in use lies in the CPU's generator."""

    def __init__(self, put_away: torch.Tensor | None = None) -> None:
        self.put_away = put_away


class Generator:
    """A device's generator, which draws from the CPU's; its state is set or exchanged as on CUDA."""

    def __init__(self, state: _State | None = None) -> None:
        self._state = state or _State()
        self.resets_dropout = True

    def get_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)
        self.resets_dropout = True

    def manual_seed(self, seed: int) -> None:
        # torch.manual_seed has seeded the CPU's already.
        self.resets_dropout = True

    def clone_state(self) -> Generator:
        return Generator(_State(torch.get_rng_state()))

    def graphsafe_get_state(self) -> Generator:
        return Generator(self._state)

    def graphsafe_set_state(self, other: Generator) -> None:
        self._state.put_away = torch.get_rng_state()
        self._state = other._state
        assert self._state.put_away is not None
        torch.set_rng_state(self._state.put_away)


# -- what lies between torch's own Python and its C layer ---------------------------------------------------

HAS_TYPES = torch.backends.cuda.is_built()
"""Whether the C classes are CUDA's; else they are empty ones."""
_CUDA_TYPE = 1
_CAPTURE_MODES = ("global", "thread_local", "relaxed")

# Past the C constructor, which asks for a device.
_allocate = ctypes.pythonapi.PyType_GenericAlloc
_allocate.restype, _allocate.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_ssize_t)


def _of_numbers(
    name: str, function: Callable[..., Any], real: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Returns a function that refuses all but numbers, as those of the C layer do before they need a device.

    Args:
        real: The C layer's own, which says what is wrong; None in a build without CUDA.
    """
    numbers = int | float if name == "setMemoryFraction" else int

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if not isinstance(value, numbers) or isinstance(value, bool):
                if real is not None:
                    real(*args, **kwargs)
                raise RuntimeError(f"invalid argument to {name}")
        return function(*args, **kwargs)

    return call


class _Lacking:
    """What the C class has and the stand-in has not. It would read memory that nothing was put into."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"the stand-in has no `{owner.__name__}.{self.name}`")


def _instead(own: type) -> type:
    """Has a class answer for all that is in the C classes below it."""
    known = {*vars(own), *vars(object), "__dict__", "__weakref__"}
    for name in {name for base in own.__mro__ for name in vars(base)} - known:
        setattr(own, name, _Lacking(name))
    return own


@_instead
class _Stream(torch._C._CudaStreamBase):
    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        given = [operator.index(value) for value in (stream_id, device_index, device_type)]
        if operator.index(priority) and stream_ptr:
            raise RuntimeError("Priority was explicitly set for a external stream")
        if stream_ptr:
            raise NotImplementedError("the stand-in has no streams of other libraries")
        if any(given) and device_type != _CUDA_TYPE:
            raise RuntimeError(
                "Expected stream_.device_type() == DeviceType::CUDA to be true, but got false."
            )
        self = _allocate(cls, 0)
        self._place = tuple(given) if any(given) else (next(active()._ids), active().device, _CUDA_TYPE)
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    stream_id = property(lambda self: self._place[0])
    device_index = property(lambda self: self._place[1])
    device_type = property(lambda self: self._place[2])
    cuda_stream = stream_id

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and self._place == other._place

    __ne__ = object.__ne__

    def __hash__(self) -> int:
        return hash(self._place)

    if hasattr(torch.Stream, "is_capturing"):

        def is_capturing(self) -> bool:
            return active().is_capturing

    def query(self) -> bool:
        return time.perf_counter() >= active().now()

    def synchronize(self) -> None:
        active().sync()


@_instead
class _Event(torch._C._CudaEventBase):
    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        flags = [operator.index(flag) for flag in (enable_timing, blocking, interprocess, external)]
        self = super().__new__(cls, *flags) if HAS_TYPES else _allocate(cls, 0)
        self._timed, self._at, self._seen = bool(enable_timing), None, {}
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    cuda_event = property(lambda self: 0 if self._at is None else 1)

    def record(self, stream: Any) -> None:
        cuda = active()
        self._at, self._seen = cuda.now(), dict(cuda.clock(_stream_id(stream)))

    def wait(self, stream: Any) -> None:
        clock = active().clock(_stream_id(stream))
        for other, number in self._seen.items():
            clock[other] = max(clock.get(other, 0), number)

    def query(self) -> bool:
        active()._refuse_in_capture()
        return self._at is None or time.perf_counter() >= self._at

    def synchronize(self) -> None:
        cuda = active()
        cuda._refuse_in_capture()
        if self._at is not None:
            cuda.wait_until(self._at)

    def elapsed_time(self, end: Any) -> float:
        if not isinstance(end, _Event):
            raise RuntimeError("expected other to be a torch.cuda.Event object")
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if max(self._at, end._at) > time.perf_counter():
            raise RuntimeError("CUDA error: device not ready")
        return 1e3 * (end._at - self._at)


def _stream_id(stream: Any) -> int:
    assert isinstance(stream, _Stream), "the C layer would take any object for a stream"
    return stream.stream_id


class _Made(type(torch._C._CUDAGraph)):  # type: ignore[misc]
    # pybind11's own wants its constructor called, which asks for a device.
    __call__ = type.__call__


@_instead
class _Graph(torch._C._CUDAGraph, metaclass=_Made):
    def __new__(cls, keep_graph: bool = False) -> Any:
        if not isinstance(keep_graph, bool):
            raise TypeError("__init__(): incompatible constructor arguments.")
        self = super().__new__(cls) if HAS_TYPES else _allocate(cls, 0)
        self._keeps, self._tape, self._is_ready = keep_graph, None, False
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    _has_graph_exec = property(lambda self: self._is_ready)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        cuda = active()
        if not (pool is None or (isinstance(pool, tuple) and len(pool) == 2)):
            raise TypeError("capture_begin(): incompatible function arguments.")
        if capture_error_mode not in _CAPTURE_MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if cuda.stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        assert cuda.capture is None
        cuda.capture = self._tape = Capture(capture_error_mode)
        self._tape.__enter__()

    def capture_end(self) -> None:
        self._end()
        if not self._keeps:
            _Graph.instantiate(self)

    def _end(self) -> None:
        cuda, tape = active(), self._tape
        cuda.capture = None
        tape.__exit__(None, None, None)
        tape.undo()
        if tape.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    if hasattr(torch.cuda.CUDAGraph, "capture_end_pre"):
        # torch's Python ends a capture step by step.
        capture_end_pre = _end

        def capture_end_post(self) -> None:
            assert self._keeps or self._is_ready

    def instantiate(self) -> None:
        assert self._tape is not None
        self._is_ready = True

    def replay(self) -> None:
        cuda = active()
        if not self._is_ready:
            self.instantiate()
        if self._tape.dropout_state is not None and self._tape.dropout_state is not cuda.dropout_state:
            raise AssertionError("the graph reads a dropout state that was freed")
        self._tape.replay()

    def reset(self) -> None:
        self._tape, self._is_ready = None, False

    def pool(self) -> Any:
        return (0, 0)


class Stream(torch.cuda.Stream, _Stream):
    """torch's own, over the stand-in's."""


class Event(torch.cuda.Event, _Event):
    """torch's own, over the stand-in's."""


class CUDAGraph(torch.cuda.CUDAGraph, _Graph):
    """torch's own, over the stand-in's."""


class Capture(TorchDispatchMode):
    """Records the operations of a thread below autograd, and runs them again on the same memory."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.thread = mode, threading.get_ident()
        self.broken = False
        self.dropout_state: object | None = None
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._keep(value)
            found = func(*args, **kwargs)
        outputs = []
        returned = found if isinstance(found, tuple | list) else (found,)
        for declared, value in itertools.zip_longest(func._schema.returns, returned):
            is_alias = declared is not None and declared.alias_info is not None
            if is_alias or not isinstance(value, torch.Tensor):
                outputs.append(None)
                continue
            self._own.add(value.untyped_storage().data_ptr())
            outputs.append(value.detach())
        self._steps.append((func, args, kwargs, outputs))
        return found

    def _keep(self, value: Any) -> None:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            place = tensor.untyped_storage().data_ptr()
            if place not in self._own and place not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[place] = whole, whole.clone()

    def undo(self) -> None:
        """Puts back what the operations changed: a capture runs nothing."""
        for whole, before in self._before.values():
            whole.copy_(before)

    def replay(self) -> None:
        """Runs the operations."""
        with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunctionSubclass():
            for func, args, kwargs, outputs in self._steps:
                found = func(*args, **kwargs)
                for into, value in zip(
                    outputs, found if isinstance(found, tuple | list) else (found,), strict=False
                ):
                    if into is not None:
                        into.copy_(value)


# -- device memory ---------------------------------------------------------------------------------------

_FACTORIES = """
    tensor as_tensor zeros ones empty full rand randn randint randperm arange eye linspace
    zeros_like ones_like empty_like full_like rand_like randn_like
""".split()  # noqa: SIM905
_WAITING = {
    getattr(torch.Tensor, name)
    for name in [
        "item",
        "tolist",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
        "nonzero",
        "masked_select",
    ]
} | {torch.nonzero, torch.masked_select, torch.equal, torch.unique}
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_GRAD = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_FREE = {torch.Tensor.copy_, torch.Tensor.__setitem__, torch.Tensor.record_stream}


class OnCuda(torch.Tensor):
    """A tensor in the device's memory."""

    _written = (0, 0)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _active is None:
            return super().__torch_function__(func, types, args, kwargs)
        cuda = _active
        if func == _DEVICE:
            return torch.device("cuda", cuda.home)
        if func == _IS_CUDA:
            return True
        if func is torch.Tensor.get_device:
            return cuda.home
        if func is torch._has_compatible_shallow_copy_type:
            # A parameter that moves is exchanged for its copy: the class is the device here.
            return False
        if func is torch.Tensor.numpy:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )
        if func is torch.Tensor.cpu:
            return _to_host(args[0], wait=True)
        if func in _WAITING:
            cuda.sync()
        if func is torch.Tensor.copy_ and _is_on_host(args[1]):
            _wait_for_copy(args[1], non_blocking=bool(kwargs.get("non_blocking")))
        elif func not in _FREE:
            _check_same_device(args, kwargs)
        if getattr(func, "__name__", "") == "lstm" and _lstm_drops(args):
            cuda.lstm_dropout()
        _check_written(cuda, args)
        found = super().__torch_function__(func, types, args, kwargs)
        if func == _GRAD and found is not None and not isinstance(found, OnCuda):
            found = found.as_subclass(OnCuda)
        _mark(cuda, found)
        return found


def _lstm_drops(args: tuple[Any, ...]) -> bool:
    # (input, hx, weights, has_biases, num_layers, dropout, training, ...)
    return len(args) > 6 and args[5] > 0 and bool(args[6])


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, OnCuda)


def _check_same_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for tensor in _tensors((*args, *kwargs.values())):
        with torch._C.DisableTorchFunctionSubclass():
            is_number = tensor.dim() == 0
        if _is_on_host(tensor) and not is_number:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                "cpu!"
            )


def _check_written(cuda: StrictCuda, args: tuple[Any, ...]) -> None:
    for tensor in _tensors(args):
        if isinstance(tensor, OnCuda):
            cuda.check_order(tensor._written)


def _mark(cuda: StrictCuda, found: Any) -> None:
    outputs = [each for each in _tensors((found,)) if isinstance(each, OnCuda)]
    if outputs:
        # What a capture records is written later, on the stream of each replay.
        written = (0, 0) if cuda.is_capturing else cuda.tick()
        for each in outputs:
            each._written = written


def _wait_for_copy(source: torch.Tensor, *, non_blocking: bool) -> None:
    """A copy to the device is waited for, unless it is asynchronous from page-locked memory."""
    if not (non_blocking and getattr(source, "_pinned", False)):
        active().sync()


def _to_device(source: torch.Tensor, *, non_blocking: bool, copy: bool = True) -> torch.Tensor:
    torch.cuda._lazy_init()
    cuda = active()
    cuda.allocate(source.nbytes)
    _wait_for_copy(source, non_blocking=non_blocking)
    with torch._C.DisableTorchFunctionSubclass():
        there = (source.clone() if copy else source).as_subclass(OnCuda)
    _mark(cuda, there)
    return there


def _to_host(source: torch.Tensor, *, wait: bool) -> torch.Tensor:
    if wait:
        active().sync()
    with torch._C.DisableTorchFunctionSubclass():
        return source.clone().as_subclass(torch.Tensor)


def _grouped(group: Callable[..., Any], lists: Any, *args: Any) -> Any:
    """Groups tensors for `foreach` operations by the device that they say they are on."""
    found = group(lists, *args)
    if not any(isinstance(tensor, OnCuda) for tensor in _tensors(lists)):
        return found
    return {(torch.device("cuda", active().home), dtype): rest for (_, dtype), rest in found.items()}


def _swapping(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Has a parameter that moves become the tensor that it moved to, of that one's class."""

    def swapping(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return swapping


def _wanted_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    for value in (kwargs.get("device"), *args):
        if isinstance(value, torch.device | str | int) and not isinstance(value, bool):
            with contextlib.suppress(RuntimeError):
                return torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
        if isinstance(value, torch.Tensor):
            return torch.device("cuda", 0) if isinstance(value, OnCuda) else torch.device("cpu")
    return None


def _method(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, is_there = _wanted_device(args, kwargs), isinstance(tensor, OnCuda)
        non_blocking = bool(kwargs.pop("non_blocking", False)) or any(each is True for each in args[1:2])
        if device is None or (device.type == "cuda") == is_there:
            if device is not None:
                args = tuple(each for each in args if not isinstance(each, torch.device | str | torch.Tensor))
                kwargs.pop("device", None)
                args = tuple(each for each in args if not isinstance(each, bool))
            return real(tensor, *args, **kwargs) if args or kwargs else tensor
        if is_there:
            found = _to_host(tensor, wait=not non_blocking)
        else:
            found = _to_device(tensor, non_blocking=non_blocking)
        dtype = next((each for each in (*args, kwargs.get("dtype")) if isinstance(each, torch.dtype)), None)
        return real(found, dtype) if dtype else found

    def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
        return tensor if isinstance(tensor, OnCuda) else _to_device(tensor, non_blocking=non_blocking)

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if isinstance(tensor, OnCuda):
            raise RuntimeError("cannot pin a tensor on the device: only dense CPU tensors can be pinned")
        if getattr(tensor, "_pinned", False):
            return tensor
        # Pages are locked by the driver, in a context of its own.
        torch.cuda._lazy_init()
        active().host_call()
        found = tensor.clone()
        found._pinned = True  # type: ignore[attr-defined]
        return found

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return getattr(tensor, "_pinned", False)

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        assert isinstance(tensor, OnCuda)

    return functools.wraps(real)(locals()[name])


def _factory(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None and kwargs.pop("pin_memory", False):
            torch.cuda._lazy_init()
            active().host_call()
            locked = real(*args, **kwargs)
            locked._pinned = True  # type: ignore[attr-defined]
            return locked
        if device is None:
            return real(*args, **kwargs)
        if torch.device(device).type != "cuda":
            return real(*args, **kwargs)
        del kwargs["device"]
        torch.cuda._lazy_init()
        pinned = kwargs.pop("pin_memory", None)
        assert not pinned
        like = real.__name__.endswith("_like")
        found = real(*args, **kwargs)
        if real.__name__ in ("tensor", "as_tensor"):
            # A copy from the host's pageable memory.
            active().sync()
        if like and isinstance(found, OnCuda):
            return found
        return _to_device_new(found)

    return make


def _to_device_new(made: torch.Tensor) -> torch.Tensor:
    cuda = active()
    cuda.allocate(made.nbytes)
    with torch._C.DisableTorchFunctionSubclass():
        there = made.as_subclass(OnCuda)
    _mark(cuda, there)
    return there
