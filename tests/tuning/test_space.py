"""The sweep underneath a tune: what it begins with where larger batches are allowed, and its losses."""

from __future__ import annotations

import sys

import pytest

from sweeper.interventions.intervention import CHANGES_TRAINING, CLOSE, EXACT
from sweeper.search.presets import presets
from sweeper.spec import SweepSpec, load
from sweeper.tuning.changes import Change
from sweeper.tuning.space import space

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
