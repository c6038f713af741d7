"""The record of what is printed is the same twice, and shows a changed word."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_record_repeats_itself_and_shows_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import printed

    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(printed, "PLACES", {})
    kept = ("pipeline", "script")
    monkeypatch.setattr(printed, "SWEEPS", {name: printed.SWEEPS[name] for name in kept})
    specifications = list(printed.generated())
    monkeypatch.setattr(printed, "generated", lambda: itertools.islice(specifications, 0, None, 40))
    monkeypatch.setattr(printed, "stored", lambda: ())
    monkeypatch.setattr(printed, "in_tests", lambda: ())
    monkeypatch.chdir(tmp_path)

    def texts(out: str) -> dict[str, str]:
        printed.record(tmp_path / "home", tmp_path / out)
        return {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / out).iterdir()}

    before, again = texts("before"), texts("again")
    assert len(before) > 50
    assert before == again
    monkeypatch.setattr("sweeper.results.numbers.labels._PREFIXES", {"batch_size": "batch"})
    after = texts("after")
    changed = {name for name, text in after.items() if text != before[name]}
    assert {"runs-script-show.txt", "runs-script-tracked.txt"} <= changed
    assert not any(name.startswith("judge-") for name in changed)
