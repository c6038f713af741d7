"""The sweep underneath a tune: what it begins with where larger batches are allowed, and its losses."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest

from sweeper.core.measurement import Bottleneck
from sweeper.interventions.intervention import CHANGES_TRAINING, CLOSE, EXACT
from sweeper.search.halves import most_changes
from sweeper.search.presets import presets
from sweeper.spec import SweepSpec, load
from sweeper.testing.noop import synthetic
from sweeper.tuning.changes import Change
from sweeper.tuning.space import space, worth_their_time

FUSED = Change(name="optimizer", value="fused", kind=CLOSE)
GATHERED = Change(name="loader", value="gathered", kind=EXACT)
BATCHES = [
    Change(name="batch_size", value=str(size), own="64", kind=CHANGES_TRAINING)
    for size in (128, 256, 512, 1024)
]


def spec_of(*changes: Change) -> SweepSpec:
    return load(space([sys.executable, "train.py"], changes, "tune-train", 5.0, env={}, samples_per_s=100.0))


def test_without_larger_batches_each_change_is_tried_alone() -> None:
    starts = [each.params for each in presets(spec_of(GATHERED, FUSED))]
    assert starts == [
        {"loader": "gathered", "optimizer": "own"},
        {"loader": "own", "optimizer": "fused"},
    ]


def test_larger_batches_come_first_and_gathered() -> None:
    starts = [each.params for each in presets(spec_of(GATHERED, FUSED, *BATCHES))]
    assert starts[:3] == [
        {"loader": "gathered", "optimizer": "own", "batch_size": size} for size in (64, 256, 1024)
    ]
    assert {"loader": "own", "optimizer": "fused", "batch_size": 64} in starts


def test_without_a_gathered_loader_they_have_the_scripts_own() -> None:
    starts = [each.params for each in presets(spec_of(FUSED, *BATCHES))]
    assert {"optimizer": "own", "batch_size": 1024} in starts


@pytest.mark.parametrize(("changes", "loader"), [((GATHERED, FUSED), "gathered"), ((FUSED,), None)])
def test_a_loss_is_taken_with_a_gathered_loader(changes: tuple[Change, ...], loader: str | None) -> None:
    spec = spec_of(*changes, *BATCHES)
    baseline = spec.baseline_config()
    sooner = spec.trained_sooner(baseline)
    assert sooner.flatten().get("loader") == loader
    assert spec.trained_as(sooner).key() == baseline.key()
    assert spec.measure.quality_samples == 800


TEN_SECONDS = {"startup_seconds": 5.0, "warmup_seconds": 1.0}
"""Of a trial, with its windows."""
NAMES = ("own", "pictures", "loader", "optimizer", "precision", "device.malloc", "threads", "spinning")
MANY = tuple(
    Change(name=name, value="on", kind=EXACT, env={"X": "1"} if name in NAMES[-3:] else {}) for name in NAMES
)


def kept(minutes: float, verdict: Bottleneck = Bottleneck.INPUT) -> list[str]:
    watched = dataclasses.replace(synthetic(100.0), **TEN_SECONDS)
    found = worth_their_time(MANY, watched, verdict, minutes)
    assert [each.name for each in found] == [*NAMES]
    assert all("--minutes" in each.refused for each in found if each.refused)
    return [each.name for each in found if not each.refused]


def test_with_little_time_the_most_likely_are_tried() -> None:
    assert kept(0.5) == ["loader"]
    assert kept(1.5) == ["own", "pictures", "loader"]
    assert kept(1.5, Bottleneck.COMPUTE) == ["own", "optimizer", "precision"]
    assert kept(2.6) == [*NAMES[:-1]]
    assert kept(5.0) == [*NAMES]


def test_what_is_refused_already_takes_no_time() -> None:
    refused = [dataclasses.replace(each, refused="no") if each.name == "own" else each for each in MANY]
    watched = dataclasses.replace(synthetic(100.0), **TEN_SECONDS)
    found = worth_their_time(refused, watched, Bottleneck.INPUT, 2.6)
    assert [each.refused for each in found] == ["no", *[""] * 7]


def test_one_trial_more_tells_of_four_changes_more() -> None:
    assert [most_changes(count) for count in (0, 2, 3, 5, 6, 9, 12, 18)] == [1, 1, 3, 3, 7, 11, 15, math.inf]
