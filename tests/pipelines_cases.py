"""The shipped pipelines with small data, and every kind of model that each of them has."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pipelines
from sweeper.trainer.pipeline import Prepared

NAMES = sorted(each.name for each in pkgutil.iter_modules(pipelines.__path__) if each.name[0] != "_")
LANDMARKS = {"clips": 30, "glosses": 8, "max_frames": 24}
DATA: dict[str, tuple[dict[str, Any], ...]] = {
    "behaviour": ({"recordings": 6, "seconds": 30},),
    "kuairand": tuple(
        {"users": 30, "videos": 400, "rows": 4000, "phase": phase} for phase in ("pretrain", "simulate")
    ),
    "sequence": tuple(
        {"rows": 600, "columns": 3, "horizon": 3, "seq_length": 8, "target": target}
        for target in ("all", "column_0")
    ),
    "sign_language": (LANDMARKS, {**LANDMARKS, "kind": "frames", "crop": 32}),
    "stocks": ({"stocks": 3, "days": 700, "seq_length": 20},),
    "tabular": ({"rows": 300},),
}
"""Small data of each kind that a pipeline knows."""
MODEL = {"behaviour": {"hidden_size": 24}, "sign_language": {"width": 8, "distill": 1.0}}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"pipelines.{name}")


@cache
def prepared(name: str, number: int) -> Prepared:
    result: Prepared = module(name).prepare(DATA[name][number])
    return result


def words(name: str) -> Iterator[dict[str, str]]:
    """Every combination of a pipeline's words."""
    choices = getattr(module(name), "CHOICES", {})
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


CASES = [
    (name, number, model)
    for name in NAMES
    for number in range(len(DATA[name]))
    for model in words(name)
    # What build refuses; tests/pipelines/test_kuairand.py has it.
    if DATA[name][number].get("phase") != "simulate" or model["labels"] == "both"
]


def name_of(name: str, number: int, model: dict[str, str]) -> str:
    return "-".join((name, str(number), *model.values()))
