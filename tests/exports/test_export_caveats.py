"""What an export warns of before its figures are relied on."""

from __future__ import annotations

import pytest

from sweeper.core.config import TrialConfig
from sweeper.exports import caveats
from sweeper.schema import SweepSpec


def warnings(option: str, *, batch: int) -> list[str]:
    spec = SweepSpec.from_dict(
        {
            "name": "script",
            "command": ["python", "train.py", "--bs", "{batch_size}", option],
            "space": {"batch_size": {"type": "int", "low": 8, "high": 512}},
            "baseline": {"batch_size": 64},
        }
    )
    config, baseline = (TrialConfig(args={}).replace({"batch_size": each}) for each in (batch, 64))
    return list(caveats._steps_caveat(spec, config, baseline))


@pytest.mark.parametrize(
    "option", ["--max_iters=1000", "--steps", "trainer.max_steps=100", "--num-train-steps"]
)
def test_a_run_counted_in_steps_trains_on_more_samples_with_a_larger_batch(option):
    (found,) = warnings(option, batch=96)
    assert f"`{option.partition('=')[0]}`" in found
    assert "1.5 times the samples" in found


@pytest.mark.parametrize(
    "option", ["--epochs=3", "--eval_iters=20", "--gradient_accumulation_steps=4", "--warmup-steps"]
)
def test_other_options_say_nothing_of_its_length(option):
    assert warnings(option, batch=96) == []


def test_with_the_same_batch_there_is_nothing_to_warn_of():
    assert warnings("--steps=100", batch=64) == []
