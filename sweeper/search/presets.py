"""Chooses the first configurations of a search: those of the space that usually train fast."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar
from sweeper.core.loaders import BEST_FIRST, RESIDENT, STREAM, WORKERS
from sweeper.core.past import PastSweep
from sweeper.schema import CategoricalParameter, Parameter, SweepSpec
from sweeper.search.distributions import nearest_value, value_in
from sweeper.search.guidance import preset_for, size_of, workers_for

_USUAL: Mapping[str, Sequence[Scalar]] = {
    "loader.kind": BEST_FIRST,
    "loader.num_workers": (0,),
    "loader.pin_memory": (True,),
    "loader.persistent_workers": (True,),
    "loader.buckets": (8, 6, 4),
    "precision.amp": ("bf16", "fp16"),
    "precision.tf32": (True,),
    "compile.mode": ("eager",),
    "optimizer.fused": (True,),
    "device.malloc": ("retain",),
    "memory_format": ("channels_last",),
    "accumulate_steps": (1,),
    "activation_checkpointing": (False,),
}
"""Usual values by name, best first, from the guides and their measurements on GPUs and CPUs."""

_VARIANTS: Sequence[tuple[str, float, Mapping[str, Sequence[Scalar]]]] = (
    ("usually fast values, with a batch from the middle of its range", 0.5, {}),
    ("usually fast values, with the largest batch", 1.0, {}),
    (
        "usually fast values, with steps launched as a graph or compiled",
        0.75,
        {"compile.mode": ("graph", "reduce-overhead", "default")},
    ),
    (
        "loader workers instead of data on the device",
        0.75,
        {"loader.kind": (WORKERS, STREAM, RESIDENT), "loader.num_workers": ()},
    ),
    ("full precision with a small batch", 0.25, {"precision.amp": ("fp32",)}),
)
"""Starts: a description, the place in the batch size's range (0: smallest, 1: largest), unusual values."""

_LATE = _VARIANTS[-1]
"""The start that is rarely near the best; it is for spaces in which the climb ends in a local optimum."""

THREADS = "device.cpu_threads"

MAX_SINGLE_CHANGES = 10
"""Largest number of starts that differ from a script's baseline in one value."""

MAX_SIZES = 6
"""Largest number of model sizes besides the baseline's that get a start each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Facts for first guesses besides the space; unknown by default.

    Attributes:
        device: The GPU's or CPU's name.
        cores: Cores that a trial may use; 0 if unknown.
        samples: Training samples; 0 if unknown.
        baseline: The objective's value for the baseline; 0 if unknown.
        past: An earlier sweep of the same training; None without one.
    """

    device: str = ""
    cores: int = 0
    samples: int = 0
    baseline: float = 0.0
    past: PastSweep | None = None


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Parameters to begin with, and why; late ones are tried before the search ends."""

    params: dict[str, Scalar]
    why: str
    is_late: bool = False


def presets(spec: SweepSpec, hints: Hints | None = None) -> list[StartPoint]:
    """Returns the distinct starts, as parameters of the space."""
    hints = hints or Hints()
    starts: dict[str, StartPoint] = {}

    def add(params: dict[str, Scalar], why: str, *, is_late: bool = False) -> None:
        starts.setdefault(spec.config(params).key(), StartPoint(params, why, is_late))

    for index, variant in enumerate(_VARIANTS):
        why, share, other = variant
        if index == 1:
            # It is not known what is usually fast for a script, so each of its flags is tried alone.
            for params, reason in _single_changes(spec):
                add(params, reason)
        batch = (
            {"batch_size": _value_at(spec.space["batch_size"], share)} if "batch_size" in spec.space else {}
        )
        add(*_fill(spec, {**_USUAL, **other}, batch, hints, why), is_late=variant is _LATE)
    guided = _guide_values(spec, hints)
    if guided is not None:
        add(*guided)
    first = next(iter(starts.values()))
    for size in _other_sizes(spec):
        text = ", ".join(f"{name} {value}" for name, value in size.items())
        add({**first.params, **size}, f"the first start at another size: {text}")
    return list(starts.values())


def _single_changes(spec: SweepSpec) -> list[tuple[dict[str, Scalar], str]]:
    """Returns a script's baseline with one value changed, the most promising first."""
    if spec.traits.names_are_fields:
        return []
    flat = spec.baseline_config().flatten()
    # The baseline may lie outside the space: more workers than this machine has cores.
    base = {name: value_in(parameter, flat.get(name)) for name, parameter in spec.space.items()}
    candidates: list[tuple[str, Scalar]] = []
    for name, parameter in spec.space.items():
        if name == "batch_size" or name.partition(".")[0] in OPEN_SECTIONS:
            # The climb changes these step by step.
            continue
        if isinstance(parameter, CategoricalParameter):
            candidates += [(name, choice) for choice in parameter.choices]
        elif name == "loader.num_workers" and parameter.contains(0):
            candidates.append((name, 0))
    changes = [(name, value) for name, value in candidates if base[name] != value]
    # Workers and the allocator cost nothing to change, and most often make an unknown script faster.
    changes.sort(key=lambda change: change[0] not in ("loader.num_workers", "device.malloc"))
    return [
        ({**base, name: value}, f"your baseline with {name} {value}")
        for name, value in changes[:MAX_SINGLE_CHANGES]
    ]


