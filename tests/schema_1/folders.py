"""The folders that earlier versions left, laid out for a test."""

from __future__ import annotations

import importlib.metadata
import tarfile
from pathlib import Path

from sweeper.schema.sections import ExecutionOptions
from sweeper.sweep.start.setup import device_model

FILES = ("line.py", "line.yaml", "script.py", "script.yaml", "rows.py")
VERSIONS = ("0.1.0", "0.2.0", "0.2.0-tune")
"""The last one is of a tune, which came after 0.2.0 and before schema 2."""
ROOT, DEVICE, TORCH = "@ROOT@", "@DEVICE@", "@TORCH@"


def packed(version: str) -> Path:
    """Returns the file with the folders of a version."""
    return Path(__file__).with_name(f"{version}.tar.xz")


def lay_out(folder: Path, version: str) -> Path:
    """Writes them below `folder` as if they had been recorded there, on this machine; returns their home."""
    marks = {
        ROOT: str(folder),
        DEVICE: device_model(ExecutionOptions()),
        TORCH: importlib.metadata.version("torch"),
    }
    with tarfile.open(packed(version)) as archive:
        archive.extractall(folder, filter="data")
    for path in filter(Path.is_file, folder.rglob("*")):
        content = path.read_bytes()
        for mark, text in marks.items():
            content = content.replace(mark.encode(), text.encode())
        path.write_bytes(content)
    return folder / "mlruns"
