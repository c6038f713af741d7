"""The distribution `acme-nets`: a pipeline of its own, with a module beside it."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

PIPELINE = SHOWN["acme_nets/spirals.py"]
ARMS = SHOWN["acme_nets/arms.py"]


def install_spirals(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"sweeper.pipelines": {"spirals": "acme_nets.spirals"}}
    files = {"acme_nets/__init__.py": "", "acme_nets/spirals.py": PIPELINE, "acme_nets/arms.py": ARMS}
    return install(folder, "acme-nets", points, files)
