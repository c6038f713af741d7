"""Checks on any machine whether a pipeline would run on a GPU, with torch's `meta` device.

A tensor on `meta` has a shape but no data. Nothing is computed there, but each operator still shows
which devices its tensors are on, and code that reads a value would have to wait for a GPU. Autocast
does not exist on `meta`, and code that checks `is_cuda` takes the other branch: neither is checked.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import default_collate

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.loaders import traits
from sweeper.core.measurement import Report
from sweeper.core.modules import is_shipped_pipeline, is_sweepers
from sweeper.core.progress import Progress
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Batch, Pipeline, Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper

META = torch.device("meta")
MODEL, GATHER, STEP = "moving the model", "gathering", "the training step"
VALIDATION, EVALUATE = "validation", "evaluate"
ROWS = 8
"""Samples in a batch collated from rows."""
MAX_READS = 1000
"""Maximum reads of placeholder values: a loop that depends on one never ends on `meta`."""

_PLAIN: Mapping[str, Any] = {
    "precision.amp": "fp32",
    "compile.mode": "eager",
    "optimizer.fused": False,
    "accumulate_steps": 1,
    "device.count": 1,
}
"""Settings that torch lacks on `meta`, or that say nothing about the pipeline."""

_TORCH = str(Path(torch.__file__).parent) + os.sep

_VALUES = (
    *("nonzero", "masked_select", "repeat_interleave", "bincount", "_ctc_loss"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
)
"""Operators that read lengths, or whose result's shape depends on values: the host waits."""
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
_TAKES_HOST = (
    *("_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    "tensor_split",
)
"""Operators with an argument that is on the host even on CUDA."""
_MIXED = ("1D CPU int64 tensor", "at the same device", "on the same device", "not on the expected device")
"""Torch's messages for a tensor on the wrong device, raised before an operator is reached."""
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class Effect(StrEnum):
    """The effect of a line on a GPU."""

    FAILS = "fails"
    WAITS = "waits"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFinding:
    """A line that would fail on a GPU or wait for it.

    Attributes:
        effect: `unknown` if `meta` cannot tell; the code after that line was not checked.
        part: The part that ran: gathering, the training step, validation or evaluate.
        place: `file:line` of the pipeline's innermost line.
        what: The reason, and the remedy.
    """

    effect: Effect
    part: str
    place: str
    what: str


def run(job: Job, progress: Progress) -> Report:
    """Builds the job's pipeline and checks it; `findings` are those of `check`.

    If the pipeline rejects the configuration, the only value is `refused`, the reason.
    """
    progress.stage("build")
    try:
        pipeline, _, _ = set_up(job, progress)
    except UserError as error:
        return Report(values={"refused": str(error)}, finished_at=time.time())
    progress.stage("steps")
    rows = collate(pipeline.train) if traits(job.config.loader.kind).reads_rows else None
    findings = check(pipeline, job.config, job.import_paths, rows)
    return Report(values={"findings": encode(findings)}, finished_at=time.time())


def collate(samples: Samples) -> Batch:
    """Returns a small batch on the host, made as by the `rows` loader."""
    length = _longest_length(samples)
    batch: Batch = default_collate([samples.item(i, length) for i in range(min(ROWS, samples.length))])
    return batch


def check(
    pipeline: Pipeline, config: TrialConfig, roots: Sequence[str] = (), rows: Batch | None = None
) -> tuple[GpuFinding, ...]:
    """Returns the lines of the pipeline that would fail on a GPU, or make the host wait for it.

    Runs gathering (on the device, if samples are tensors), a training step with its optimizer, the
    validation loss and `evaluate`. In the last two only failures count, since waiting there is not
    timed. The model is on `meta` afterwards and can no longer be used.

    Args:
        roots: Folders to which places are relative.
        rows: A batch of the `rows` loader, which may differ from the result of `gather`.
    """
    watch = _MetaWatch(roots)
    stepper = watch.run(MODEL, lambda: Stepper(pipeline, config.replace(_PLAIN), META))
    if stepper is None:
        return watch.findings()
    train, val = (_batch(watch, samples, config.batch_size) for samples in (pipeline.train, pipeline.val))
    batches = [batch for batch in (train, rows and _on_meta(rows)) if batch is not None]
    if len(batches) == 2 and _describe(batches[0]) == _describe(batches[1]):
        batches.pop()
    for batch in batches:
        watch.run(STEP, partial(stepper.train_through, batch, NoClock(), stepper.model))
    stepper.model.eval()
    if val is not None:
        with torch.no_grad():
            watch.run(VALIDATION, lambda: pipeline.loss(stepper.model, val))
            if evaluate := pipeline.evaluate:
                watch.run(EVALUATE, lambda: evaluate(stepper.model, iter((val,))))
    return watch.findings()


def _batch(watch: _MetaWatch, samples: Samples, size: int) -> Batch | None:
    """Returns the first samples on `meta`; None if gathering them ended early."""
    count = min(size, samples.length)
    length = _longest_length(samples)
    if samples.on_host:
        return _on_meta(samples.read(samples.tensors, torch.arange(count), length))
    tensors, index = _on_meta(samples.tensors), torch.arange(count, device=META)
    batch: Batch | None = watch.run(GATHER, lambda: samples.read(tensors, index, length))
    return batch


def _longest_length(samples: Samples) -> int:
    return 0 if samples.lengths is None else max(1, int(samples.lengths.max()))


def _on_meta(tensors: Mapping[str, Tensor]) -> Batch:
    return {name: tensor.to(META) for name, tensor in tensors.items()}


def _describe(batch: Batch) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in batch.items()}


