"""Two versions that run to their end, and the numbers that they print last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import commands
from sweeper.judging.whole import Whole, both, numbers_in, run_whole


def test_the_last_number_of_each_name_counts():
    lines = [
        "Epoch: 1/2 loss: 0.9",
        "Test set: Average loss: 0.0331, Accuracy: 9891/10000 (99%)",
        "Epoch: 2/2 loss: 0.25 lr=1e-3 val_acc=0.97",
        "took 12 s",
    ]
    assert numbers_in(lines) == {"loss": 0.25, "Average loss": 0.0331, "Accuracy": 9891.0, "val_acc": 0.97}


def test_only_what_both_print_is_compared():
    before = Whole(seconds=9.0, numbers={"loss": 0.25, "acc": 0.9})
    after = Whole(seconds=3.0, numbers={"loss": 0.26, "speed": 3.0})
    assert both(before, after) == {"loss": (0.25, 0.26)}
    many = Whole(seconds=1.0, numbers={f"loss {n}": float(n) for n in range(30)})
    assert list(both(many, many)) == [f"loss {n}" for n in range(18, 30)]


@pytest.mark.slow
def test_both_run_to_their_end(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "import sys\nprint(f'loss: {sys.argv[1]}')\nsys.exit(int(sys.argv[2]))\n"
    )
    arms = commands(*([sys.executable, "train.py", loss, "0"] for loss in ("0.5", "0.25")), tmp_path)
    before, after = run_whole(arms, on_gpu=False)
    assert both(before, after) == {"loss": (0.5, 0.25)}
    arms = commands(*([sys.executable, "train.py", "1", code] for code in ("0", "3")), tmp_path)
    with pytest.raises(TrialFailedError, match=r"^after: "):
        run_whole(arms, on_gpu=False)
