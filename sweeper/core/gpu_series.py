"""Names the telemetry of a trial's GPUs: `gpu_power_w` is the first one's, `gpu1_power_w` the next one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def of_rank(name: str, rank: int) -> str:
    """Returns the name that a series of the first GPU has for the GPU of another rank."""
    return name if rank == 0 else name.replace("gpu_", f"gpu{rank}_", 1)


def by_rank(series: Mapping[str, T], count: int) -> list[dict[str, T]]:
    """Returns the series of each of `count` GPUs, under the first one's names."""
    gpus: list[dict[str, T]] = []
    for rank in range(count):
        prefix = of_rank("gpu_", rank)
        gpus.append(
            {
                f"gpu_{name.removeprefix(prefix)}": value
                for name, value in series.items()
                if name.startswith(prefix)
            }
        )
    return gpus
