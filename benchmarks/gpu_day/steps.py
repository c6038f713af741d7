"""The tables of calls and steps, and what a step knows of the day and says about it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SKIPPED = 77
"""Exit status of a step that does not apply here, as automake has it."""
FAILING = "SWEEPER_GPU_DAY_FAILING"
"""Environment variable with the steps that fail on purpose, each as `NAME` or `NAME=HOW`."""
WAYS_TO_FAIL = ("raise", "hang", "die")
ARCHIVE_MIB = 4.0
"""Of a step's folder, what may come back, before compression."""


CALLS = {"A": 490.0, "B": 170.0, "C1": 540.0, "C2": 540.0, "C3": 540.0, "D": 100.0}
"""Seconds of each call, all in all. Of the first 900 on a machine, A and B leave 240 for a second start."""


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the machine.

    Attributes:
        seconds: Its time box.
        function: As `MODULE:NAME` in `gpu_day`, as what runs the steps imports none of them.
    """

    name: str
    call: str
    seconds: float
    function: str

    def load(self) -> Callable[[Day], str]:
        """Returns its function."""
        module, _, name = self.function.partition(":")
        function: Callable[[Day], str] = getattr(importlib.import_module(f"gpu_day.{module}"), name)
        return function


STEPS = (
    # In order of worth: what would make all the rest worthless first, then what decides most.
    Step("threads", "A", 25, "alive:threads"),
    Step("probe", "A", 35, "probe:probe"),
    Step("watch", "A", 45, "product:watch"),
    Step("tune-pictures", "A", 220, "product:tune"),
    Step("quick", "A", 70, "product:quick"),
    Step("oom", "A", 20, "alive:oom"),
    Step("nvml", "A", 30, "recording:nvml"),
    Step("graph", "A", 30, "product:graph"),
    Step("tests", "B", 40, "alive:tests"),
    Step("trials", "B", 80, "alive:trials"),
    Step("train", "B", 35, "product:train"),
    Step("tune-amp", "C1", 260, "product:tune"),
    Step("tune-lstm", "C1", 260, "product:tune"),
    Step("tune-attention", "C2", 260, "product:tune"),
    Step("tune-small", "C2", 260, "product:tune"),
    Step("tune-wide", "C3", 260, "product:tune"),
    Step("tune-embedding", "C3", 260, "product:tune"),
    Step("rest", "D", 80, "product:rest"),
)


class SkippedError(Exception):
    """The step does not apply here; the text is the reason."""


class FailedError(Exception):
    """The step ran, and its result is not as it should be; the text is the result."""


def write_row(path: Path | None, row: Mapping[str, Any]) -> None:
    """Appends a line of JSON at once; prints it where there is no file."""
    line = json.dumps(row, default=str)
    if path is None:
        print(line, flush=True)
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


class Day:
    """What a step knows: where it writes, whether it is a rehearsal, how long it has.

    Attributes:
        rehearse: Whether there is a stand-in for the GPU, and as little to be done as shows that it works.
        name: The step's name.
    """

    def __init__(self, step: Step, rows: Path | None, out: Path, *, rehearse: bool, seconds: float) -> None:
        self.rehearse, self.name = rehearse, step.name
        self._call, self._rows, self._out = step.call, rows, out
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds until the step is killed."""
        return self._end - time.monotonic()

    def write(self, kind: str, **row: Any) -> None:
        """Writes a row; `kind` says what it is about."""
        write_row(self._rows, {"kind": kind, "step": self.name, **row})

    def figure(
        self, name: str, value: float, unit: str = "", *, bar: str = "", low: float = 0, high: float = 0
    ) -> None:
        """Writes a figure for `results/<device>/gpu.json`, and prints it.

        Args:
            bar: The condition to meet, such as `<= 1`.
            low: Lower end of its interval; none where both ends are 0.
            high: Upper end.
        """
        low, high = (low, high) if low or high else (value, value)
        self.write("figure", figure=name, value=value, low=low, high=high, bar=bar, unit=unit, repeats=1)
        print(f"{name}: {value:.4g} {unit}")

    def keep(self, folder: Path) -> None:
        """Packs the files of a folder, the smallest first, up to `ARCHIVE_MIB` of them."""
        self._out.mkdir(parents=True, exist_ok=True)
        left = ARCHIVE_MIB * 2**20
        files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        with tarfile.open(self._out / f"{self._call}-{self.name}.tar.gz", "w:gz") as tar:
            for path in sorted(files, key=lambda path: path.stat().st_size):
                left -= path.stat().st_size
                if left >= 0:
                    tar.add(path, path.relative_to(folder))


def counted(kinds: Mapping[str, int]) -> str:
    """Returns how many there are of each kind, the most frequent first."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))


def ways(failing: Iterable[str]) -> dict[str, str]:
    """Returns how steps are to fail, by their names."""
    pairs = (text.partition("=") for text in failing)
    return {name: how or WAYS_TO_FAIL[0] for name, _, how in pairs}


def _fail(how: str) -> None:
    """Fails on purpose."""
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        # In a session of its own, as a trial server is, and forgotten.
        sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
        print(f"forgotten: {subprocess.Popen(sleep, start_new_session=True).pid}", flush=True)
        # Stopped, it hears nothing but what kills it.
        os.kill(os.getpid(), signal.SIGSTOP)
    raise RuntimeError("broken on purpose")


def run_step(step: Step, rows: Path | None, out: Path, *, rehearse: bool, seconds: float) -> int:
    """Runs a step in this process and returns its exit status; its last line is its result."""
    day = Day(step, rows, out, rehearse=rehearse, seconds=seconds)
    # A shell may start what it runs in the background with Ctrl-C ignored; what a step starts must hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if how := ways(os.environ.get(FAILING, "").split()).get(step.name):
            _fail(how)
        print(step.load()(day), flush=True)
    except SkippedError as reason:
        print(reason, flush=True)
        return SKIPPED
    except FailedError as result:
        print(result, flush=True)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0
