"""Records what sweeper leaves on disk: `python tests/v0_1/record.py`, with the version that is to be kept.

Runs a sweep of a pipeline and one of a script to their ends, one that is killed in the middle, and a
production run that has epochs left, and packs their folders without what can be made anew (reports, traces,
caches, most telemetry). The folder, the device and torch's version become the marks of `folders.py`.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import yaml
from folders import DEVICE, FILES, PACKED, ROOT, TORCH

HERE = Path(__file__).parent
SWEEPS = Path("mlruns/sweeps")
LEFT_OUT = ("report.html", "report", "made.json", "trace.json.gz", "telemetry.log", "lock")
SERIES_OF = ("trials/0000", "trials/0001")


def main() -> None:
    """Records the folders into the packed file beside this one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for each in FILES:
            shutil.copy(HERE / each, folder)
        _sweeper(folder, "run", "line.yaml")
        _sweeper(folder, "run", "script.yaml")
        _killed(folder)
        _sweeper(folder, "export", "finished")
        best = folder / SWEEPS / "finished/best.yaml"
        _sweeper(folder, "train", str(best), "--epochs", "400", "--max-minutes", "0.05")
        _pack(folder)


def _sweeper(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "sweeper", *words], cwd=folder, env=_env(), check=True)


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE.parents[1])}


def _killed(folder: Path) -> None:
    """Runs a sweep whose supervisor is killed while its third trial runs."""
    command = [sys.executable, "-m", "sweeper", "run", "line.yaml", "--set", "name=half"]
    supervisor = subprocess.Popen(command, cwd=folder, env=_env())
    trials = folder / SWEEPS / "half/trials"
    while not (trials / "0002/config.json").exists():
        time.sleep(0.01)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    time.sleep(2)  # Its processes end by themselves.
    assert not (trials / "0002/outcome.json").exists()


def _pack(folder: Path) -> None:
    about = yaml.safe_load((folder / SWEEPS / "finished/sweep.yaml").read_text())["fingerprint"]
    marks = {str(folder): ROOT, about["device"]: DEVICE, about["torch"]: TORCH}
    paths = [
        *map(folder.joinpath, FILES),
        *(folder / SWEEPS).rglob("*"),
        *(folder / "mlruns/train").rglob("*"),
    ]
    with tarfile.open(HERE / PACKED, "w:xz") as packed:
        for path in sorted(filter(Path.is_file, paths)):
            if _is_kept(path):
                content = path.read_bytes()
                for text, mark in marks.items():
                    content = content.replace(text.encode(), mark.encode())
                about_file = tarfile.TarInfo(str(path.relative_to(folder)))
                about_file.size = len(content)
                packed.addfile(about_file, io.BytesIO(content))


def _is_kept(path: Path) -> bool:
    if any(part in LEFT_OUT for part in path.parts):
        return False
    return "series" not in path.parts or str(path.parents[1]).endswith(SERIES_OF)


if __name__ == "__main__":
    main()
