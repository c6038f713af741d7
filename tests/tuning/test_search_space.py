"""What a tune searches on top of the changes that won: the script's own options, its batch."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from measurements import measurement

from sweeper.core.measurement import Measurement
from sweeper.core.script import Script
from sweeper.errors import UserError
from sweeper.scaffold.command_space import propose
from sweeper.schema import load
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.search_space import LOSS_SECONDS, search_space
from sweeper.tuning.specification import specification

WINNER = Script(
    command=("python", "train.py"),
    env={"MALLOC": "{device.malloc: retain -> yes}", "EMPTY": "{threads: one -> 1}"},
    changes={"loader": "{loader}", "optimizer": "{optimizer}"},
)
VALUES = {"loader": "gathered", "optimizer": "original", "device.malloc": "retain", "threads": "original"}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneOptions:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    return TuneOptions.of([sys.executable, "train.py", "--batch-size", "32", "--workers", "2"])


def measured(**observed: object) -> Measurement:
    return dataclasses.replace(measurement(), observed=observed)


def space(options: TuneOptions, found: Measurement | None = None, **known: Any) -> dict[str, Any] | None:
    name = f"tune-train-{options.name_of_search}"
    return search_space(options, WINNER, VALUES, found or measured(), 2.0, name=name, **known)


def test_the_scripts_options_are_searched_with_the_changes_that_won(options: TuneOptions):
    plan = space(dataclasses.replace(options, with_flags=True), proposal=propose(options.line))
    assert plan is not None
    assert plan["name"] == "tune-train-flags"
    assert plan["script"] == {"env": {"MALLOC": "yes"}, "changes": {"loader": "gathered"}}
    assert plan["baseline"] == {"batch_size": 32, "loader.num_workers": 2}
    assert plan["measure"]["quality_samples"] == int(LOSS_SECONDS * measurement().throughput)
    spec = load(plan)
    assert spec.command[-4:] == ("--batch-size", "{batch_size}", "--workers", "{loader.num_workers}")
    assert spec.search.minutes == 2.0
    spec.script_in(Path())


def test_larger_batches_are_multiples_of_the_scripts_own_and_limited_by_the_loss(options: TuneOptions):
    options = dataclasses.replace(options, allow_batch_size=True)
    plan = space(options, measured(batch_size=32, num_workers=0))
    assert plan is not None
    assert plan["space"] == {
        "batch_size": {"type": "categorical", "choices": [32, 64, 128, 256, 512, 1024, 2048]}
    }
    assert plan["script"]["changes"]["batch_size"] == "{batch_size}/32"
    assert plan["constraints"] == {"val_loss": {"max_ratio_to_baseline": 1.02}}
    load(plan)
    # An unknown batch cannot be enlarged.
    assert space(options, measured(num_workers=0)) is None


def test_an_option_for_what_a_change_does_already_stays_as_it_is(tmp_path: Path, options: TuneOptions):
    Path("train.py").write_text("")
    line = TuneOptions.of([sys.executable, "train.py", "--bs", "32", "--compile", "true"]).line
    script = dataclasses.replace(WINNER, changes={"compile": "{compile}"})
    plan = search_space(
        options, script, {"compile": "model"} | VALUES, measured(), 2.0, name="a", proposal=propose(line)
    )
    assert plan is not None
    assert plan["script"]["changes"] == {"compile": "model"}
    assert "compile" not in plan["space"]
    load(plan).script_in(tmp_path)


def test_ranks_keep_their_gpus(options: TuneOptions, tmp_path: Path):
    found = measured(batch_size=32, num_workers=0, ranks=2, device="cuda")
    plan = space(dataclasses.replace(options, allow_batch_size=True), found)
    assert plan is not None
    assert plan["fix"] == {"device.count": 2}
    load(plan).script_in(tmp_path)


def test_without_anything_to_search_there_is_no_space(options: TuneOptions):
    assert space(options) is None


def test_the_name_of_the_search_is_checked_before_the_race(options: TuneOptions):
    words = [sys.executable, "train.py"]
    assert TuneOptions.of(words, name="a" * 128).name == "a" * 128
    with pytest.raises(UserError, match="`name` must be"):
        TuneOptions.of(words, name="a" * 128, with_flags=True)


def test_what_a_tune_races_is_no_search(options: TuneOptions, tmp_path: Path):
    spec = load(specification(options, 1.0))
    with pytest.raises(UserError, match="is a race of changes, but this is a search"):
        run_sweep(tmp_path / "home", spec, NullTracker(), QuietObserver())
    assert not (tmp_path / "home").exists()
