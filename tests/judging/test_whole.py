"""Two versions that run to their end, and the numbers that they print last."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

from sweeper.judging.arms import commands
from sweeper.judging.whole import WholeRun, common_numbers, numbers_in, run_whole


def test_the_last_number_of_each_name_counts():
    lines = [
        "Epoch: 1/2 loss: 0.9",
        "Test set: Average loss: 0.0331, Accuracy: 9891/10000 (99%)",
        "Epoch: 2/2 loss: 0.25 lr=1e-3 val_acc=0.97",
        "took 12 s on cuda:0 at 2024-05-01T12:34:56",
        "/usr/lib/lr_scheduler.py:143: UserWarning: epoch_loss: 1,234.5",
        "mAP: nan",
    ]
    numbers = numbers_in(lines)
    assert math.isnan(numbers.pop("mAP"))
    assert numbers == {
        "loss": 0.25,
        "Average loss": 0.0331,
        "Accuracy": 9891.0,
        "val_acc": 0.97,
        "epoch_loss": 1234.5,
    }


def test_only_what_both_print_is_compared():
    before = WholeRun(seconds=9.0, numbers={"loss": 0.25, "acc": 0.9})
    after = WholeRun(seconds=3.0, numbers={"loss": 0.26, "speed": 3.0})
    assert common_numbers(before, after) == {"loss": (0.25, 0.26)}
    many = WholeRun(seconds=1.0, numbers={f"loss {n}": float(n) for n in range(30)})
    assert list(common_numbers(many, many)) == [f"loss {n}" for n in range(18, 30)]


@pytest.mark.slow
def test_both_run_to_their_end(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "import sys\nprint(f'loss: {sys.argv[1]}')\nsys.exit(int(sys.argv[2]))\n"
    )
    arms = commands(*([sys.executable, "train.py", loss, "0"] for loss in ("0.5", "0.25")), tmp_path)
    before, after = run_whole(arms, at_once=True)
    assert common_numbers(before, after) == {"loss": (0.5, 0.25)}
    arms = commands(*([sys.executable, "train.py", "1", code] for code in ("0", "3")), tmp_path)
    before, after = run_whole(arms, at_once=False)
    assert before.failure == ""
    assert "exited with status 3" in after.failure


@pytest.mark.slow
def test_both_are_killed_if_one_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "train.py").write_text("import time\nprint('loss: 1', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setattr("sweeper.judging.whole.numbers_in", interrupted)
    arms = commands(*([sys.executable, "train.py", name] for name in ("one", "two")), tmp_path)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_whole(arms, at_once=True)
    assert time.monotonic() - began < 60


def interrupted(_: object) -> dict[str, float]:
    raise KeyboardInterrupt
