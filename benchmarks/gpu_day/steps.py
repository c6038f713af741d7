"""The table of steps, and what a step knows of the day and says about it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SKIPPED = 77
"""Exit status of a step that does not apply here, as automake has it."""

UNKNOWN = "unknown"
"""The commit of a copy without its history."""


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the machine.

    Attributes:
        module: Of `gpu_day`; its function has the step's name.
        seconds: Its limit; less where the call has less left.
        rehearsal_seconds: Its limit in a rehearsal.
    """

    name: str
    call: int
    module: str
    seconds: float
    rehearsal_seconds: float = 60.0

    def load(self) -> Callable[[Day], str]:
        """Returns its function."""
        found: Callable[[Day], str] = getattr(importlib.import_module(f"gpu_day.{self.module}"), self.name)
        return found


STEPS = (
    Step("threads", 1, "alive", 60),
    Step("nvml", 1, "recording", 75),
    Step("pytest_gpu", 1, "alive", 150),
    Step("oom", 1, "alive", 60),
    Step("trials", 1, "alive", 400, 90),
    Step("doctor", 2, "product", 75, 75),
    Step("watch", 2, "product", 180),
    Step("export", 2, "product", 90, 120),
    Step("train", 2, "product", 75, 90),
    Step("sweep", 2, "product", 420, 120),
    Step("overhead", 3, "bars", 60),
    Step("mlp", 3, "bars", 50),
    Step("lstm", 3, "bars", 50),
    Step("hand", 3, "bars", 40),
    Step("rows", 3, "bars", 60),
    Step("buckets", 3, "bars", 40),
    Step("breakdown", 3, "bars", 60),
    Step("same_twice", 3, "bars", 60, 90),
    Step("tf32", 3, "bars", 60, 90),
    Step("telemetry", 3, "bars", 60),
    Step("verdicts", 3, "bars", 75, 75),
    Step("caches", 3, "bars", 90, 150),
    Step("kuairand", 4, "ladders", 110, 150),
    Step("sequence", 4, "ladders", 110, 150),
    Step("behaviour", 4, "ladders", 110, 150),
    Step("stocks", 4, "ladders", 110, 150),
    Step("sign_language", 4, "ladders", 110, 150),
    Step("surface", 4, "ladders", 400),
    Step("tune", 5, "unedited", 520, 300),
)

CALLS = {1: "alive", 2: "the product", 3: "the bars", 4: "the ladders", 5: "a script"}


def step_of(name: str) -> Step:
    """Returns a step by its name.

    Raises:
        KeyError: There is none.
    """
    return {step.name: step for step in STEPS}[name]


class SkippedError(Exception):
    """The step does not apply here; the text is the reason."""


class FailedError(Exception):
    """The step ran, and what it found is not as it should be; the text says what was found."""


def hide_gpus() -> None:
    """Leaves the CPU alone to this process and all it starts; to be called before torch is imported."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


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
        rehearse: Whether to run on the CPU, and as little as shows that the code works.
        out: Where files go that are to come back.
    """

    def __init__(self, step: Step, rows: Path | None, out: Path, *, rehearse: bool, seconds: float) -> None:
        self.rehearse, self.out = rehearse, out
        self._step, self._rows = step, rows
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds until the step is killed."""
        return self._end - time.monotonic()

    def found(self, **row: Any) -> None:
        """Writes something that was found; its `kind` says what."""
        write_row(self._rows, {"step": self._step.name, **row})

    def figure(self, benchmark: str, figure: Any) -> None:
        """Writes a `common.Figure` for `results/<device>/<benchmark>.json`, and prints it."""
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(figure).items()}
        shown["met"] = figure.met
        self.found(kind="figure", benchmark=benchmark, **shown)
        print(f"{figure.figure}: {figure.value:.4g} [{figure.low:.4g}, {figure.high:.4g}] {figure.unit}")


def count_of(day: Day, benchmark: str, name: str, count: float, bar: str = "") -> None:
    """Writes a count, or anything else that was taken once, as a figure."""
    from common import Figure

    value = float(count)
    day.figure(benchmark, Figure(figure=name, value=value, low=value, high=value, bar=bar, repeats=1))


def counted(kinds: Mapping[str, int]) -> str:
    """Returns how many there are of each kind, the most frequent first."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda each: -each[1]))


def run_step(step: Step, rows: Path | None, out: Path, *, rehearse: bool, seconds: float) -> int:
    """Runs a step in this process and returns its exit status; its last line says what was found."""
    day = Day(step, rows, out, rehearse=rehearse, seconds=seconds)
    # A shell may start what it runs in the background with Ctrl-C ignored; what a step starts must hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rehearse:
        hide_gpus()
    try:
        print(step.load()(day), flush=True)
    except SkippedError as reason:
        print(reason, flush=True)
        return SKIPPED
    except FailedError as found:
        print(found, flush=True)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0
