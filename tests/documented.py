"""Runs benchmark commands on a made-up device, in a copy of the repository; see test_documented.py.

python documented.py COPY DEVICE [KEPT ...] < commands     each a JSON list of words; prints a line for each

A part that takes long yields one made-up figure, unless KEPT names it; the arguments, the files that
are looked up and the results written are real. What remains takes fewer repeats.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

copy, device, kept = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
sys.path[:0] = [str(copy), str(copy / "benchmarks")]

import common  # noqa: E402

common.device_model = lambda execution: device
_titles = itertools.count()


def figures(*_: Any) -> Iterator[common.Figure]:
    yield common.Figure(figure=f"made up {next(_titles)}", value=1, low=1, high=1, repeats=1)


def replace(module: ModuleType, **values: object) -> None:
    for name, value in values.items():
        assert hasattr(module, name), f"{module.__name__}.{name}"
        setattr(module, name, value)


def replace_parts(module: ModuleType) -> None:
    module.PARTS = {
        name: part if f"{module.__name__}.{name}" in kept else figures for name, part in module.PARTS.items()
    }


def chaos(module: ModuleType) -> None:
    runs = [json.loads(line) for line in module.RUNS.read_text(encoding="utf-8").splitlines()]
    known = {run["part"]: run for run in runs}
    parts = {name: part for name, part in module.PARTS.items() if name in known}
    replace(module, PARTS=parts, run=lambda name, count, seed: known[name])


def numbers(*_: Any) -> list[float]:
    return [1.0, 2.0]


def once(module: ModuleType, name: str) -> None:
    """Has a part that several commands name run for the first of them; the others are given its figures."""
    part, figures = module.PARTS[name], []

    def replayed(*words: Any) -> Iterator[common.Figure]:
        if not figures:
            figures.extend(part(*words))
        yield from figures

    module.PARTS[name] = replayed


def remembered(function: Callable[..., float]) -> Callable[..., float]:
    found: dict[str, float] = {}

    def remembering(*words: Any) -> float:
        key = repr(words)
        if key not in found:
            found[key] = function(*words)
        return found[key]

    return remembering


CHEAPER: dict[str, Callable[[ModuleType], object]] = {  # Others: replace_parts.
    "chaos": chaos,
    "confirm": lambda module: [replace_parts(module), replace(module, DRAWS=20)],
    "guides": lambda module: replace(module, figures_of=figures),
    "kuairand_csv": lambda module: replace(module, ROWS=5000, USERS=20),
    "overhead": lambda module: replace(module, TRIALS=4, FRESH=2, fresh_python=lambda: 1.0),
    "programs": lambda module: replace(module, PROGRAMS={}),
    "real": lambda module: None,
    "search": lambda module: [
        replace_parts(module),
        replace(module, SEEDS=1, MAX_SURFACES=1),
        once(module, "bars"),
    ],
    "surfaces": lambda module: replace(module, measure=numbers, repeat=numbers),
    "telemetry": lambda module: replace(module, costs=numbers, reading_ms=numbers),
    "trainer": lambda module: replace(module, PARTS={name: lambda: list(figures()) for name in module.PARTS}),
    "watch": lambda module: [
        replace(module, PAIRS={"millisecond": 2, "tiny": 2}, SECONDS=0.1),
        # Each is a process with torch: once for all pairs.
        replace(module, seconds_per_step=remembered(module.seconds_per_step)),
        module.PARTS.update(verdicts=figures, pipelines=figures),
    ],
}


def main() -> None:
    modules: dict[str, ModuleType] = {}
    for line in sys.stdin:
        name, *words = json.loads(line)
        if name not in modules:
            modules[name] = importlib.import_module(name)
            CHEAPER.get(name, replace_parts)(modules[name])
        sys.argv = [f"benchmarks/{name}.py", *words]
        modules[name].main()
        print(json.dumps({"ran": [name, *words]}), flush=True)


if __name__ == "__main__":
    main()
