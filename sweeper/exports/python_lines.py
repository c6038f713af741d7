"""Writes a configuration as lines for a plain PyTorch script, each with its reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.core.config import FIELDS, Scalar
from sweeper.core.loaders import traits
from sweeper.core.template import spell
from sweeper.errors import UserError
from sweeper.exports import python_loading, python_step
from sweeper.exports.document import origin, promise
from sweeper.exports.flags import effective_settings
from sweeper.exports.formats import Options
from sweeper.script.changes.recurrent import NOTE

WIDTH = 100
DDP = ("static_graph", "gradient_as_bucket_view", "broadcast_buffers")
"""Options of DistributedDataParallel."""
YOURS = "# Your `dataset`, `model` and `loss_of(model, batch)` go here."
"""Comment that marks the place of the user's own parts."""

_MALLOC = """\
for name, number in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
    ctypes.CDLL(None).mallopt(name, number)"""


def python_lines(value: Mapping[str, Any], options: Options) -> str:
    """Returns an export as Python, complete except for a `dataset`, a `model` and a `loss_of`.

    Raises:
        UserError: It is the export of a script, or a plain script cannot use its loader.
    """
    if "command" in value:
        raise UserError(
            "`--format python` is for pipelines, but this is the sweep of a `command`. "
            "`--format args` prints the winning command."
        )
    settings, writer = effective_settings(value), _ReasonWriter(value, options.reasons)
    on_gpu = "gpu" in value["conditions"]
    imports, loading = python_loading.loading_lines(settings, on_gpu=on_gpu)
    return "\n".join(
        [
            *_head(value, settings),
            "",
            *_imports(settings, writer),
            *imports,
            "",
            *_process(settings, writer, on_gpu),
            *([] if on_gpu else ['device = torch.device("cpu")']),
            "",
            YOURS,
            *(["# `BLOCKS` goes here, too."] if _has_blocks(settings) else []),
            "EPOCHS = 1",
            "",
            *writer.reasons_for("batch_size", "loader.kind", *_loader_names(settings)),
            loading,
            "",
            *_model(settings, writer),
            "",
            *writer.reasons_for("optimizer.name", "optimizer.lr", "optimizer.fused"),
            *python_step.optimizer(settings),
            "",
            "",
            *(
                _recurrent_lines()
                if NOTE in value["measurement"]["effective"].get("precision.amp", "")
                else []
            ),
            *writer.reasons_for("precision.amp", "accumulate_steps"),
            *python_step.step(settings),
            "",
            "",
            *python_step.loop(settings),
            "",
        ]
    )


def _recurrent_lines() -> list[str]:
    return [*python_step.IN_FLOAT32.splitlines(), "", ""]


