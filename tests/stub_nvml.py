"""A stand-in for libnvidia-ml.so.1, so that the real pynvml runs where there is no GPU.

`build` compiles it, once; `write` says what it answers (nvml_stub.c has the format). Then `loaded` gives it
to this process until a test ends, and `environment` to a subprocess and all that it starts.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A rehearsal on a GPU's machine may have none.
    import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
SCENARIO = "STUB_NVML_SCENARIO"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread")

A10: Mapping[str, Sequence[float]] = {
    "util_gpu": [87],
    "util_mem": [41],
    "mem_used_mib": [4096],
    "power_mw": [148500],
    "power_limit_mw": [120000],
    "power_default_mw": [150000],
    "power_least_mw": [100000],
    "power_most_mw": [150000],
    "energy_mj": [9e12],
    "temperature_c": [61],
    "clock_sm": [1605],
    "clock_mem": [6251],
    "default_clock_sm": [1695],
    "max_clock_sm": [1710],
    "reasons": [0],
    "persistence": [1],
    "compute_mode": [0],
    "pcie_rx_kib": [2048],
    "pcie_tx_kib": [1024],
}
"""What an A10 answers: one value for each call, the last of which stays."""


@dataclass(frozen=True)
class Mig:
    """A MIG instance; `values` are its own alone, and few are told of one."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    instance: int = 7
    memory_mib: int = 4864
    values: Mapping[str, Sequence[float]] = field(default_factory=lambda: {"mem_used_mib": [1024]})
    processes: Sequence[tuple[object, ...]] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        values: By key, as nvml_stub.c names them; what is not there is Not Supported.
        processes: (pid, `self` or `child`; MiB or "-"; first and last listing it is in, from 1).
        samples: (pid, SM utilisation, the query at which it is taken: from 1, or 0 for long before).
    """

    uuid: str = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"
    name: str = "NVIDIA A10"
    memory_mib: int = 23028
    values: Mapping[str, Sequence[float]] = field(default_factory=lambda: dict(A10))
    processes: Sequence[tuple[object, ...]] = ()
    samples: Sequence[tuple[int, int, int]] = ()
    migs: Sequence[Mig] = ()

    def but(self, **values: Sequence[float] | None) -> Gpu:
        """Returns the same GPU with other values; None takes one away."""
        changed = {**self.values, **values}
        return replace(self, values={key: each for key, each in changed.items() if each is not None})


def compiler() -> str | None:
    """Returns a C compiler, where there is one."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compiles the library into a folder, and returns its path.

    It has no soname: a process that has loaded it by its path still finds a real driver's by its name.
    """
    library = folder / "libnvidia-ml.so.1"
    found = compiler()
    assert found is not None, "no C compiler"
    done = subprocess.run([found, *FLAGS, "-o", library, SOURCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def write(
    path: Path,
    gpus: Iterable[Gpu] = (),
    *,
    errors: Iterable[tuple[object, ...]] = (),
    delays: Mapping[str, int] | None = None,
    driver: str = "550.54.15",
    cuda: int = 12040,
) -> Path:
    """Writes a scenario, and returns its path; calls will be logged to `<path>.log`.

    Args:
        path: Of the file.
        gpus: In the order of NVML's indices.
        errors: (UUID or "*", function or "*", NVML's code, first and last call: from 1, all where absent).
        delays: Milliseconds that a function ("*": each) takes.
        driver: The driver's version.
        cuda: Its CUDA version, as a thousand times the major and ten times the minor number.
    """
    rows: list[tuple[object, ...]] = [("driver", driver), ("cuda", cuda), ("log", log_of(path))]
    for gpu in gpus:
        rows += [("device", gpu.uuid, gpu.memory_mib, gpu.name), *_rows(gpu)]
        rows += [("sample", gpu.uuid, *sample) for sample in gpu.samples]
        for mig in gpu.migs:
            rows += [("mig", mig.uuid, mig.memory_mib, mig.instance, mig.name), *_rows(mig)]
    rows += [("error", *error) for error in errors]
    rows += [("delay", *delay) for delay in (delays or {}).items()]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    log_of(path).write_text("", encoding="utf-8")
    return path


def _rows(unit: Gpu | Mig) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("value", unit.uuid, key, *each) for key, each in unit.values.items()]
    return rows + [("process", unit.uuid, *process) for process in unit.processes]


def log_of(scenario: Path) -> Path:
    """Returns where the calls of a scenario are logged, those of all processes."""
    return scenario.with_name(scenario.name + ".log")


def calls(scenario: Path, function: str = "") -> list[str]:
    """Returns the calls so far, as `function` or `function uuid`; of one function, where it is given."""
    lines = log_of(scenario).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not function or line.split(" ")[0] == function]


def environment(library: Path, scenario: Path) -> dict[str, str]:
    """Returns this process's environment, with which a process and all that it starts see the stub."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    path = f"{library.parent}{os.pathsep}{before}" if before else str(library.parent)
    return {**os.environ, "LD_LIBRARY_PATH": path, SCENARIO: str(scenario)}


def loaded(monkeypatch: pytest.MonkeyPatch, library: Path, scenario: Path) -> None:
    """Lets pynvml load the stub in this process, until the test ends; again with another scenario."""
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(str(library)))
    monkeypatch.setenv(SCENARIO, str(scenario))