class _Stop(BaseException):
    """Ends a check at a line; a BaseException, so that no pipeline catches it."""


class _MetaWatch:
    """Runs parts of a pipeline on `meta` and collects findings."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._part = ""
        self._reads = 0
        self._findings: dict[tuple[Effect, str], GpuFinding] = {}

    def run(self, part: str, body: Callable[[], Any]) -> Any:
        """Returns the result of `body`; None if it ended early."""
        self._part, self._reads = part, 0
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"), _autocast_on_meta():
                warnings.simplefilter("ignore")
                with _Functions(self), _Operators(self):
                    return body()
        except _Stop:
            pass
        except Exception as error:
            # After a placeholder value, an error may not be the pipeline's.
            if not self._reads:
                self._note_error(error)
        return None

    def findings(self) -> tuple[GpuFinding, ...]:
        """Returns the findings, each line once; sweeper's own lines only if there are no others."""
        users = [
            finding
            for finding in self._findings.values()
            if not is_sweepers(finding.place.rpartition(":")[0])
        ]
        return tuple(users or self._findings.values())

    def fails(self, what: str) -> None:
        """Records that the current line fails on a GPU."""
        self._note(Effect.FAILS, what)

    def waits(self, what: str) -> None:
        """Records that the current line waits for a GPU, if that affects timed steps."""
        self.read()
        if self._part in (GATHER, STEP):
            self._note(Effect.WAITS, what)

    def read(self) -> None:
        """Records that a placeholder replaces a value."""
        self._reads += 1
        if self._reads > MAX_READS:
            raise _Stop

    def note_unknown(self, what: str) -> None:
        """Records that `meta` cannot tell what the current line does."""
        self._note(Effect.UNKNOWN, what)

    def _note_error(self, error: Exception) -> None:
        message = (str(error).splitlines() or [""])[0]
        traceback = error.__traceback__
        frames = []
        while traceback is not None:
            frames.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
            traceback = traceback.tb_next
        place = self._place(reversed(frames))
        if any(words in message for words in _MIXED):
            self._note(Effect.FAILS, message.replace(" meta", " cuda").rstrip("!."), place)
        else:
            self._note(Effect.UNKNOWN, f"{type(error).__name__}: {message}", place)

    def _note(self, effect: Effect, what: str, place: str = "") -> None:
        place = place or self._place(_stack())
        self._findings.setdefault(
            (effect, place), GpuFinding(effect=effect, part=self._part, place=place, what=what)
        )

    def _place(self, frames: Iterator[tuple[str, int]]) -> str:
        """Returns the innermost line outside of torch and libraries, and of sweeper if possible."""
        fallback = ""
        for name, line in frames:
            if name.startswith(_TORCH) or name == __file__:
                continue
            is_installed = "site-packages" in name and not is_shipped_pipeline(name)
            if not is_sweepers(name) and not is_installed:
                root = next((root for root in self._roots if name.startswith(root + os.sep)), None)
                return f"{os.path.relpath(name, root) if root else Path(name).name}:{line}"
            fallback = fallback or f"{name}:{line}"
        return fallback


