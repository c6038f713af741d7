"""Defines the schema of an export: its blocks and their keys, in the order in which they are written.

None is written as null, unless its field is optional.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_origin, get_type_hints

from sweeper.core.config import Scalar

SCHEMA = 3
"""Version of the schema. Exports of versions 1 and 2 are translated as they are read."""

_OPTIONAL: Mapping[str, bool] = {"optional": True}
"""Metadata of a field whose key is left out if it is None."""
_FLAT: Mapping[str, bool] = {"flat": True}
"""Metadata of a field that is written as its own keys, without its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPipeline:
    """A pipeline and its configuration."""

    pipeline: str
    data: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfScript:
    """A command with its files, and the parameters in them.

    Attributes:
        changes: The changes made to it at run time (`sweeper.script.changes`).
        env: Its additional environment variables, those of changes included.
    """

    command: list[str]
    changes: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str]
    files: Mapping[str, str]
    params: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """The confirmed ratio to the baseline, with its 95% interval."""

    ratio: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The rate used at this global batch, and the rule it came from."""

    value: float
    global_batch: int
    rule: str
    from_lr: float
    at_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementBlock:
    """The figures of the trial.

    Attributes:
        throughput_low: Lower end of the 95% interval of a later throughput; None if not confirmed.
        throughput_high: Upper end of that interval; None if not confirmed.
        lr: The learning rate; None for a script, which sets its own.
        effective: What actually ran where it differs from the configuration, by field name.
        verdict: What limits the trial, and why.
    """

    throughput: float
    throughput_low: float | None = field(default=None, metadata=_OPTIONAL)
    throughput_high: float | None = field(default=None, metadata=_OPTIONAL)
    epoch_seconds: float | None
    projected_hours: float | None
    speedup: Speedup | None
    val_loss: float | None
    quality_samples: int | None
    lr: LearningRate | None = field(default=None, metadata=_OPTIONAL)
    gpu_mem_peak_gib: float | None
    gpu_mem_headroom_gib: float | None
    host_mem_peak_gib: float | None
    tree_mem_gib: float | None
    effective: Mapping[str, str]
    verdict: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The GPU of the trial."""

    gpu: str
    gpu_mem_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionsBlock:
    """The conditions under which the figures hold.

    Attributes:
        gpu: The trial's GPU; None if it had none.
        versions: Versions of torch, CUDA and the driver.
    """

    device: str
    gpu: Gpu | None = field(default=None, metadata=_FLAT)
    versions: Mapping[str, str] = field(metadata=_FLAT)
    train_samples: int | None
    data_gib: float | None
    cpu_threads: int | None
    usable_cpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionBlock:
    """The environment that a run needs."""

    pass_env: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of the figures.

    Attributes:
        sweeper: The version that wrote the export.
    """

    sweep: str
    trial: int
    uid: str
    measured_at: str
    sweeper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationBlock:
    """What `sweeper tune` verified about all changes to a script together.

    Attributes:
        kind: `exact`, `close` or `other draws`.
        extent: What the recorded runs cover, in words.
        code: Digest of the scripts that the command names.
    """

    kind: str
    extent: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An export.

    Attributes:
        subject: `OfPipeline` or `OfScript` as plain values, without credentials.
        production: The `production` section of the specification.
    """

    schema: int = SCHEMA
    subject: Mapping[str, Any] = field(metadata=_FLAT)
    measurement: MeasurementBlock
    conditions: ConditionsBlock
    verification: VerificationBlock | None = field(default=None, metadata=_OPTIONAL)
    production: Mapping[str, Any] | None = field(default=None, metadata=_OPTIONAL)
    execution: ExecutionBlock | None = field(default=None, metadata=_OPTIONAL)
    provenance: Provenance
    warnings: list[str]


def plain_values(block: Any) -> dict[str, Any]:
    """Returns a block as plain values."""
    tree: dict[str, Any] = {}
    for block_field in dataclasses.fields(block):
        value = getattr(block, block_field.name)
        plain_value = plain_values(value) if dataclasses.is_dataclass(value) else value
        if "flat" in block_field.metadata:
            tree.update(plain_value or {})
        elif plain_value is not None or "optional" not in block_field.metadata:
            tree[block_field.name] = plain_value
    return tree


def kinds(block: type) -> dict[str, type]:
    """Returns the type that each key of `OfPipeline` or `OfScript` has in a file."""
    return {name: get_origin(hint) or hint for name, hint in get_type_hints(block).items()}


def blocks() -> list[str]:
    """Returns the keys of the blocks that every export has."""
    return [name for name, hint in get_type_hints(Export).items() if dataclasses.is_dataclass(hint)]