def _fill(
    spec: SweepSpec,
    wanted: Mapping[str, Sequence[Scalar]],
    fixed: Mapping[str, Scalar],
    hints: Hints,
    why: str,
) -> tuple[dict[str, Scalar], str]:
    """Returns the parameters including `fixed`, and `why`; without `wanted` workers, the formula applies."""
    params = {
        name: fixed[name] if name in fixed else _choose(name, parameter, wanted, spec)
        for name, parameter in spec.space.items()
    }
    threads = spec.space.get(THREADS)
    if threads is not None and hints.cores and not threads.contains(FIELDS[THREADS].default):
        # All cores, as torch uses by default.
        params[THREADS] = nearest_value(threads, hints.cores)
    workers = spec.space.get("loader.num_workers")
    if workers is None or not hints.cores or wanted.get("loader.num_workers"):
        return params, why
    batch = params.get("batch_size", spec.baseline_config().batch_size)
    assert isinstance(batch, int)
    max_workers = size_of(hints.samples).most_workers
    count = workers_for(hints.cores, batch, max_workers)
    params["loader.num_workers"] = nearest_value(workers, count)
    formula = f"{count} workers = min({hints.cores} cores / 2, {max_workers}, {batch} / 32)"
    return params, f"{why}; {formula}"


def _guide_values(spec: SweepSpec, hints: Hints) -> tuple[dict[str, Scalar], str] | None:
    """Returns the guides' values for this GPU, or None if they have none."""
    preset, size = preset_for(hints.device), size_of(hints.samples)
    if preset is None or "batch_size" not in spec.space:
        return None
    preset_values = {
        "batch_size": preset.batch_size * size.batch_factor,
        "model.hidden_size": preset.hidden_size,
        "loader.num_workers": min(preset.num_workers, max(1, hints.cores)),
    }
    fixed = {
        name: nearest_value(spec.space[name], value)
        for name, value in preset_values.items()
        if name in spec.space
    }
    text = ", ".join(f"{name} {value}" for name, value in fixed.items())
    data = f" and {size.title}" if size.title else ""
    return _fill(spec, _USUAL, fixed, hints, f"the guides' values for {preset.title}{data}: {text}")


def usual_size(spec: SweepSpec) -> dict[str, Scalar]:
    """Returns the baseline's values of the parameters that change the work, as far as the space has them."""
    work = spec.baseline_config().work()
    return {
        name: parameter.like(work[name])
        for name, parameter in spec.space.items()
        if name.partition(".")[0] in OPEN_SECTIONS and name in work and parameter.contains(work[name])
    }


def _other_sizes(spec: SweepSpec) -> list[dict[str, Scalar]]:
    """Returns values of the parameters that change the work (`model.*`, `data.*`), except the baseline's."""
    names = [name for name in spec.space if name.partition(".")[0] in OPEN_SECTIONS]
    ranges = [_few_values(spec.space[name]) for name in names]
    sizes = (dict(zip(names, combination, strict=True)) for combination in itertools.product(*ranges))
    work = spec.baseline_config().work()
    others = (size for size in sizes if any(work.get(n) != value for n, value in size.items()))
    return list(itertools.islice(others, MAX_SIZES))


def _few_values(parameter: Parameter) -> Sequence[Scalar]:
    if isinstance(parameter, CategoricalParameter):
        return parameter.choices
    return list(dict.fromkeys(nearest_value(parameter, end) for end in (parameter.low, parameter.high)))


def _choose(
    name: str, parameter: Parameter, wanted: Mapping[str, Sequence[Scalar]], spec: SweepSpec
) -> Scalar:
    """Returns the first of the usual values that the space has, else the user's own, else the default."""
    defaults = [FIELDS[name].default] if name in FIELDS else []
    for value in (*wanted.get(name, ()), spec.baseline.get(name), *defaults):
        if value is not None and parameter.contains(value):
            return parameter.like(value)
    return parameter.first_value()


def _value_at(parameter: Parameter, share: float) -> Scalar:
    """Returns the value that lies at `share` of the range, on a logarithmic scale."""
    if isinstance(parameter, CategoricalParameter):
        numbers = sorted(choice for choice in parameter.choices if isinstance(choice, int | float))
        return numbers[round(share * (len(numbers) - 1))] if numbers else parameter.first_value()
    low, high = max(parameter.low, 1), parameter.high
    return nearest_value(parameter, low * (high / low) ** share)
