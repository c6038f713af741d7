"""`sweeper show NAME --trial N`: prints everything about one trial."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.job import LOG, RECORD, SERIES, TELEMETRY_LOG, TRACE, read_job
from sweeper.core.measurement import Measurement
from sweeper.core.metrics import metric_row
from sweeper.core.place import describe_place
from sweeper.core.record import TrialRecord
from sweeper.errors import EnvironmentStopError
from sweeper.results.formatting import rate, seconds
from sweeper.results.numbers.summary import metrics_of
from sweeper.results.trial_card import trial_card
from sweeper.system.files import read_json

_CHARTED = (
    ("gpu_sm_active_pct", "GPU, SMs active"),
    ("gpu_util_pct", "GPU, NVML's utilisation"),
    ("cpu_util_pct", "CPU"),
)
_FILES = {
    TELEMETRY_LOG: "utilisation, memory, power and temperature, second by second",
    TRACE: "some profiled steps: open it in chrome://tracing or Perfetto",
    LOG: "the trial's output",
}
_SOURCES = {
    "gpu_util_pct": "NVML: any kernel running",
    "gpu_sm_active_pct": "performance counters (GPM)",
}
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_CHART_WIDTH = 72
_BLOCKS = " ▁▂▃▄▅▆▇█"


def trial_lines(record: TrialRecord, name: str, stage: str, traced: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines about one trial.

    Args:
        traced: The summary of its trace; empty without one.
    """
    yield f"{name} ({stage})"
    if record.origin:
        yield f"  tried because: {record.origin}"
    if where := describe_place(record.place):
        yield f"  ran on: {where}"
    if _is_cold(Path(record.folder)):
        yield "  cold cache: its data was read from the disk"
    for field, value in record.config.canonical().flatten().items():
        yield f"  {field}: {value}"
    if (Path(record.folder) / RECORD).exists():
        ran = read_json(Path(record.folder) / RECORD)
        yield f"  ran: {shlex.join(ran['command'])}"
    failure, measured = record.failure, record.measurement
    if failure is not None:
        yield f"{failure.kind} in stage `{failure.stage}` after {seconds(failure.seconds)}: {failure.message}"
        yield failure.detail
    if measured is not None:
        yield ""
        yield from trial_card(record)
        yield ""
        yield "Result"
        for metric, value in metrics_of(record).items():
            how = f" ({record.notes['time_to_loss_how']})" if metric == "time_to_loss_s" else ""
            unit = "" if metric in record.pipeline_metrics else metric_row(metric).unit
            yield f"  {metric}: {value:g} {unit}".rstrip() + how
        if math.isinf(record.derived.get("time_to_loss_s", 0.0)):
            yield "  time_to_loss_s: never; its loss does not reach the baseline's"
        yield ""
        yield from _times(measured)
        yield ""
        if traced:
            yield "Most expensive operations (under the profiler, ms per step)"
            yield from (f"  {name:<60} {ms:8.3f}" for name, ms in traced["operations"].items())
            yield from _arithmetic(record.config, measured, traced)
            yield ""
        yield from _statistics(measured)
        yield from _charts(Path(record.folder) / SERIES)
    yield ""
    yield f"All files are in {record.folder}."
    for file, what in _FILES.items():
        if (Path(record.folder) / file).exists():
            yield f"  {file:<16} {what}"


def _is_cold(folder: Path) -> bool:
    # A missing or damaged file must not hide the rest.
    with contextlib.suppress(OSError, EnvironmentStopError):
        return read_job(folder).cold_cache
    return False


