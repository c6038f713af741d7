"""Shared by all benchmarks: a figure with its interval, and the file and table it ends up in."""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from sweeper.schema.sections import ExecutionOptions
from sweeper.sweep.start.setup import device_model as device_model

T = TypeVar("T")

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
# Benchmarks train the pipelines of this repository and the stand-ins of its tests, `parts`; neither is on
# the path of a script.
sys.path += [str(ROOT), str(TESTS)]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure; `low` and `high` are its 95% interval, and `bar` is the condition to meet.

    With `noisy`, a bar is missed only if the whole interval lies beyond it.
    """

    figure: str = ""
    value: float
    low: float
    high: float
    bar: str = ""
    unit: str = ""
    repeats: int
    noisy: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the value meets the bar; None if there is no bar."""
        if not self.bar:
            return None
        sign, _, number = self.bar.partition(" ")
        if sign == ">=":
            return (self.high if self.noisy else self.value) >= float(number)
        return (self.low if self.noisy else self.value) <= float(number)


def spread(values: Sequence[float], seed: int = 0) -> Figure:
    """Returns the median of `values` with a bootstrap interval."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return Figure(value=statistics.median(values), low=medians[50], high=medians[1949], repeats=len(values))


def chosen(parts: Mapping[str, T]) -> dict[str, T]:
    """Returns the parts that the command line names, or all of them; ends the program if one is unknown."""
    asked = sys.argv[1:] or list(parts)
    if unknown := [name for name in asked if name not in parts]:
        print(
            f"{sys.argv[0]}: a part must be one of {', '.join(parts)}, but got {unknown[0]}.", file=sys.stderr
        )
        sys.exit(2)
    return {name: parts[name] for name in asked}


def device_folder(parent: Path) -> Path:
    """Returns the folder in `parent` with the files of this machine's device; it need not exist."""
    return parent / re.sub(r"[^A-Za-z0-9]+", "-", device_model(ExecutionOptions())).strip("-").lower()


def publish(
    name: str, figures: Sequence[Figure], command: str, folder: Path | None = None, device: str | None = None
) -> None:
    """Writes `results/<device>/<name>.json` and prints it as a table.

    Figures of other parts of the same benchmark stay as they are.

    Args:
        folder: Where the file is written, instead of this machine's folder.
        device: The device that was measured; this machine's by default.
    """
    device, folder = device or device_model(ExecutionOptions()), folder or device_folder(RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = []
    for figure in figures:
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(figure).items()}
        del shown["noisy"]
        rows.append({**shown, "command": command, "commit": commit, "device": device})
    show(figures)
    path = folder / f"{name}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = {figure.figure for figure in figures}
    rows = [row for row in known if row["figure"] not in new] + rows
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def show(figures: Sequence[Figure]) -> None:
    """Prints the figures as a table."""
    for figure in figures:
        verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
        print(
            f"{figure.figure:<40} {figure.value:10.2f} {figure.unit:<4} [{figure.low:.2f}, {figure.high:.2f}]"
            f"  {figure.bar:<8} {verdict}"
        )
