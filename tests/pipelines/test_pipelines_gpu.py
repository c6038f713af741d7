"""Each shipped pipeline with each kind of its model would run on a GPU, as far as `meta` tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pipelines_cases import CASES, MODEL, NAMES, module, name_of, prepared

from sweeper.core.config import TrialConfig
from sweeper.trainer import gpu_check
from sweeper.trainer.gpu_check import check, collate

pytestmark = pytest.mark.slow

CONFIG = TrialConfig(batch_size=8)


@pytest.mark.parametrize(("name", "number", "model"), CASES, ids=[name_of(*case) for case in CASES])
def test_nothing_in_it_fails_on_a_gpu_or_waits_for_one(name: str, number: int, model: dict[str, str]) -> None:
    torch.manual_seed(0)
    own = {**MODEL.get(name, {}), **model}
    config = CONFIG.replace({f"model.{key}": value for key, value in own.items()})
    pipeline = module(name).build(config, prepared(name, number))
    assert check(pipeline, config, rows=collate(pipeline.train)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_word_of_a_model_is_in_the_table(name: str) -> None:
    words = [key for key, value in module(name).MODEL.items() if isinstance(value, str)]
    assert sorted(words) == sorted(getattr(module(name), "CHOICES", {}))


def test_all_parts_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an empty list of findings is not that of a check which never began."""
    ended: list[str] = []
    run = gpu_check._MetaWatch.run

    def listed(self: Any, part: str, body: Any) -> Any:
        result = run(self, part, lambda: (body(), ended.append(part))[0])
        return result

    monkeypatch.setattr(gpu_check._MetaWatch, "run", listed)
    pipeline = module("behaviour").build(CONFIG.replace({"model.hidden_size": 24}), prepared("behaviour", 0))
    check(pipeline, CONFIG)
    of = gpu_check
    assert ended == [of.MODEL, of.GATHER, of.GATHER, of.STEP, of.VALIDATION, of.EVALUATE]
