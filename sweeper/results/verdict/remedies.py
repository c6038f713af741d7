"""Names the next change to make for each bottleneck, as a change of the configuration if there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sweeper.core import loaders
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Bottleneck, Measurement
from sweeper.core.workload import is_reported
from sweeper.results.verdict.signals import Signals

SATURATED = 0.85
"""CPU utilisation from which more workers cannot help; loadtune has the same bound."""

HALF = ("bf16", "fp16")
LARGER = 4
MIN_GAIN = 0.15


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to make: in words, and by dotted names if it changes the configuration."""

    text: str
    changes: Mapping[str, Scalar] = field(default_factory=dict)


def rate(value: float) -> str:
    """Returns samples per second with three digits: `830`, `5.12k`, `1.3M`."""
    value = float(f"{value:.3g}")
    size, letter = next((scale for scale in ((1e6, "M"), (1e3, "k")) if value >= scale[0]), (1.0, ""))
    return f"{value / size:g}{letter}"


def percent(share: float) -> str:
    """Returns a share as a percentage: `81%`."""
    return f"{100 * share:.0f}%"


def remedy_for(kind: Bottleneck, signals: Signals, measurement: Measurement, config: TrialConfig) -> Remedy:
    """Returns the next thing to change: the first remedy for `kind` that applies.

    A script chooses the names of its settings, so its remedies change no configuration.
    """
    if is_reported(measurement):
        return Remedy(_for_script(kind, signals, measurement, config))
    return next(_OF[kind](signals, measurement, config))


def _for_script(kind: Bottleneck, s: Signals, measurement: Measurement, config: TrialConfig) -> str:
    lines = measurement.diagnosis.lines if measurement.diagnosis else {}

    def at(phase: str) -> str:
        return f" (most of it at {lines[phase][0]})" if lines.get(phase) else ""

    if kind is Bottleneck.INPUT and s.preparation > s.input / 2:
        return f"do it in the data set or in `collate_fn`, ahead of the step{at('data')}"
    # Both as shares of the time without evaluations, as the verdict compares them.
    evaluation = s.evaluation or 0.0
    if kind is Bottleneck.HOST and evaluation > (s.rest or 0.0) * (1 - evaluation):
        return f"evaluate less often, or on fewer samples{at('evaluation')}"
    waits = f" (at {', '.join(s.sync_places)})" if s.sync_places else at("forward")
    if kind is Bottleneck.SYNC and _exchanges_often(measurement, config):
        passes = "`no_sync()` around all backward passes but the last"
        return f"exchange gradients once a step, if it does not yet: {passes}{waits}"
    crowded = s.cpu is not None and s.cpu >= SATURATED
    workers = "" if crowded or _cores(measurement) == 1 else "more loader workers, or "
    seen = measurement.observed
    # What it has already, by itself or by a change, is no advice.
    half = () if _has(config, "precision", *HALF) or seen.get("precision") in HALF else ("mixed precision",)
    compiled = (
        () if _has(config, "compile", "model", "graphs") or seen.get("compiled") else ("torch.compile",)
    )
    fused = () if _has(config, "optimizer", "fused") or seen.get("fused") else ("a fused optimizer",)
    larger = ", ".join([*fused, *compiled])
    return {
        Bottleneck.INPUT: f"{workers}less work per sample: decode once, and fetch whole batches{at('data')}",
        Bottleneck.TRANSFER: "pinned memory and `non_blocking=True`, or smaller types converted on the GPU",
        Bottleneck.SYNC: f"read numbers every hundred steps, not in every one{waits}",
        Bottleneck.CAPACITY: f"memory is full: {', or '.join([*half, 'activation checkpointing'])}",
        Bottleneck.LAUNCH: f"a larger batch, or fewer and larger operations{larger and f': {larger}'}",
        Bottleneck.BANDWIDTH: "smaller types, fused operations; on a CPU, an allocator that retains memory",
        Bottleneck.COMPUTE: f"{' or '.join([*half, *compiled]) or 'a smaller model'}{at('forward')}",
        Bottleneck.HOST: f"log, print and evaluate less often{at('rest')}",
    }[kind]


