"""The distribution `files-probe`: how many files a trial has open."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

PROBE = SHOWN["open_files.py"]
BROKEN = "raise RuntimeError('no licence')\n"


def install_files(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it.

    Another one beside it, `broken-probe`, has a probe that cannot be imported.
    """
    broken = {"sweeper.probes": {"broken": "broken_probe:Probe"}}
    install(folder, "broken-probe", broken, {"broken_probe.py": BROKEN})
    points = {"sweeper.probes": {"files": "open_files:FilesProbe"}}
    return install(folder, "files-probe", points, {"open_files.py": PROBE})