class _ReasonWriter:
    """Writes the reason for a setting: what it does and what was measured."""

    def __init__(self, value: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        self._settings, self._reasons, self._measured = (
            effective_settings(value),
            reasons,
            value["measurement"],
        )

    def reasons_for(self, *names: str) -> Iterator[str]:
        """Yields a comment for each of these settings that has a reason."""
        for name in names:
            what = _purpose(name, self._settings, self._measured)
            reasons = [reason for reason in (what, self._note(name), self._reasons.get(name)) if reason]
            if reasons:
                yield from _comment(f"{name} {spell(self._settings[name])}: {'; '.join(reasons)}.")

    def _note(self, name: str) -> str:
        """Returns the note on what ran, without the value if the comment begins with it."""
        note: str = self._measured["effective"].get(name, "")
        ran, _, why = note.partition(": ")
        return why if ran == spell(self._settings[name]) else note


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def _purpose(name: str, settings: Mapping[str, Scalar], measured: Mapping[str, Any]) -> str:
    """Returns what a setting does; empty if it needs no comment."""
    setting = settings[name]
    if name == "loader.kind":
        return traits(str(setting)).why
    if name == "optimizer.lr" and measured["lr"]["rule"] != "none":
        rate = measured["lr"]
        return (
            f"{rate['from_lr']:g} at a batch of {rate['at_batch']}, scaled to {rate['global_batch']} "
            f"by the {rate['rule']} rule"
        )
    return {
        "batch_size": "samples per step",
        "accumulate_steps": f"{setting} batches per optimiser step" if setting != 1 else "",
        "loader.num_workers": "loading processes" if setting else "the training process loads its own data",
        "loader.pin_memory": "page-locked batches, so that copies do not block" if setting else "",
        "precision.amp": _PRECISIONS[str(settings["precision.amp"])],
        "precision.tf32": "float32 products, convolutions and recurrent layers on tensor cores"
        if setting
        else "",
        "compile.mode": _MODES[str(settings["compile.mode"])],
        "compile.regional": "the repeated block is compiled once" if setting else "",
        "device.expandable_segments": "the allocator's blocks grow, so that varying sizes leave fewer gaps"
        if setting
        else "",
        "activation_checkpointing": "activations of the repeated blocks are recomputed instead of kept"
        if setting
        else "",
        "optimizer.fused": "one kernel for all parameters" if setting else "",
        "memory_format": "the image layout that tensor cores use" if setting == "channels_last" else "",
        "device.malloc": "freed host memory is kept for the next step instead of being returned to the system"
        if setting == "retain"
        else "",
    }.get(name, "")


_PRECISIONS: Mapping[str, str] = {
    "fp32": "",
    "bf16": "matrix products in half precision",
    "fp16": "matrix products in half precision",
    "fp8": "linear layers multiply in float8, the rest in bf16",
}

_MODES: Mapping[str, str] = {
    "eager": "",
    "default": "operations are fused into fewer kernels",
    "reduce-overhead": "fused, and launched as CUDA graphs",
    "max-autotune": "fused, with the fastest kernels found by search",
    "graph": "a whole step is one launch of a CUDA graph",
}


def _head(value: Mapping[str, Any], settings: Mapping[str, Scalar]) -> Iterator[str]:
    blocks = "`BLOCKS` (the list of layers that it repeats), " if _has_blocks(settings) else ""
    texts = [
        f"Lines for a plain PyTorch script that trains like {origin(value)}.",
        f"You supply a `dataset` (a TensorDataset where its `tensors` are used), a `model`, {blocks}and "
        "`loss_of(model, batch)`, where a batch is a list of tensors.",
        f"Promised: {promise(value)}.",
        *([f"It is {verdict}."] if (verdict := value["measurement"]["verdict"]) else []),
        *(f"Warning: {warning}" for warning in value["warnings"]),
    ]
    for text in texts:
        yield from _comment(text)


def _has_blocks(settings: Mapping[str, Scalar]) -> bool:
    """Returns whether the lines name the layers that the model repeats."""
    return bool(settings["activation_checkpointing"] or settings["compile.regional"])


def _imports(settings: Mapping[str, Scalar], writer: _ReasonWriter) -> Iterator[str]:
    if settings["device.malloc"] == "retain":
        yield "import ctypes"
    if settings["activation_checkpointing"]:
        yield "import functools"
    if settings["accumulate_steps"] != 1:
        yield "import itertools"
    expands = settings["device.expandable_segments"]
    if expands or not settings["device.cpu_threads"] or settings["device.count"] != 1:
        yield "import os"
    yield "import random"
    if settings["compile.mode"] == "graph" and settings["optimizer.name"] != "sgd":
        yield "import warnings"
    yield ""
    if expands:
        yield from writer.reasons_for("device.expandable_segments")
        yield 'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")'
        yield ""
    yield "import numpy"
    yield "import torch"
    if settings["activation_checkpointing"]:
        yield "import torch.utils.checkpoint"
    if settings["precision.amp"] == "fp8":
        yield "from torchao.float8 import Float8LinearConfig, convert_to_float8_training"


def _process(settings: Mapping[str, Scalar], writer: _ReasonWriter, on_gpu: bool) -> Iterator[str]:
    """Yields the lines that set up the process before anything is built."""
    seed, count = settings["seed"], settings["device.count"]
    if settings["device.malloc"] == "retain":
        yield from writer.reasons_for("device.malloc")
        yield _MALLOC
    if settings["device.numa"] == "near":
        yield from _comment(
            "device.numa near: run this with `numactl --cpunodebind=NODE --preferred=NODE`. NODE is the "
            "one that your GPU is attached to (`nvidia-smi topo -m`), or any node if there is no GPU."
        )
    share = "" if count == 1 else f" // {count}"
    threads = settings["device.cpu_threads"] or f"len(os.sched_getaffinity(0)){share}"
    yield f"torch.set_num_threads({threads})"
    yield f"torch.manual_seed({seed}), numpy.random.seed({seed}), random.seed({seed})"
    if not on_gpu:
        return
    if count == 1:
        yield 'device = torch.device("cuda")'
    else:
        yield from _comment(
            f"device.count {count}: run this with `torchrun --nproc-per-node {count}`, wrap the model in "
            f"DistributedDataParallel({_ddp(settings)}), and give each process its own share of the samples."
        )
        yield 'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
        yield "torch.cuda.set_device(device)"
        yield 'torch.distributed.init_process_group("nccl")'
    if settings["device.memory_fraction"]:
        yield f"torch.cuda.set_per_process_memory_fraction({settings['device.memory_fraction']})"
    yield from _tf32(settings, writer)
    yield f"torch.backends.cudnn.benchmark = {settings['compile.cudnn_benchmark']}"


def _ddp(settings: Mapping[str, Scalar]) -> str:
    options = {name: settings[f"ddp.{name}"] for name in DDP}
    given = [f"{name}={value}" for name, value in options.items() if value != FIELDS[f"ddp.{name}"].default]
    return ", ".join(["model", *given])


def _tf32(settings: Mapping[str, Scalar], writer: _ReasonWriter) -> Iterator[str]:
    """Yields the lines that set TF32; none for torch's default.

    Only the older calls are used: once the newer `fp32_precision` differs from the older flags, torch
    code that reads those flags (the compiler, `cudnn.flags`) raises an error.
    """
    setting = settings["precision.tf32"]
    if setting == "default":
        return
    yield from writer.reasons_for("precision.tf32")
    yield f'torch.set_float32_matmul_precision("{"high" if setting else "highest"}")'
    yield f"torch.backends.cudnn.allow_tf32 = {setting}"


def _loader_names(settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yields the names of the loader's settings that deserve a reason."""
    for name in ("loader.num_workers", "loader.pin_memory", "loader.prefetch_factor"):
        if name in settings:
            yield name


def _model(settings: Mapping[str, Scalar], writer: _ReasonWriter) -> Iterator[str]:
    options = {name: value for name, value in settings.items() if name.partition(".")[0] in ("model", "data")}
    if options:
        yield f"MEASURED_WITH = {options!r}  # Options of the model and the data; use the same."
    if settings["loader.buckets"] != 1:
        yield from _comment(
            f"loader.buckets {settings['loader.buckets']}: samples of similar length were batched "
            "together and padded to that many lengths; your dataset must do the same."
        )
    yield "model = model.to(device)"
    if settings["memory_format"] == "channels_last":
        yield from writer.reasons_for("memory_format")
        yield "model = model.to(memory_format=torch.channels_last)"
    if settings["precision.amp"] == "fp8":
        yield "# float8: linear layers whose sizes the tensor cores support."
        yield "convert_to_float8_training("
        yield "    model,"
        yield "    config=Float8LinearConfig(pad_inner_dim=True),  # For any number of rows."
        yield "    module_filter_fn=lambda layer, name: type(layer) is torch.nn.Linear"
        yield "    and layer.in_features % 16 == layer.out_features % 16 == 0,"
        yield ")"
    if settings["activation_checkpointing"]:
        yield from writer.reasons_for("activation_checkpointing")
        yield "for block in BLOCKS:"
        yield "    block.forward = functools.partial("
        yield "        torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False"
        yield "    )"
    yield from writer.reasons_for("compile.mode")
    mode, dynamic = settings["compile.mode"], settings["compile.dynamic"]
    how = "" if mode == "default" else f'mode="{mode}", '
    how += f"dynamic={None if dynamic == 'auto' else dynamic}"
    if mode in ("eager", "graph"):
        yield "compiled = model"
    elif settings["compile.regional"]:
        yield from writer.reasons_for("compile.regional")
        yield "compiled = model"
        yield f"for block in BLOCKS:\n    block.compile({how})"
    else:
        yield f"compiled = torch.compile(model, {how})"
