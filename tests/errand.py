"""The distribution `errand-launcher`: each job is a process, started as `python -m sweeper.worker`."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

LAUNCHER = SHOWN["errand_launcher.py"]


def install_errand(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"sweeper.launchers": {"errand": "errand_launcher:TRAITS"}}
    return install(folder, "errand-launcher", points, {"errand_launcher.py": LAUNCHER})
