"""Where a search begins: what usually makes a training fast, as far as the space has it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar
from sweeper.spec import CategoricalParameter, Parameter, SweepSpec

_USUAL: Mapping[str, Sequence[Scalar]] = {
    "loader.kind": ("resident", "stream", "workers"),
    "loader.num_workers": (0,),
    "loader.pin_memory": (True,),
    "loader.persistent_workers": (True,),
    "precision.amp": ("bf16", "fp16"),
    "precision.tf32": (True,),
    "compile.mode": ("eager",),
    "optimizer.fused": (True,),
    "device.malloc": ("retain",),
    "memory_format": ("channels_last",),
    "accumulate_steps": (1,),
}
"""Best first; what the guides end with, and what their own measurements on GPUs and CPUs agree in."""

_VARIANTS: Sequence[tuple[float, Mapping[str, Sequence[Scalar]]]] = (
    (0.5, {}),
    (1.0, {}),
    (0.75, {"compile.mode": ("graph", "reduce-overhead", "default")}),
    (0.75, {"loader.kind": ("workers", "stream", "resident"), "loader.num_workers": ()}),
    (0.25, {"precision.amp": ("fp32",)}),
)
"""Where in the range of the batch size a start lies (0: smallest, 1: largest), and what it has otherwise."""

MOST_SIZES = 6
"""Model sizes, besides the baseline's own, that get a start each."""


def presets(spec: SweepSpec) -> list[dict[str, Scalar]]:
    """Returns the starts that differ from each other, as parameters of the space."""
    found: dict[str, dict[str, Scalar]] = {}
    for share, other in _VARIANTS:
        wanted = {**_USUAL, **other}
        params = {
            name: _at(parameter, share) if name == "batch_size" else _chosen(name, parameter, wanted, spec)
            for name, parameter in spec.space.items()
        }
        found.setdefault(spec.config(params).key(), params)
    for size in _other_sizes(spec):
        params = {**next(iter(found.values())), **size}
        found.setdefault(spec.config(params).key(), params)
    return list(found.values())


def _other_sizes(spec: SweepSpec) -> list[dict[str, Scalar]]:
    """Returns values of what changes the work itself (`model.*`, `data.*`), the baseline's own left out."""
    names = [name for name in spec.space if name.partition(".")[0] in OPEN_SECTIONS]
    ranges = [_few(spec.space[name]) for name in names]
    sizes = [dict(zip(names, each, strict=True)) for each in itertools.product(*ranges)] if names else []
    own = spec.baseline_config().work()
    return [size for size in sizes if any(own.get(n) != value for n, value in size.items())][:MOST_SIZES]


def _few(parameter: Parameter) -> Sequence[Scalar]:
    if isinstance(parameter, CategoricalParameter):
        return parameter.choices
    return list(dict.fromkeys((parameter.low, parameter.high)))


def _chosen(
    name: str, parameter: Parameter, wanted: Mapping[str, Sequence[Scalar]], spec: SweepSpec
) -> Scalar:
    """Returns the first of the usual values that the space has, else the user's own, else the default."""
    known = [FIELDS[name].default] if name in FIELDS else []
    for value in (*wanted.get(name, ()), spec.baseline.get(name), *known):
        if value is not None and parameter.contains(value):
            return parameter.like(value)
    return parameter.first()


def _at(parameter: Parameter, share: float) -> Scalar:
    """Returns the value that lies at `share` of the range, on a logarithmic scale."""
    if isinstance(parameter, CategoricalParameter):
        numbers = sorted(choice for choice in parameter.choices if isinstance(choice, int | float))
        return numbers[round(share * (len(numbers) - 1))] if numbers else parameter.first()
    low, high = max(parameter.low, 1), parameter.high
    value = low * (high / low) ** share
    steps = round((value - parameter.low) / parameter.step) if parameter.step else 0
    return parameter.like(min(parameter.low + steps * (parameter.step or 1), parameter.high))
