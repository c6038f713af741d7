"""Lists the caveats of an export: what to know before relying on its figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from sweeper.core.config import TrialConfig
from sweeper.core.loaders import why_too_large
from sweeper.core.record import TrialRecord
from sweeper.results import words
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.summary import Summary
from sweeper.schema import SweepSpec

_STEPS = re.compile(
    r"(?:-{1,2}|\+|(?:[\w-]+\.)+)(?:(?:max|num|n|total|train(?:ing)?)[-_])*(?:steps|iters|iterations)(?:=.*)?",
    re.I,
)
"""Matches an option for a run's number of steps: `--max_iters=1000`, `--steps`, `trainer.max_steps=100`."""


def caveats(summary: Summary, spec: SweepSpec, record: TrialRecord, data_gib: float | None) -> Iterator[str]:
    """Yields warnings about the figures of a trial, one or two sentences each.

    Args:
        summary: The sweep's summary (`sweeper.results.numbers.summary.Summary`).
        data_gib: Size of the prepared data; None if unknown.
    """
    if summary.synthetic:
        yield "Measured on synthetic data: measure on real data before you rely on it."
    if confirmed_ratio(summary, record) is None:
        yield "Not confirmed: the throughput comes from a single trial."
    elif summary.is_provisional:
        yield "Not confirmed by new processes: the throughput comes from those that found it."
    if disturbance := summary.disturbance_of(record):
        yield words.disturbance("this trial", disturbance)
    if summary.yardstick is not None:
        yield from _learning_rate(spec, record.config, summary.yardstick.baseline.config)
        yield from _steps_caveat(spec, record.config, summary.yardstick.baseline.config)
    yield from _larger_data(spec, record, data_gib)


def confirmed_ratio(summary: Summary, record: TrialRecord) -> Ratio | None:
    """Returns a trial's confirmed ratio; None if it has no interval, as after a single round."""
    ratio: Ratio | None = summary.ratio_of(record)
    return ratio if ratio is not None and math.isfinite(ratio.high) else None


def _learning_rate(spec: SweepSpec, config: TrialConfig, baseline: TrialConfig) -> Iterator[str]:
    """Warns if the batch differs from the baseline's and nothing adapted the learning rate to it."""
    if not config.sets("batch_size"):
        return
    rate = config.optimizer
    if config.names_are_fields and rate.lr_rule != "none":
        return
    if config.global_batch != baseline.global_batch and "optimizer.lr" not in spec.space:
        what = f"`optimizer.lr: {rate.lr:g}`" if config.names_are_fields else "the learning rate"
        yield (
            f"The global batch is {config.global_batch} (baseline: {baseline.global_batch}), but nothing "
            f"adapted {what} to it. Check the learning rate."
        )


def _steps_caveat(spec: SweepSpec, config: TrialConfig, baseline: TrialConfig) -> Iterator[str]:
    """Warns if a script's run is counted in steps and its batch differs from the baseline's."""
    if "batch_size" not in (config.args or {}) or config.global_batch == baseline.global_batch:
        return
    option = next((word for word in spec.command if _STEPS.fullmatch(word)), None)
    if option is not None:
        times = config.global_batch / baseline.global_batch
        yield (
            f"The run is counted in steps (`{option.partition('=')[0]}`): with this batch it trains on "
            f"{times:.3g} times the samples. Divide the steps by {times:.3g} for the same training."
        )


def _larger_data(spec: SweepSpec, record: TrialRecord, data_gib: float | None) -> Iterator[str]:
    """Warns if the sweep's data fits in a memory that is too small for production's data."""
    wanted = spec.production.data_gib if spec.production else None
    measured = record.measurement
    if wanted is None or data_gib is None or measured is None:
        return
    device = measured.device
    places = [("host memory", device.host_memory_gib)]
    if device.kind != "cpu":
        places.insert(0, ("device memory", device.memory_gib))
    for place, room in places:
        if room and not why_too_large("", data_gib, room) and why_too_large("", wanted, room):
            yield (
                f"The sweep's data ({data_gib:.3g} GiB) fits in {place} ({room:g} GiB), but production's "
                f"({wanted:g} GiB) will not. Loading may be slower there."
            )
