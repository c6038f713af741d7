"""The caveats of an export: what to know before relying on its figures."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.analysis.summary import Summary
from sweeper.core.config import TrialConfig
from sweeper.core.loaders import too_large
from sweeper.core.record import TrialRecord
from sweeper.spec import SweepSpec


def caveats(summary: Summary, spec: SweepSpec, record: TrialRecord, data_gib: float | None) -> Iterator[str]:
    """Yields warnings on the figures of a trial, one sentence or two each.

    Args:
        summary: The sweep's summary (`sweeper.analysis.summary.Summary`).
        data_gib: Size of the prepared data that was trained on; None where it is not known.
    """
    if summary.synthetic:
        yield "Measured on made-up data: measure again on your own before you rely on it."
    if summary.ratio is None or summary.winner is not record:
        yield "Not confirmed by repeats: the throughput is that of a single trial."
    if disturbance := summary.disturbance_of(record):
        yield f"Its timings were disturbed until the end: {disturbance}."
    if summary.yardstick is not None:
        yield from _learning_rate(spec, record.config, summary.yardstick.baseline.config)
    yield from _larger_data(spec, record, data_gib)


def _learning_rate(spec: SweepSpec, config: TrialConfig, baseline: TrialConfig) -> Iterator[str]:
    """A rate that was found for one batch is not the best one for another."""
    if config.args is not None and "batch_size" not in config.args:
        return
    rate = config.optimizer
    if config.args is None and rate.lr_rule != "none":
        return
    if config.global_batch != baseline.global_batch and "optimizer.lr" not in spec.space:
        what = f"`optimizer.lr: {rate.lr:g}`" if config.args is None else "the learning rate"
        yield (
            f"The global batch is {config.global_batch}, the baseline's {baseline.global_batch}, and nothing "
            f"adapted {what} to it: look at the learning rate again."
        )


def _larger_data(spec: SweepSpec, record: TrialRecord, data_gib: float | None) -> Iterator[str]:
    """Data at hand may lie in a memory that production's is too large for."""
    wanted = spec.production.data_gib if spec.production else None
    measured = record.measurement
    if wanted is None or data_gib is None or measured is None:
        return
    device = measured.device
    places = [("the host's memory, from where it is read again", device.host_memory_gib)]
    if device.kind != "cpu":
        places.insert(0, ("the device's memory", device.memory_gib))
    for place, room in places:
        if room and not too_large("", data_gib, room) and too_large("", wanted, room):
            yield (
                f"The data at hand ({data_gib:.3g} GiB) fits into {place}; production's ({wanted:g} GiB) "
                f"will not ({room:g} GiB): loading may be slower there than it was here."
            )
