"""The record of a script for a proof, and whether it has an end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sweeper.inject.recorder import EXIT
from sweeper.script.proof import Terms, record

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[1] / "tuning" / "train.py"


@pytest.mark.parametrize(("epochs", "has_end"), [("1", True), ("10**9", False)])
def test_a_script_that_is_stopped_has_not_ended(tmp_path: Path, epochs: str, has_end: bool) -> None:
    text = TRAINING.read_text(encoding="utf-8").replace("range(4)", f"range({epochs})")
    # So slow that it has not shown all when its time is over.
    text = text.replace("optimizer.step()", "optimizer.step(); time.sleep(0 if has_end else 0.5)")
    (tmp_path / "train.py").write_text(f"import time\nhas_end = {has_end}\n{text}", encoding="utf-8")
    found = record([sys.executable, "train.py"], tmp_path, {}, Terms(), limit=20 if has_end else 8)
    assert not found.failure
    (events,) = found.events.values()
    assert any("step" in each for each in events)
    assert (events[-1].get("end") == EXIT) is has_end
