"""The folders of 0.1.0's sweeps and production run, laid out for a test."""

from __future__ import annotations

import importlib.metadata
import tarfile
from pathlib import Path

from sweeper.spec.sections import Execution
from sweeper.sweep.setup import device_model

FILES = ("line.py", "line.yaml", "script.py", "script.yaml")
PACKED = "folders.tar.xz"
ROOT, DEVICE, TORCH = "@ROOT@", "@DEVICE@", "@TORCH@"


def lay_out(folder: Path) -> Path:
    """Writes them below `folder` as if they had been recorded there, on this machine; returns their home."""
    marks = {ROOT: str(folder), DEVICE: device_model(Execution()), TORCH: importlib.metadata.version("torch")}
    with tarfile.open(Path(__file__).with_name(PACKED)) as packed:
        packed.extractall(folder, filter="data")
    for path in filter(Path.is_file, folder.rglob("*")):
        content = path.read_bytes()
        for mark, text in marks.items():
            content = content.replace(mark.encode(), text.encode())
        path.write_bytes(content)
    return folder / "mlruns"
