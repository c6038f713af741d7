"""What `benchmarks/gpu.py` recorded of NVML, played back through the stand-in for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stub_nvml import Gpu, write

UUID = "GPU-00000000-0000-4000-8000-000000000001"
FOLDER = Path(__file__).parent / "telemetry" / "recordings"
OF_TIME = ("gpu_pcie_rx_mib_s", "gpu_pcie_tx_mib_s")
"""Rates, which depend on when they are asked for."""


def recordings() -> list[Path]:
    """Every recording there is, by device and situation."""
    return sorted(FOLDER.glob("*.json"))


def read_recording(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def scenario_of(recording: Mapping[str, Any], path: Path) -> Path:
    """Writes a recording as a scenario for this process, which takes the watched one's place."""
    gpu = Gpu(
        uuid=UUID,
        name=recording["name"],
        memory_mib=recording["memory_mib"],
        values=recording["values"],
        processes=[tuple(each) for each in recording["processes"]],
        samples=[
            (os.getpid() if pid == "self" else pid, percent, query)
            for pid, percent, query in recording["samples"]
        ],
    )
    errors = [(UUID, *each) for each in recording["errors"]]
    return write(path, [gpu], errors=errors, driver=recording["driver"], cuda=recording["cuda"])
