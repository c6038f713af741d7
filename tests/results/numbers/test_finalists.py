"""Who takes part in the confirmation."""

from __future__ import annotations

import dataclasses

import pytest
from parts.noop import synthetic
from replays import spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo, Quality
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.finalists import are_alike, finalists


def record(number: int, throughput: float, loss: float | None = None, **changes) -> TrialRecord:
    names = {name.replace("__", "."): value for name, value in changes.items()}
    quality = None
    if loss is not None:
        quality = Quality(key="k", samples=10, seconds=0, train_loss=loss, val_loss=loss)
    return TrialRecord(
        number=number,
        uid=str(number),
        stage="search",
        config=TrialConfig(batch_size=64 * 2**number).replace(names),
        outcome=synthetic(throughput),
        quality=quality,
    )


BASE = record(0, 100.0, 1.0)


def chosen(spec, *records: TrialRecord, needs_loss: bool = False) -> list[int]:
    return [each.number for each in finalists([BASE, *records], BASE, spec, needs_loss=needs_loss)]


def test_the_fastest_first_and_no_more_than_asked_for():
    records = [record(n, 100.0 + n) for n in (1, 3, 2, 4)]
    assert chosen(spec_of(confirm={"top": 3}), *records) == [4, 3, 2]


def test_only_what_may_win_takes_part():
    spec = spec_of(confirm={"top": 9})
    infeasible = dataclasses.replace(record(1, 900.0), violations={"val_loss": 0.1})
    other_work = record(2, 900.0, model__hidden_size=8)
    slower = record(3, 99.0)
    screened = record(4, 900.0)
    screened = dataclasses.replace(
        screened, outcome=dataclasses.replace(screened.measurement, is_screened=True)
    )
    unlooked = record(5, 900.0)
    fine = record(6, 200.0, 1.0)
    assert chosen(spec, infeasible, other_work, slower, screened, fine) == [6]
    assert chosen(spec, unlooked, fine, needs_loss=True) == [6]
    assert chosen(spec, unlooked, fine) == [5, 6]


def test_what_production_has_no_memory_for_takes_no_part():
    device = DeviceInfo(kind="cuda", name="NVIDIA A10", memory_gib=22.5)

    def on_gpu(number: int, kind: str) -> TrialRecord:
        found = record(number, 900.0, loader__kind=kind)
        return dataclasses.replace(found, outcome=dataclasses.replace(found.measurement, device=device))

    records = [on_gpu(1, "resident"), on_gpu(2, "stream"), record(3, 800.0)]
    for data_gib, takes_part in ((40.0, [2, 3]), (10.0, [1, 2, 3]), (None, [1, 2, 3])):
        spec = spec_of(production={"samples": 1e9, "data_gib": data_gib}, confirm={"top": 9})
        assert sorted(chosen(spec, *records)) == takes_part


def test_of_near_duplicates_the_faster_one_takes_part():
    near = dataclasses.replace(record(2, 190.0), config=TrialConfig(batch_size=140))
    assert chosen(spec_of(confirm={"top": 3}), record(1, 200.0), near, record(3, 150.0)) == [1, 3]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"batch_size": 79}, True),
        ({"batch_size": 81}, False),
        ({"precision.tf32": True}, False),
        ({"precision.amp": "bf16"}, False),
        ({"model.kind": "x"}, False),
    ],
)
def test_alike(changes, same):
    one = TrialConfig(batch_size=64)
    assert are_alike(one, one.replace(changes)) is same
    assert are_alike(one.replace(changes), one) is same


def test_with_an_objective_that_is_no_speed_the_best_by_it_takes_part():
    spec = spec_of(objectives=[{"minimize": "val_loss"}])
    assert chosen(spec, record(1, 50.0, 0.5), record(2, 500.0, 0.7), record(3, 50.0, 2.0)) == [1]


def test_with_several_objectives_the_picked_one_takes_part():
    spec = spec_of(
        objectives=[{"maximize": "throughput"}, {"minimize": "val_loss"}], confirm={"pick": "lowest_loss"}
    )
    assert chosen(spec, record(1, 150.0, 0.505), record(2, 500.0, 0.9), record(3, 120.0, 0.5)) == [1]
    assert chosen(spec, record(1, 50.0, 2.0)) == []


def test_of_loaders_that_are_as_fast_the_simplest_takes_part():
    spec = spec_of(confirm={"top": 3})
    same = {"batch_size": 64}
    workers = {"loader__kind": "workers", "loader__num_workers": 2}
    records = [
        record(1, 203.0, **same, **workers),
        record(2, 200.0, **same, loader__kind="resident"),
        record(3, 150.0, **same, **workers, precision__amp="bf16"),
        record(4, 149.0),
    ]
    assert chosen(spec, *records) == [2, 3, 4]
    # One that is a little faster takes part in its place; one that is clearly slower does, too.
    faster, slower = record(5, 220.0, **same, **workers), record(6, 170.0, **same, **workers)
    assert chosen(spec, *records[1:], faster) == [5, 3, 4]
    assert chosen(spec, *records[1:], slower) == [2, 6, 3]
