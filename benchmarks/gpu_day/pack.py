"""The wheels that a bare machine lacks: fetched where there is a network, unpacked where there is none."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "wheels"
PACKAGES = (
    *("optuna", "colorlog", "alembic", "Mako", "SQLAlchemy", "tqdm"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions"),
    "libcst",
)
"""MLflow and plotly stay at home: a sweep runs without them, and `sweeper sync` sends it afterwards."""
MAX_MIB = 64
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")


def pack(folder: Path, python: str) -> int:
    """Fetches the wheels for a version of Python into `folder`; returns 0 where all are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, *(f"--platform={platform}" for platform in PLATFORMS)]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder), *PACKAGES]
    if subprocess.run(command, check=False).returncode:
        return 1
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:6.2f} MiB  {wheel.name}")
    mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(f"{mib:6.2f} MiB  {len(wheels)} wheels in {folder}, of at most {MAX_MIB} MiB")
    return int(mib > MAX_MIB or len(wheels) != len(PACKAGES))


def unpack(folder: Path, site: Path) -> None:
    """Unpacks the wheels of `folder` so that Python can import from `site`.

    Raises:
        FileNotFoundError: There is none.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FileNotFoundError(f"no wheels in {folder}; `gpu.py pack {folder}` fetches them")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
