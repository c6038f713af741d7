"""The distribution `cost-metrics`: what an epoch costs, with a price for each worker's core."""

from __future__ import annotations

from pathlib import Path

from distributions import install

MODULE = """\
from sweeper.core.metrics import Metric

USD_PER_HOUR, USD_PER_WORKER_HOUR = 3.0, 0.25


def usd_per_epoch(record):
    measured = record.measurement
    if not measured.epoch_seconds:
        return None
    rate = USD_PER_HOUR + USD_PER_WORKER_HOUR * record.config.loader.num_workers
    return rate * measured.epoch_seconds / 3600


USD_PER_EPOCH = Metric("usd_per_epoch", "USD", "minimize", usd_per_epoch, digits=3)
"""


def install_cost_metrics(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"usd_per_epoch": "cost_metrics:USD_PER_EPOCH"}
    return install(folder, "cost-metrics", {"sweeper.objectives": points}, {"cost_metrics.py": module})