def _exchanges_often(measurement: Measurement, config: TrialConfig) -> bool:
    """Returns whether ranks may exchange gradients at several backward passes of a step."""
    seen = measurement.observed
    several = seen.get("ranks", 1) > 1 and seen.get("accumulate_steps", 1) > 1
    return several and not _has(config, "exchange", "once")


def _has(config: TrialConfig, change: str, *values: str) -> bool:
    """Returns whether a change is made to a script, with one of these values."""
    return (config.args or {}).get(change) in values


def _input(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    loader, cores = config.loader, _cores(measurement)
    kind = loaders.traits(loader.kind)
    workers = loader.num_workers if kind.has_workers else 0
    # With so few cores, workers slow down training.
    crowded = workers and (workers >= cores or (s.cpu or 0.0) >= SATURATED)
    busy = f" (the CPU is at {percent(s.cpu)})" if s.cpu is not None else ""
    no_more = f"; adding workers will not help{busy}" if crowded else ""
    if not kind.is_resident and measurement.diagnosis and measurement.diagnosis.fits_device:
        yield _kind(loaders.RESIDENT, f"{_ceiling(s, measurement)}{no_more}")
    if kind.reads_rows:
        yield _kind(loaders.STREAM, f": whole batches, gathered ahead of the step{no_more}")
    if crowded:
        fewer = max(0, min(workers, cores) - 1)
        yield Remedy(f"`loader.num_workers: {fewer}`{no_more}", {"loader.num_workers": fewer})
    has_room = cores > 1 and (s.cpu or 0.0) < SATURATED and s.transfer < MIN_GAIN
    if not (kind.reads_rows or kind.is_resident) and has_room:
        lacking = s.device_rate / s.loader_rate if s.device_rate and s.loader_rate else 2.0
        wanted = min(cores, max(workers + 1, math.ceil(max(workers, 1) * lacking)))
        if wanted > workers:
            count = f" with `loader.num_workers: {wanted}`{_ceiling(s, measurement)}"
            yield _kind(loaders.WORKERS, count, {"loader.num_workers": wanted})
    yield Remedy("make a sample cheaper to read: decode it once, into arrays, in prepare()")


def _kind(kind: str, text: str, more: Mapping[str, Scalar] = MappingProxyType({})) -> Remedy:
    """Returns the remedy to use another kind of loader; `text` follows its name."""
    return Remedy(f"`loader.kind: {kind}`{text}", {"loader.kind": kind, **more})


def _transfer(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    kind = loaders.traits(config.loader.kind)
    if not kind.is_resident and measurement.diagnosis and measurement.diagnosis.fits_device:
        yield _kind(loaders.RESIDENT, _ceiling(s, measurement))
    if not (kind.is_resident or kind.copies_ahead):
        yield _kind(loaders.STREAM, ": copies run ahead of the step, from pinned memory")
    yield Remedy("send less: uint8 or float16 samples, converted to floats on the device, in loss()")


def _sync(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    if config.precision.amp == "fp16" and not config.optimizer.fused:
        yield Remedy(
            "`optimizer.fused: true`: otherwise fp16's scaler waits for the device", {"optimizer.fused": True}
        )
    if s.sync_places:
        yield Remedy(
            f"at {', '.join(s.sync_places)}: keep the number on the device (no .item(), .cpu(), print or "
            "torch.tensor in each step) and read it every hundred steps"
        )
    yield Remedy("find what loss() or the model waits for (a lock, a file, sleep, another process)")


def _capacity(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    yield from _bf16(measurement, config)
    if not config.activation_checkpointing:
        yield Remedy(
            "`activation_checkpointing: true`: less is stored per sample, so larger batches fit",
            {"activation_checkpointing": True},
        )
    yield Remedy(
        "memory is full: use a smaller model; `accumulate_steps` enlarges the batch, but is no faster"
    )


def _launch(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    if not config.optimizer.fused:
        yield Remedy(
            "`optimizer.fused: true`: one call instead of one per parameter", {"optimizer.fused": True}
        )
    if s.on_gpu and not config.compile.captures_step and config.device.count == 1 and s.host_paced:
        yield Remedy("`compile.mode: graph`: the whole step as one launch", {"compile.mode": "graph"})
    yield from _larger_batch(s, measurement, config)
    yield Remedy("fewer, larger operations: such a small step is mostly call overhead")


def _bandwidth(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    yield from _malloc(s, config)
    yield from _bf16(measurement, config)
    if s.on_gpu and config.compile.mode == "eager":
        yield Remedy("`compile.mode: default`: fused kernels read less", {"compile.mode": "default"})
    yield Remedy("read less per step: smaller types, fused operations")


def _compute(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    if (s.faults or 0.0) >= MIN_GAIN / 2:
        yield from _malloc(s, config)
    # Small matrices lose more to conversions than they gain, so the batch comes first.
    if (s.fixed or 0.0) < MIN_GAIN:
        yield from _bf16(measurement, config)
    # TF32 and bf16 came with the same GPU generation.
    native = measurement.diagnosis is None or measurement.diagnosis.native_bf16 is not False
    if s.on_gpu and native and config.precision.amp == "fp32" and config.precision.tf32 is not True:
        yield Remedy("`precision.tf32: true`", {"precision.tf32": True})
    if (s.fixed or 0.0) >= MIN_GAIN:
        yield from _larger_batch(s, measurement, config)
    if not s.on_gpu and 0 < config.device.cpu_threads < _cores(measurement):
        yield Remedy(
            f"`device.cpu_threads: {_cores(measurement)}`: all cores",
            {"device.cpu_threads": _cores(measurement)},
        )
    if s.on_gpu and config.compile.mode == "eager":
        yield Remedy("`compile.mode: default`: fused kernels", {"compile.mode": "default"})
    yield Remedy("the device is at its limit: a smaller model, a faster device, or several of them")


def _malloc(s: Signals, config: TrialConfig) -> Iterator[Remedy]:
    if not s.on_gpu and config.device.malloc == "default":
        yield Remedy(
            "`device.malloc: retain`: freed memory is kept for the next step", {"device.malloc": "retain"}
        )


def _bf16(measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    if config.precision.amp == "fp32" and measurement.diagnosis and measurement.diagnosis.native_bf16:
        yield Remedy("`precision.amp: bf16`", {"precision.amp": "bf16"})


def _larger_batch(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    max_size = measurement.train_samples // config.device.count
    size = 2 ** round(math.log2(LARGER * config.batch_size))
    while size > max_size:
        size //= 2
    if size <= config.batch_size:
        return
    longer = ""
    if s.fixed is not None:
        times = s.fixed + (1 - s.fixed) * size / config.batch_size
        how = f"only {times:.2g}x as long" if times > 1.1 else "barely longer"
        longer = f": a step takes {how}"
    yield Remedy(f"`batch_size: {size}`, if the loss allows it{longer}", {"batch_size": size})


def _ceiling(s: Signals, measurement: Measurement) -> str:
    """Returns the possible gain in words; empty if the ceiling is unknown."""
    if not s.device_rate or s.device_rate <= measurement.throughput:
        return ""
    return f": up to about {float(f'{s.device_rate / measurement.throughput:.2g}'):g}x"


def _cores(measurement: Measurement) -> int:
    return measurement.diagnosis.usable_cpus if measurement.diagnosis else 1


def _host(s: Signals, measurement: Measurement, config: TrialConfig) -> Iterator[Remedy]:
    yield Remedy("log, print and evaluate less often")


_OF: Mapping[Bottleneck, Callable[[Signals, Measurement, TrialConfig], Iterator[Remedy]]] = {
    Bottleneck.INPUT: _input,
    Bottleneck.TRANSFER: _transfer,
    Bottleneck.SYNC: _sync,
    Bottleneck.CAPACITY: _capacity,
    Bottleneck.LAUNCH: _launch,
    Bottleneck.BANDWIDTH: _bandwidth,
    Bottleneck.COMPUTE: _compute,
    Bottleneck.HOST: _host,
}
