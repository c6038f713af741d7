"""The sweep underneath a tune: what it begins with where larger batches are allowed, and its losses."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from parts.noop import synthetic

from sweeper.analysis.bottleneck import verdict_of
from sweeper.core.measurement import Breakdown
from sweeper.interventions import CHANGES
from sweeper.interventions.change import CHANGES_TRAINING, CLOSE, EXACT
from sweeper.script.watch import NO_PARAMETERS
from sweeper.search.halves import most_changes
from sweeper.search.presets import presets
from sweeper.spec import SweepSpec, load
from sweeper.sweep.setup import devices_of_a_trial, machine_of
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.space import space, worth_their_time

FUSED = ChangeValue(name="optimizer", value="fused", kind=CLOSE)
GATHERED = ChangeValue(name="loader", value="gathered", kind=EXACT)
BATCHES = [
    ChangeValue(name="batch_size", value=str(size), original="64", kind=CHANGES_TRAINING)
    for size in (128, 256, 512, 1024)
]


def spec_of(*changes: ChangeValue) -> SweepSpec:
    return load(space([sys.executable, "train.py"], changes, "tune-train", 5.0, env={}, samples_per_s=100.0))


def test_without_larger_batches_each_change_is_tried_alone() -> None:
    starts = [each.params for each in presets(spec_of(GATHERED, FUSED))]
    assert starts == [
        {"loader": "gathered", "optimizer": "original"},
        {"loader": "original", "optimizer": "fused"},
    ]


def test_larger_batches_come_first_and_gathered() -> None:
    starts = [each.params for each in presets(spec_of(GATHERED, FUSED, *BATCHES))]
    assert starts[:3] == [
        {"loader": "gathered", "optimizer": "original", "batch_size": size} for size in (64, 256, 1024)
    ]
    assert {"loader": "original", "optimizer": "fused", "batch_size": 64} in starts


def test_without_a_gathered_loader_they_have_the_scripts_own() -> None:
    starts = [each.params for each in presets(spec_of(FUSED, *BATCHES))]
    assert {"optimizer": "original", "batch_size": 1024} in starts


@pytest.mark.parametrize(("changes", "loader"), [((GATHERED, FUSED), "gathered"), ((FUSED,), None)])
def test_a_loss_is_taken_with_a_gathered_loader(changes: tuple[ChangeValue, ...], loader: str | None) -> None:
    spec = spec_of(*changes, *BATCHES)
    baseline = spec.baseline_config()
    sooner = spec.trained_sooner(baseline)
    assert sooner.flatten().get("loader") == loader
    assert spec.trained_as(sooner).key() == baseline.key()
    assert spec.measure.quality_samples == 800


def test_a_trial_of_several_ranks_gets_as_many_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command = ["torchrun", "--nproc-per-node=2", "train.py"]
    for count in (1, 2):
        spec = load(space(command, [FUSED], "tune-train", 5.0, env={}, num_gpus=count))
        assert devices_of_a_trial(spec) == count
    gpu = {"kind": "cuda", "name": "NVIDIA A10", "memory_gib": 22.5}
    values = {
        "devices": [{**gpu, "uuid": f"GPU-{number}"} for number in range(4)],
        "usable_cpus": 8,
        "lacks": {},
    }
    machine = machine_of(values, spec)
    assert [slot.device for slot in machine.slots] == ["GPU-0,GPU-1", "GPU-2,GPU-3"]


TEN_SECONDS = {"startup_seconds": 5.0, "warmup_seconds": 1.0}
"""Of a trial, with its windows."""
NAMES = ("own", "images", "loader", "optimizer", "precision", "device.malloc", "threads", "spin_wait")
MANY = tuple(
    ChangeValue(name=name, value="on", kind=EXACT, env={"X": "1"} if name in NAMES[-3:] else {})
    for name in NAMES
)


UPDATES = Breakdown(data_s=0.4, forward_s=0.2, optimizer_s=0.4)
ARITHMETIC = Breakdown(data_s=0.1, forward_s=0.8, optimizer_s=0.1)


def kept(minutes: float, parts: Breakdown = ARITHMETIC, changes: Sequence[ChangeValue] = MANY) -> list[str]:
    watched = dataclasses.replace(synthetic(100.0), breakdown=parts, **TEN_SECONDS)
    found = worth_their_time(changes, watched, minutes, spent=1.0)
    assert [each.name for each in found] == [*NAMES]
    assert all("--minutes" in each.refused for each in found if each.refused not in ("", "no"))
    return [each.name for each in found if not each.refused]


EXACT_ONES = {"images", "loader", "device.malloc", "spin_wait"}


def test_with_little_time_those_of_the_highest_ceilings_are_tried_beside_the_exact_ones() -> None:
    assert {*kept(0.5)} == EXACT_ONES
    assert {*kept(1.5)} == EXACT_ONES | {"own"}
    assert {*kept(2.6)} == EXACT_ONES | {"own", "precision", "threads"}
    assert kept(5.0) == [*NAMES]


def test_what_is_left_out_follows_the_measured_parts() -> None:
    without = [dataclasses.replace(each, refused="no") if each.name == "own" else each for each in MANY]
    assert {*kept(1.5, UPDATES, without)} == EXACT_ONES | {"precision"}
    more = Breakdown(data_s=0.4, forward_s=0.0, optimizer_s=0.6)
    assert {*kept(1.5, more, without)} == EXACT_ONES | {"optimizer"}


def test_of_equal_ceilings_the_changes_for_the_verdict_come_first() -> None:
    """Both could save arithmetic alone; threads are for small operations."""
    some = [e if e.name in ("threads", "precision") else dataclasses.replace(e, refused="no") for e in MANY]
    some.sort(key=lambda change: NAMES[::-1].index(change.name))
    watched = dataclasses.replace(synthetic(100.0), breakdown=ARITHMETIC, **TEN_SECONDS)
    first = [change.name for change in worth_their_time(some, watched, 0.8, spent=1.0) if not change.refused]
    assert verdict_of(watched, NO_PARAMETERS).kind in CHANGES["precision"].helps
    assert first == ["precision"]


def test_the_minutes_that_would_do_are_enough() -> None:
    watched = dataclasses.replace(synthetic(100.0), breakdown=ARITHMETIC, **TEN_SECONDS)
    refused = [each.refused for each in worth_their_time(MANY, watched, 0.5, spent=1.0) if each.refused]
    (needed,) = {int(text.split("--minutes ")[1].split()[0]) for text in refused}
    assert kept(needed - 1.0) == [*NAMES]
    assert kept(needed - 2.0) != [*NAMES]


def test_what_is_refused_already_takes_no_time() -> None:
    refused = [dataclasses.replace(each, refused="no") if each.name == "own" else each for each in MANY]
    assert kept(2.6, changes=refused) == [*NAMES[1:]]


def test_one_trial_more_tells_of_four_changes_more() -> None:
    assert [most_changes(count) for count in (0, 2, 3, 5, 6, 9, 12, 18)] == [1, 1, 3, 3, 7, 11, 15, math.inf]
