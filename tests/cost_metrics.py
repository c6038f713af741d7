"""The distribution `cost-metrics`: what an epoch costs, with a price for each worker's core."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

MODULE = SHOWN["cost_metrics.py"]


def install_cost_metrics(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"usd_per_epoch": "cost_metrics:USD_PER_EPOCH"}
    return install(folder, "cost-metrics", {"sweeper.objectives": points}, {"cost_metrics.py": module})
