"""The distribution `files-probe`: how many files a trial has open."""

from __future__ import annotations

from pathlib import Path

from distributions import install

PROBE = """\
import os

from sweeper.telemetry.probe import Probe

class FilesProbe(Probe):
    name = "files"

    def open(self, pid, device_uuid):
        self.folder = f"/proc/{pid}/fd"

    def read(self):
        try:
            return {"files_num_open": float(len(os.listdir(self.folder)))}
        except OSError:
            # The trial has ended.
            return {}

    def close(self):
        pass
"""
BROKEN = "raise RuntimeError('no licence')\n"


def install_files(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it.

    Another one beside it, `broken-probe`, has a probe that cannot be imported.
    """
    broken = {"sweeper.probes": {"broken": "broken_probe:Probe"}}
    install(folder, "broken-probe", broken, {"broken_probe.py": BROKEN})
    points = {"sweeper.probes": {"files": "open_files:FilesProbe"}}
    return install(folder, "files-probe", points, {"open_files.py": PROBE})
