"""Defines TrialConfig: the complete configuration of one trial, with its dotted names in YAML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sweeper.core import loaders
from sweeper.core.registry import Registry
from sweeper.errors import UserError, did_you_mean

Scalar = bool | int | float | str | None

OPEN_SECTIONS = ("model", "data")
"""Sections whose keys belong to the pipeline."""


def _require(holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise UserError(f"{rule}, but got {got!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """How samples reach the device.

    Attributes:
        kind: `rows` collates one Python item per sample (what most hand-written datasets do),
            `workers` fetches whole batches by index in DataLoader workers, `resident` keeps the
            tensors on the device and gathers there, `stream` gathers in host memory and copies
            ahead of the step, for data larger than the device's memory. Any other is the import string of
            a third party's (`sweeper.core.loaders`).
        num_workers: DataLoader processes; 0 loads in the training process.
        prefetch_factor: Batches each worker keeps ready; no effect with `num_workers=0`.
        pin_memory: Page-locked host batches and asynchronous copies (CUDA only).
        persistent_workers: Workers survive the end of an epoch.
        drop_last: Drops a ragged last batch, so that shapes are static.
        buckets: Number of static lengths that samples of varying length are padded to; 1 pads all
            to the longest. Batches are drawn within a bucket, so this affects the loss.
        in_order: Batches come in the order in which they were requested. Without it, a slow batch does
            not delay the others, but runs are not reproducible.
        start_method: The start method of workers: torch's default, or `fork`, `forkserver` or `spawn`.
            The last two need a data set that can be pickled.
    """

    kind: str = field(default=loaders.RESIDENT, metadata={"registry": loaders.KINDS})
    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = True
    drop_last: bool = True
    buckets: int = 1
    in_order: bool = True
    start_method: Literal["default", "fork", "forkserver", "spawn"] = "default"

    def __post_init__(self) -> None:
        _require(self.num_workers >= 0, "`loader.num_workers >= 0` must hold", self.num_workers)
        _require(
            self.prefetch_factor >= 1,
            "`loader.prefetch_factor >= 1` must hold",
            self.prefetch_factor,
        )
        _require(self.buckets >= 1, "`loader.buckets >= 1` must hold", self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionConfig:
    """Arithmetic of a step.

    Attributes:
        amp: Type that autocast uses; `fp32` turns autocast off, `fp8` is bf16 with the matrix
            products of linear layers in float8.
        tf32: TF32 for the float32 operations that remain. `default` keeps torch's defaults: off for
            matrix products, on for cuDNN's convolutions and recurrent layers. True and False set both.
    """

    amp: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    tf32: Literal["default", True, False] = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """How a step is launched, and cuDNN's algorithm search.

    Attributes:
        mode: `eager` leaves the model as it is, `graph` captures the whole step (gather, forward,
            backward, optimiser) as a CUDA graph, the others are modes of torch.compile.
        dynamic: Whether sizes may vary in compiled code; `auto` compiles again when a size varies.
        regional: Compiles only the block that a model repeats, once, instead of the whole model.
    """

    mode: Literal["eager", "default", "reduce-overhead", "max-autotune", "graph"] = "eager"
    cudnn_benchmark: bool = False
    dynamic: Literal[False, True, "auto"] = False
    regional: bool = False

    @property
    def uses_compiler(self) -> bool:
        """Whether torch.compile compiles the model."""
        return self.mode not in ("eager", "graph")

    @property
    def compiler_captures(self) -> bool:
        """Whether torch.compile also captures CUDA graphs, of the forward and the backward pass."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def captures_step(self) -> bool:
        """Whether the whole step is captured as a CUDA graph, without torch.compile."""
        return self.mode == "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimiser and its learning rate.

    Attributes:
        lr: Learning rate at `lr_batch_size` samples per step.
        lr_rule: How the rate scales with the global batch: not at all, with its square root (Adam), or
            linearly (SGD).
        lr_batch_size: The global batch that `lr` is meant for; 0 means the trial's own. A sweep fills in
            the baseline's, so that an exported configuration is complete.
        warmup_steps: Steps over which the rate rises linearly from zero.
        clip_norm: Largest gradient norm; 0 leaves gradients alone.
    """

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = 1e-3
    lr_rule: Literal["none", "sqrt", "linear"] = "none"
    lr_batch_size: int = 0
    warmup_steps: int = 0
    weight_decay: float = 0.0
    fused: bool = True
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        _require(self.lr > 0, "`optimizer.lr > 0` must hold", self.lr)
        _require(
            self.lr_batch_size >= 0,
            "`optimizer.lr_batch_size >= 0` must hold",
            self.lr_batch_size,
        )
        _require(self.warmup_steps >= 0, "`optimizer.warmup_steps >= 0` must hold", self.warmup_steps)
        _require(self.clip_norm >= 0, "`optimizer.clip_norm >= 0` must hold", self.clip_norm)

    def lr_at(self, global_batch: int) -> float:
        """Returns the peak learning rate for `global_batch` samples per step."""
        ratio = global_batch / (self.lr_batch_size or global_batch)
        factor = {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[self.lr_rule]
        return self.lr * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The trial's share of the machine, and how its memory is used.

    Attributes:
        count: GPUs that train together, each on `batch_size` samples per step.
        memory_fraction: Share of the GPU's memory that may be allocated; 0 for no limit.
        cpu_threads: Threads per operation; 0 uses all usable cores.
        malloc: `retain` keeps freed host memory for the next step instead of returning it to the
            kernel, which must clear it again; `default` is what a plain script gets.
        expandable_segments: The GPU's allocator grows its blocks instead of adding new ones, so that
            varying sizes leave fewer gaps.
        numa: `near` keeps the trial on the cores and the memory next to its GPU; without a GPU, on one
            NUMA node.
    """

    count: int = 1
    memory_fraction: float = 0.0
    cpu_threads: int = 0
    malloc: Literal["retain", "default"] = "retain"
    expandable_segments: bool = False
    numa: Literal["default", "near"] = "default"

    def __post_init__(self) -> None:
        _require(self.count >= 1, "`device.count >= 1` must hold", self.count)
        _require(
            0 <= self.memory_fraction <= 1,
            "`0 <= device.memory_fraction <= 1` must hold",
            self.memory_fraction,
        )
        _require(self.cpu_threads >= 0, "`device.cpu_threads >= 0` must hold", self.cpu_threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpConfig:
    """How devices that train together exchange gradients (DistributedDataParallel).

    Attributes:
        static_graph: Promises that every step uses the same parameters in the same order.
        gradient_as_bucket_view: Gradients are views of the exchanged buckets, not copies.
        broadcast_buffers: Each step copies the first device's buffers (such as a batch norm's) to the others.
    """

    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One complete configuration. `model` and `data` hold keys that only the pipeline understands.

    Attributes:
        args: Every parameter of a script's command line by name, including those that are fields
            here; None for a pipeline. The names are the user's own and have no further meaning.
    """

    batch_size: int = 64
    accumulate_steps: int = 1
    seed: int = 0
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    activation_checkpointing: bool = False
    device: DeviceConfig = field(default_factory=DeviceConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    model: Mapping[str, Scalar] = field(default_factory=dict)
    data: Mapping[str, Scalar] = field(default_factory=dict)
    args: Mapping[str, Scalar] | None = None

    def __post_init__(self) -> None:
        _require(self.batch_size >= 1, "`batch_size >= 1` must hold", self.batch_size)
        _require(
            self.accumulate_steps >= 1,
            "`accumulate_steps >= 1` must hold",
            self.accumulate_steps,
        )

    @property
    def names_are_fields(self) -> bool:
        """Whether its names are the fields here, whose meaning is known; a script's are the user's own."""
        return self.args is None

    def sets(self, *names: str) -> bool:
        """Returns whether it has a value for each of these fields; a script may not."""
        return self.args is None or self.args.keys() >= {*names}

    @property
    def global_batch(self) -> int:
        """Samples that go into one optimiser step."""
        return self.batch_size * self.accumulate_steps * self.device.count

    def flatten(self) -> dict[str, Scalar]:
        """Returns every field by its dotted name; for a script, only its parameters."""
        if self.args is not None:
            return dict(sorted(self.args.items()))
        flat: dict[str, Scalar] = dict(zip(FIELDS, _all_fields(self), strict=True))
        for top in OPEN_SECTIONS:
            flat.update({f"{top}.{key}": value for key, value in sorted(getattr(self, top).items())})
        return flat

    def replace(self, changes: Mapping[str, Scalar]) -> TrialConfig:
        """Returns a copy with the dotted names in `changes` set.

        A part's name (`loader.kind`) is not checked, since a sweep's folder may have one that is not here.
        `check_value` checks it.

        Raises:
            UserError: A name is unknown (a script's may be any), or a value has the wrong type or breaks a
                rule.
        """
        args = self.args
        if args is not None:
            changes = {n: in_type(n, v) if is_known(n) else v for n, v in changes.items()}
            args = {**args, **changes}
            changes = {n: v for n, v in changes.items() if is_known(n)}
        tree: dict[str, Any] = {}
        for name, value in changes.items():
            checked = in_type(name, value)
            head, _, rest = name.partition(".")
            if rest:
                tree.setdefault(head, {})[rest] = checked
            else:
                tree[head] = checked
        for head, sub in tree.items():
            if head in OPEN_SECTIONS:
                tree[head] = {**getattr(self, head), **sub}
            elif isinstance(sub, dict):
                tree[head] = dataclasses.replace(getattr(self, head), **sub)
        return dataclasses.replace(self, **tree, args=args)

    def canonical(self) -> TrialConfig:
        """Returns the same trial, with fields that cannot have an effect set to their defaults.

        Configurations that run identically share one canonical form, which reveals duplicates. A
        script's configuration is its own canonical form, since any parameter may have an effect.
        """
        if self.args is not None:
            return self
        loader = self.loader
        if not loaders.traits(loader.kind).has_workers:
            loader = LoaderConfig(kind=loader.kind, drop_last=loader.drop_last, buckets=loader.buckets)
        elif loader.num_workers == 0:
            loader = dataclasses.replace(
                loader,
                prefetch_factor=FIELDS["loader.prefetch_factor"].default,
                persistent_workers=FIELDS["loader.persistent_workers"].default,
                in_order=FIELDS["loader.in_order"].default,
                start_method=FIELDS["loader.start_method"].default,
            )
        optimizer = self.optimizer
        if optimizer.lr_rule == "none":
            optimizer = dataclasses.replace(optimizer, lr_batch_size=0)
        compiled, ddp = self.compile, self.ddp
        if not compiled.uses_compiler:
            compiled = CompileConfig(mode=compiled.mode, cudnn_benchmark=compiled.cudnn_benchmark)
        if self.device.count == 1:
            ddp = DdpConfig()
        sections = {"loader": loader, "optimizer": optimizer, "compile": compiled, "ddp": ddp}
        if all(getattr(self, name) == section for name, section in sections.items()):
            return self
        return dataclasses.replace(self, **sections)  # type: ignore[arg-type]

    def settings(self) -> dict[str, Scalar]:
        """Returns the canonical values that are no field's default, by dotted name; of a script, all values.

        A field that is added later thus leaves the digests of earlier configurations as they are.
        """
        flat = self.canonical().flatten()
        if not self.names_are_fields:
            return flat
        return {n: value for n, value in flat.items() if n not in FIELDS or value != FIELDS[n].default}

    def key(self) -> str:
        """Returns a digest of the canonical configuration."""
        return _digest(self.settings())

    def quality_key(self) -> str:
        """Returns a digest of the fields that the loss depends on: numerics, not data loading."""
        flat = self.settings()
        kept = {
            name: value
            for name, value in flat.items()
            if name == "loader.buckets"
            or (not name.startswith(("loader.", "device.", "ddp.")) and name not in _SAME_LOSS)
        }
        if self.compile.captures_step:
            # The same kernels, launched differently.
            kept.pop("compile.mode")
        kept["accumulate_steps"] = self.on_one_device().accumulate_steps
        return _digest(kept)

    def on_one_device(self) -> TrialConfig:
        """Returns the same training on one device, which accumulates the other devices' share."""
        return dataclasses.replace(
            self,
            accumulate_steps=self.accumulate_steps * self.device.count,
            device=dataclasses.replace(self.device, count=1),
        )

    def work(self) -> dict[str, Scalar]:
        """Returns the parameters that change the work; samples/s are comparable only if these are equal."""
        if self.args is not None:
            return {n: v for n, v in self.flatten().items() if n.partition(".")[0] in OPEN_SECTIONS}
        return {f"{top}.{n}": v for top in OPEN_SECTIONS for n, v in sorted(getattr(self, top).items())}

    def work_key(self) -> str:
        """Returns a digest of `work`."""
        return _digest(self.work())


@dataclass(frozen=True, slots=True)
class Field:
    """One searchable name: its Python type, its default, and the allowed values if they are few.

    Attributes:
        registry: The registry of its values, if a third party's part may be one; else None.
    """

    name: str
    type: type
    default: Any
    choices: tuple[Scalar, ...] = ()
    registry: Registry[Any] | None = None


def _plain_type(hint: Any) -> tuple[type, tuple[Scalar, ...]]:
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return type(choices[0]), choices
    if get_origin(hint) in (Union, UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not NoneType)
    return hint, ()


def _fields_of(cls: type, prefix: str = "") -> dict[str, Field]:
    fields: dict[str, Field] = {}
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if prefix == "" and item.name in (*OPEN_SECTIONS, "args"):
            continue
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            fields.update(_fields_of(hint, f"{item.name}."))  # type: ignore[arg-type]
        else:
            kind, choices = _plain_type(hint)
            registry = item.metadata.get("registry")
            choices = tuple(registry.builtin) if registry else choices
            fields[prefix + item.name] = Field(prefix + item.name, kind, item.default, choices, registry)
    return fields


FIELDS: Mapping[str, Field] = _fields_of(TrialConfig)
"""Every closed field of TrialConfig by its dotted name; `model.*` and `data.*` are open."""

_SAME_LOSS = frozenset({"compile.cudnn_benchmark", "activation_checkpointing"})
"""Fields that do not change the loss, besides those of loaders, devices and DDP."""

_all_fields = operator.attrgetter(*FIELDS)


def field_of(name: str) -> Field | None:
    """Returns the field behind a dotted name, or None for a `model.*` or `data.*` name.

    Raises:
        UserError: No such field exists.
    """
    head, _, rest = name.partition(".")
    if head in OPEN_SECTIONS and rest:
        return None
    if name not in FIELDS:
        raise UserError(f"`{name}` is not a field of a trial.{did_you_mean(name, FIELDS)}")
    return FIELDS[name]


def is_known(name: str) -> bool:
    """Returns whether `name` is a field of a trial, or a `model.*` or `data.*` name."""
    head, _, rest = name.partition(".")
    return name in FIELDS or (head in OPEN_SECTIONS and bool(rest))


def check_value(name: str, value: Scalar) -> Scalar:
    """Returns `value` as `in_type` does; the name of a part must lead to one.

    Raises:
        UserError: The name is unknown, or the value is not one this field can take here.
    """
    config_field = field_of(name)
    if config_field is not None and config_field.registry is not None:
        config_field.registry.get(value)
    return in_type(name, value)


def in_type(name: str, value: Scalar) -> Scalar:
    """Returns `value` in the type of the field `name` (an int becomes a float where needed).

    Raises:
        UserError: The name is unknown, or the value is not one this field can take.
    """
    config_field = field_of(name)
    if config_field is None:
        return value
    if config_field.choices and config_field.registry is None:
        # 1 equals True, but is not accepted where True is a choice.
        if not any(value == choice and type(value) is type(choice) for choice in config_field.choices):
            words = [
                str(choice).lower() if isinstance(choice, bool) else str(choice)
                for choice in config_field.choices
            ]
            raise UserError(
                f"`{name}` must be one of {', '.join(words)}, but got {value!r}."
                + did_you_mean(str(value), words)
            )
        return value
    if config_field.type is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not config_field.type:
        raise UserError(f"`{name}` must be {_article(config_field.type)}, but got {value!r}.")
    return value


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", bool: "true or false"}.get(kind, "a string")


def _digest(value: object) -> str:
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()[:16]


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