def _stack() -> Iterator[tuple[str, int]]:
    """Yields file and line of the current stack, innermost first, up to the part being run."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _MetaWatch.run.__code__:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


class _Functions(TorchFunctionMode):
    """Intercepts calls that reach no operator on `meta`: tensors read as text or numpy, indexing by lists."""

    def __init__(self, watch: _MetaWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.is_meta:
            if func in (Tensor.__repr__, Tensor.__format__):
                self._watch.waits("printing a tensor reads its values back from the GPU")
                return "1"
            if func in (Tensor.numpy, Tensor.__array__):
                self._watch.fails("numpy cannot read a tensor on the GPU; call `.cpu()` first")
                self._watch.read()
                return np.zeros(tuple(first.shape))
            if func in (Tensor.__getitem__, Tensor.__setitem__) and _has_list(args[1]):
                self._watch.waits(
                    "indexing by a list copies it to the GPU in each step; use a slice or a buffer"
                )
        # The data of a packed sequence has two axes, and its batch sizes must match.
        if func in _RECURRENT and args[0].is_meta and args[0].dim() == 3:
            return _run_shortened(func, *args)
        result = func(*args, **kwargs)
        is_copy = func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
        if is_copy and result.is_meta and not isinstance(args[-1] if args else None, Tensor):
            self._watch.waits(
                f"`{func.__name__}` copies from the host to the GPU in each step; create it once, as a buffer"
            )
        return result


def _run_shortened(func: Any, x: Tensor, *args: Any) -> Any:
    """Runs a recurrent layer over two time steps only: a step takes as long on `meta` as on a CPU."""
    time = 1 if args[-1] else 0  # batch_first
    if x.shape[time] <= 2:
        return func(x, *args)
    states, *last = func(x.narrow(time, 0, 2), *args)
    sizes = list(states.shape)
    sizes[time] = x.shape[time] - 1
    stretched = states.narrow(time, 1, 1).expand(sizes)
    return torch.cat((states.narrow(time, 0, 1), stretched), time), *last


def _has_list(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list | np.ndarray) for part in parts)


class _Operators(TorchDispatchMode):
    """Intercepts each operator, forward and backward, with the devices of its tensors."""

    def __init__(self, watch: _MetaWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        on_device = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_meta]
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            return self._check_copy(name, func, args, kwargs)
        if on_device:
            if name == "_local_scalar_dense":
                self._watch.waits("a number is read back from the GPU (`.item()`, `float()`, `if`)")
                return {torch.bool: False}.get(on_device[0].dtype, 1)
            if name == "equal":
                self._watch.waits("`equal` reads its answer back from the GPU")
                return False
            if name in _VALUES and kwargs.get("output_size") is None:
                self._watch.waits(f"`{name}` reads values back from the GPU")
                raise _Stop
            if name in _INDEXED:
                self._look_at_indices(name, args)
            args, kwargs = self._check_devices(name, func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except NotImplementedError:
            self._watch.note_unknown(f"torch has no `{name}` on `meta`")
            raise _Stop from None
        drawn = any(isinstance(leaf, torch.Generator) and leaf.device.type == "cpu" for leaf in leaves)
        if drawn and isinstance(result, Tensor) and result.is_meta:
            self._watch.fails(f"`{name}` on the GPU gets a CPU generator")
        return result

    def _check_copy(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Checks a copy between host and device: the host waits unless it is non-blocking."""
        if name == "copy_":
            target, source = args[:2]
            no_wait = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            to_device, from_device = target.is_meta, source.is_meta
        else:
            target = None
            source = args[0]
            no_wait = kwargs.get("non_blocking", False)
            device = kwargs.get("device") or source.device
            to_device, from_device = torch.device(device).type == "meta", source.is_meta
        if to_device and not from_device and source.device.type == "cpu" and not no_wait:
            self._watch.waits("a tensor is copied from the host to the GPU in each step")
        if from_device and not to_device:
            self._watch.waits("a tensor is copied from the GPU to the host")
            if target is not None:
                return target
            return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return func(*args, **kwargs)

    def _look_at_indices(self, name: str, args: Any) -> None:
        """Checks indices: the host counts boolean masks, and an index on the host is copied."""
        data, indices = args[0], [index for index in args[1] if index is not None]
        if not data.is_meta:
            return
        mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        # A single value is written through the mask without counting.
        if mask and not (name != "index" and args[2].numel() == 1):
            self._watch.waits("the host counts what a boolean mask selects; `torch.where` needs no count")
            raise _Stop
        if any(not index.is_meta for index in indices):
            self._watch.waits("an index on the CPU is copied to the GPU in each step")

    def _check_devices(self, name: str, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Records a CPU tensor that CUDA would not accept, and continues with it on the device."""
        host: list[Tensor] = []
        given = {
            **dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)),
            **kwargs,
        }
        for argument in func._schema.arguments:
            if name in _INDEXED and argument.name == "indices" and args[0].is_meta:
                continue
            written = argument.alias_info is not None and argument.alias_info.is_write
            for leaf in tree_leaves(given.get(argument.name)):
                # CUDA takes numbers from the host, but does not write there.
                if isinstance(leaf, Tensor) and leaf.device.type == "cpu" and (leaf.dim() or written):
                    host.append(leaf)
        if name in _TAKES_HOST or not host:
            return args, kwargs
        shapes = ", ".join(str(list(tensor.shape)) for tensor in host)
        self._watch.fails(
            f"`{name}` gets a tensor on the GPU and one on the CPU ({shapes}); "
            "create the latter with `device=`, or register it as a buffer of the model"
        )

        def move(leaf: Any) -> Any:
            return leaf.to(META) if isinstance(leaf, Tensor) else leaf

        return tree_map(move, args), tree_map(move, kwargs)


@contextlib.contextmanager
def _autocast_on_meta() -> Iterator[None]:
    """Lets a pipeline enter autocast for its tensors' device, without effect."""
    real = torch.autocast.__init__

    def start(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        real(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = real  # type: ignore[method-assign]
