"""The distribution `house-formats`: `compact` is a file that reads back, `dotenv` is printed."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

MODULE = SHOWN["house_formats.py"]


def install_house_formats(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"compact": "house_formats:COMPACT", "dotenv": "house_formats:DOTENV"}
    return install(folder, "house-formats", {"sweeper.export_formats": points}, {"house_formats.py": module})
