"""The distribution `greedy-sampler`: it draws near the best trial so far, half of the time."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

MODULE = SHOWN["greedy_sampler.py"]


def install_greedy_sampler(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"greedy": "greedy_sampler:GREEDY"}
    return install(folder, "greedy-sampler", {"sweeper.samplers": points}, {"greedy_sampler.py": module})
