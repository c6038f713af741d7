"""The preflight through the real launcher: loaders that crash, raise, hang and are killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import parts
import pytest
from replays import Watcher

from sweeper.core.job import CONFIG
from sweeper.core.measurement import Measurement
from sweeper.launch.local import leftovers
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases import preflight
from sweeper.sweep.run import run_sweep
from sweeper.system.files import read_json
from sweeper.tracking import NullTracker

PICKY = '''\
"""A small problem whose loaders go wrong: `data.faults` says how, as kind=fault with commas between."""

import os
import signal
import time

from parts import pipelines

FAULTS = {
    "raise": lambda: (_ for _ in ()).throw(RuntimeError("could not create a primitive for 64 rows")),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(600),
}


def prepare(data):
    prepared = pipelines.prepare({})
    prepared.meta["faults"] = data.get("faults", "")
    return prepared


def build(config, prepared):
    pairs = [each.split("=") for each in prepared.meta["faults"].split(",") if each]
    fault = dict(pairs).get(config.loader.kind)
    if fault:
        FAULTS[fault]()
    return pipelines.build(config, prepared)
'''


def spec_with(faults: str) -> SweepSpec:
    return SweepSpec.from_dict(
        {
            "name": "picky",
            "pipeline": "picky",
            "data": {"faults": faults},
            "space": {
                "batch_size": {"type": "int", "low": 32, "high": 128, "log": True},
                "loader.kind": {"type": "categorical", "choices": ["rows", "workers", "resident", "stream"]},
            },
            "baseline": {"loader.kind": "rows", "batch_size": 64},
            "measure": {"window_seconds": 0.05, "repeats": 1, "warmup_cap_seconds": 0.1, "trace": False}
            | {"quality_samples": 0},
            "search": {"trials": 3, "minutes": None},
            "confirm": {"rounds": 0},
            "execution": {"gpus": 0},
        }
    )


class Sweep:
    """Runs the same sweep again and again, each time in a folder of its own."""

    def __init__(self, home: Path, faults: str) -> None:
        self.home, self.spec = home, spec_with(faults)
        self.lines: list[str] = []

    def run(self, **how: Any) -> Journal:
        watcher = Watcher()
        journal = run_sweep(self.home, self.spec, NullTracker(), watcher, **how).journal
        self.lines = [line for line in watcher.lines if line.startswith("loader.kind")]
        assert not leftovers(journal.folder)
        return journal


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", parts.FOLDER, prepend=os.pathsep)
    (tmp_path / "picky.py").write_text(PICKY)
    return tmp_path / "home"


def jobs_in(journal: Journal) -> set[str]:
    """The values for which a job ran."""
    return {path.parent.name for path in journal.setup_folder("").glob(f"preflight-*/{CONFIG}")}


def kinds_of(journal: Journal) -> dict[str, bool]:
    """The loader kinds of the searched trials, and whether all of them were measured."""
    found: dict[str, bool] = {}
    for entry in journal.trials():
        if entry.job.stage == "search":
            kind = entry.job.config.loader.kind
            found[kind] = found.get(kind, True) and isinstance(entry.outcome, Measurement)
    return found


@pytest.mark.slow
def test_what_raises_and_what_crashes_leaves_and_is_remembered(home: Path):
    sweep = Sweep(home, "workers=raise,stream=segv")
    first = sweep.run()
    raised = "RuntimeError: could not create a primitive for 64 rows (picky.py:10)"
    assert sweep.lines == [
        f"loader.kind: workers, stream removed from the space ({raised}; the trial crashed with SIGSEGV)."
    ]
    assert jobs_in(first) == {f"preflight-loader.kind-{kind}" for kind in ("workers", "resident", "stream")}
    assert set(kinds_of(first)) <= {"rows", "resident"}
    assert all(kinds_of(first).values())
    second = sweep.run(new=True)
    assert second.folder != first.folder
    assert jobs_in(second) == set()
    assert "the trial crashed with SIGSEGV; known from an earlier sweep: remove " in sweep.lines[0]
    assert set(kinds_of(second)) <= {"rows", "resident"}


@pytest.mark.slow
def test_what_hangs_is_cut_off_and_what_is_killed_is_lost_and_both_stay(home: Path, monkeypatch):
    monkeypatch.setattr(preflight, "LIMIT_SECONDS", 2.0)
    monkeypatch.setattr(preflight, "SLOWER", 0.0)
    sweep = Sweep(home, "stream=hang,resident=kill")
    # The searched trials must not hang: there the preflight is all there is to see.
    monkeypatch.setattr("sweeper.sweep.phases.search.Search.run", lambda self: "it is enough")
    first = sweep.run()
    assert sweep.lines == [
        "loader.kind: resident could not be tried before the search"
        " (lost: the trial was killed from outside (SIGKILL)).",
        "loader.kind: stream could not be tried before the search"
        " (timeout: no result within 2 s (in stage `build`)).",
    ]
    found = read_json(first.setup_folder("preflight.json"))["tried"]
    assert [(each["value"], bool(each["unknown"])) for each in found] == [
        ("workers", False),
        ("resident", True),
        ("stream", True),
    ]
    # What was killed is not run three times, as a trial would be.
    assert not list(first.setup_folder("").glob("preflight-*/attempt-*"))