def _arithmetic(config: TrialConfig, measurement: Measurement, traced: Mapping[str, Any]) -> Iterator[str]:
    """Yields the share of its devices' arithmetic that a training uses; nothing for a trace without counts.

    The share is MFU, or HFU if activations are recomputed: the trace counts those operations as well.
    """
    if flops := traced.get("flops_per_sample"):
        # The trace runs on one device.
        here, peak = flops * measurement.throughput, traced["matmul_flops"] * config.device.count
        # `sweeper.trainer.trace` compares float8 with bf16.
        precision = "bf16" if config.precision.amp == "fp8" else "its precision"
        recomputes = (
            config.activation_checkpointing and "activation_checkpointing" not in measurement.effective
        )
        yield (
            f"  {_flops(flops)} per sample{' with recomputation' if recomputes else ''}: {_flops(here)}/s of "
            f"the {_flops(peak)}/s that matrix products reach here in {precision} "
            f"({'HFU' if recomputes else 'MFU'} {100 * here / peak:.2g}%)"
        )


def _flops(count: float) -> str:
    unit, size = next(((u, s) for u, s in _UNITS if count >= s), _UNITS[-1])
    return f"{count / size:.3g} {unit}FLOP"


def _times(measurement: Measurement) -> Iterator[str]:
    yield "Times"
    yield (
        f"  start-up {seconds(measurement.startup_seconds)},"
        f" first step {seconds(measurement.first_step_seconds)}"
        + (
            f" (compiling {seconds(measurement.compile_seconds)},"
            f" cache {measurement.compile_cache or 'not used'})"
            if measurement.compile_seconds
            else ""
        )
    )
    unsteady = "" if measurement.steady else ", and the step time was still unsteady"
    yield f"  warm-up {seconds(measurement.warmup_seconds)}, {measurement.warmup_steps} steps{unsteady}"
    for window in measurement.windows:
        flags = f"  disturbed: {', '.join(window.disturbances)}" if window.disturbances else ""
        yield (
            f"  window of {seconds(window.seconds)}: {rate(window.samples / window.seconds)}, "
            f"{window.cpu_seconds / window.seconds:.2f} cores busy "
            f"({window.foreign_cpu_seconds / window.seconds:.2f} by others){flags}"
        )
    if measurement.repeated_windows:
        yield f"  disturbed windows, measured again: {measurement.repeated_windows}"
    if measurement.quality is not None:
        yield f"  loss after {measurement.quality.samples:,} samples: {seconds(measurement.quality.seconds)}"


def _statistics(measurement: Measurement) -> Iterator[str]:
    yield f"{'Inside the windows':<28} {'mean':>9} {'median':>9} {'p95':>9}"
    for name, stats in sorted(measurement.telemetry.items()):
        source = f"  {_SOURCES[name]}" if name in _SOURCES else ""
        yield f"  {name:<26} {stats.mean:9.4g} {stats.p50:9.4g} {stats.p95:9.4g}{source}"
    for name, why in sorted(measurement.telemetry_missing.items()):
        yield f"  {name}: {why}"


def _charts(folder: Path) -> Iterator[str]:
    """Yields utilisation over the whole trial, one character per block of time."""
    moments = _read(folder / "time_s.npy")
    for name, title in _CHARTED:
        column = _read(folder / f"{name}.npy")
        points = [(t, v) for t, v in zip(moments, column, strict=False) if not math.isnan(v)]
        if len(points) < 2:
            continue
        begin, end = points[0][0], points[-1][0]
        yield ""
        yield f"{title} over {seconds(end - begin)}, 0 to 100%"
        yield f"  {_bars([(t - begin) / max(end - begin, 1e-9) for t, _ in points], [v for _, v in points])}"


def _bars(places: Sequence[float], values: Sequence[float]) -> str:
    cells: list[list[float]] = [[] for _ in range(min(_CHART_WIDTH, len(values)))]
    for place, value in zip(places, values, strict=True):
        cells[min(len(cells) - 1, int(place * len(cells)))].append(value)
    levels = [sum(cell) / len(cell) if cell else math.nan for cell in cells]
    return "".join(
        "·" if math.isnan(level) else _BLOCKS[min(8, max(0, round(level / 100 * 8)))] for level in levels
    )


def _read(path: Path) -> Sequence[float]:
    if not path.is_file():
        return ()
    import numpy as np

    try:
        values: list[float] = np.load(path, allow_pickle=False).tolist()
    except (OSError, ValueError, EOFError):
        return ()
    return values
