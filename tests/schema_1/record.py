"""Records what a version leaves on disk: `python tests/schema_1/record.py VERSION SOURCE`.

SOURCE is the root of that version's source. Runs a sweep of a pipeline and one of a script to their ends, one
that is killed in the middle, and a production run that has epochs left, or for `0.2.0-tune`, a tune. Packs
their folders without what can be made anew (reports, traces, caches, most telemetry). The folder, the device
and torch's version become the marks of `folders.py`.
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
from folders import DEVICE, FILES, ROOT, TORCH, packed

HERE = Path(__file__).parent
SWEEPS = Path("mlruns/sweeps")
LEFT_OUT = ("report.html", "report", "made.json", "trace.json.gz", "telemetry.log", "lock", "work", "cache")
SERIES_OF = ("trials/0000", "trials/0001")


def main(version: str, source: Path) -> None:
    """Records the folders into the packed file beside this one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file in FILES:
            shutil.copy(HERE / file, folder)
        if version.endswith("tune"):
            _sweeper(source, folder, "tune", "--minutes", "1.5", "--", "python", "rows.py")
            return _pack(folder, version, "tune-rows")
        _sweeper(source, folder, "run", "line.yaml")
        _sweeper(source, folder, "run", "script.yaml")
        _killed(source, folder)
        _sweeper(source, folder, "export", "finished")
        best = folder / SWEEPS / "finished/best.yaml"
        _sweeper(source, folder, "train", str(best), "--epochs", "400", "--max-minutes", "0.05")
        return _pack(folder, version, "finished")


def _sweeper(source: Path, folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "sweeper", *words], cwd=folder, env=_env(source), check=True)


def _env(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source)}


def _killed(source: Path, folder: Path) -> None:
    """Runs a sweep whose supervisor is killed while its third trial runs."""
    command = [sys.executable, "-m", "sweeper", "run", "line.yaml", "--set", "name=half"]
    supervisor = subprocess.Popen(command, cwd=folder, env=_env(source))
    trials = folder / SWEEPS / "half/trials"
    while not (trials / "0002/config.json").exists():
        time.sleep(0.01)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    time.sleep(2)  # Its processes end by themselves.
    assert not (trials / "0002/outcome.json").exists()


def _pack(folder: Path, version: str, name: str) -> None:
    marks_of = yaml.safe_load((folder / SWEEPS / name / "sweep.yaml").read_text())["fingerprint"]
    marks = {str(folder): ROOT, marks_of["device"]: DEVICE, marks_of["torch"]: TORCH}
    paths = [
        *map(folder.joinpath, FILES),
        *(folder / SWEEPS).rglob("*"),
        *(folder / "mlruns/train").rglob("*"),
    ]
    with tarfile.open(packed(version), "w:xz") as archive:
        for path in sorted(filter(Path.is_file, paths)):
            if _is_kept(path):
                content = path.read_bytes()
                for text, mark in marks.items():
                    content = content.replace(text.encode(), mark.encode())
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def _is_kept(path: Path) -> bool:
    if any(part in LEFT_OUT for part in path.parts):
        return False
    return "series" not in path.parts or str(path.parents[1]).endswith(SERIES_OF)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
