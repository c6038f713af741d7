"""Each shipped pipeline with each kind of its model would run on a GPU, as far as `meta` tells."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch

import pipelines
from sweeper.core.config import TrialConfig
from sweeper.trainer import gpu_check
from sweeper.trainer.gpu_check import check, collated
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
CONFIG = TrialConfig(batch_size=8)


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
    pytest.param(name, number, model, id="-".join((name, str(number), *model.values())))
    for name in NAMES
    for number in range(len(DATA[name]))
    for model in words(name)
    # What build refuses; tests/pipelines/test_kuairand.py has it.
    if DATA[name][number].get("phase") != "simulate" or model["labels"] == "both"
]


@pytest.mark.parametrize(("name", "number", "model"), CASES)
def test_nothing_in_it_fails_on_a_gpu_or_waits_for_one(name: str, number: int, model: dict[str, str]) -> None:
    torch.manual_seed(0)
    own = {**MODEL.get(name, {}), **model}
    config = CONFIG.replace({f"model.{key}": value for key, value in own.items()})
    pipeline = module(name).build(config, prepared(name, number))
    assert check(pipeline, config, rows=collated(pipeline.train)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_word_of_a_model_is_in_the_table(name: str) -> None:
    words = [key for key, value in module(name).MODEL.items() if isinstance(value, str)]
    assert sorted(words) == sorted(getattr(module(name), "CHOICES", {}))


def test_all_parts_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an empty list of findings is not that of a check which never began."""
    ended: list[str] = []
    run = gpu_check._Watch.run

    def listed(self: Any, part: str, body: Any) -> Any:
        result = run(self, part, lambda: (body(), ended.append(part))[0])
        return result

    monkeypatch.setattr(gpu_check._Watch, "run", listed)
    pipeline = module("behaviour").build(CONFIG.replace({"model.hidden_size": 24}), prepared("behaviour", 0))
    check(pipeline, CONFIG)
    of = gpu_check
    assert ended == [of.MODEL, of.GATHER, of.GATHER, of.STEP, of.VALIDATION, of.EVALUATE]
