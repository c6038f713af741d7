"""What MLflow shows of a run: points that stay as they are whatever comes after them, and not too many."""

from __future__ import annotations

import random
from typing import Any

import pytest
from productions import block, commit, validation, values_of, write

from sweeper.production import publish
from sweeper.production.folder import SYSTEM, RunFolder
from sweeper.production.promise import assess
from sweeper.production.publish import content_of

SECONDS_A_DAY = 86_400


def reading(at: float, seconds: float, **means: float) -> dict[str, Any]:
    return {"at": at, "seconds": seconds, "means": means, "flags": []}


@pytest.mark.parametrize("seed", range(5))
def test_what_was_shown_stays_as_it_was_while_more_comes(seed: int, folder: RunFolder, ask: Any):
    rng = random.Random(seed)
    steps, seconds = 0, 0.0
    before: set[Any] = set()
    for _ in range(12):
        for _ in range(rng.randrange(40)):
            steps, seconds = steps + 1, seconds + rng.choice((0.01, 0.1, 2.0, 60.0))
            write(folder, block(steps, seconds))
            if rng.random() < 0.2:
                write(folder, validation(steps, seconds, rng.choice((None, rng.random()))))
        if rng.random() < 0.7:
            write(folder, {"at": seconds, "steps": steps, "seconds": seconds, "pid": 1, "device": {}})
            commit(folder)
        else:
            # An attempt that was lost: never shown, and cut off by the next one.
            assert set(content_of(folder, ask()).measured) == before
            folder.forget_uncommitted()
        for number in range(rng.randrange(3)):
            count = len(list(folder.system()))
            write(folder, reading(seconds + number, 5.0 * count, cpu_util_pct=50.0), name=SYSTEM)
        points = content_of(folder, ask()).measured
        assert before <= set(points)
        # Each point has a place of its own: MLflow would keep both of two that differ in value alone.
        assert len({(point.key, point.step) for point in points}) == len(points)
        before = set(points)
    assert len({key for key, *_ in before}) == 6


def test_of_a_month_there_are_some_thousands_of_points():
    lines = ({"seconds": 2.0 * i, "number": i} for i in range(1_000_000))
    kept = [line["number"] for line in publish._thin(lines)]
    assert 1500 < len(kept) < 2500
    # Of the first minutes nearly all, of later days a few an hour.
    assert kept[:50] == list(range(50))
    assert kept[-1] > 990_000
    last_day = [number for number in kept if number > 1_000_000 - SECONDS_A_DAY / 2]
    assert 5 < len(last_day) < 50


def test_a_short_run_is_shown_whole(folder: RunFolder, ask: Any):
    write(folder, block(1, 2.0, loss=0.123456789), block(2, 4.0), validation(2, 4.5, 0.987654321))
    commit(folder)
    found = content_of(folder, ask())
    assert [tuple(point) for point in found.measured] == [
        ("train/loss", 0.12346, 1_002_000, 1),
        ("train/throughput", 9501.0, 1_002_000, 1),
        ("train/lr", 0.01, 1_002_000, 1),
        ("train/loss", 0.33333, 1_004_000, 2),
        ("train/throughput", 9502.0, 1_004_000, 2),
        ("train/lr", 0.01, 1_004_000, 2),
        ("val/loss", 0.987654, 1_004_500, 2),
        ("val/accuracy", 0.9, 1_004_500, 2),
    ]
    assert (found.derived, found.end_ms, found.failed) == ((), None, False)


def test_a_loss_that_is_no_number_is_no_point(folder: RunFolder, ask: Any):
    write(folder, validation(2, 4.0, None))
    commit(folder)
    assert content_of(folder, ask()).measured == ()


def test_each_core_would_bury_the_rest(folder: RunFolder, ask: Any):
    write(folder, reading(10.0, 0.0, cpu_util_pct=50.123456, cpu_core_0_pct=1.0), name=SYSTEM)
    assert [tuple(point) for point in content_of(folder, ask()).measured] == [
        ("system/cpu_util_pct", 50.123, 10_000, 0)
    ]


def test_how_it_ended(folder: RunFolder, ask: Any):
    wanted = ask()
    values = values_of(gpu_mem_peak_gib=1.5, timed_samples=94_000)
    judgement = assess(values, wanted.promise, {})
    found = content_of(folder, wanted, outcome="trained", ended_at=2000.0, values=values, judgement=judgement)
    assert {(point.key, point.value) for point in found.derived} == {
        ("result/throughput", 9400.0),
        ("result/promised_throughput", 10_000.0),
        ("result/ratio_to_promise", 0.94),
        ("result/val_loss", 0.25),
        ("result/best_val_loss", 0.125),
        ("result/val_accuracy", 0.9),
        ("result/epochs", 3.0),
        ("result/minutes", 0.2),
        ("result/gpu_mem_peak_gib", 1.5),
    }
    assert {point.timestamp_ms for point in found.derived} == {found.end_ms} == {2_000_000}
    assert found.tags == {
        "sweeper.uid": folder.uid,
        "sweeper.stage": "production",
        "sweeper.outcome": "trained",
        "sweeper.sweep": "lines",
        "sweeper.trial": "7",
    }
    assert found.note == (
        "**missed: 9,400 samples/s, 0.94x the promised 10,000**\n\n"
        "Production run of trial 7 of the sweep `lines`."
    )
    assert found.params["batch_size"] == "48"
    assert (found.params["train.epochs"], found.params["train.schedule"]) == ("3", "constant")
    assert found.params["loader.pin_memory"] in ("true", "false")


def test_what_is_not_known_is_left_out(folder: RunFolder, ask: Any):
    wanted = ask()
    values = values_of(timed_seconds=0.0, val_loss=None, best_loss=None, metrics={})
    judgement = assess(values, None, {})
    found = content_of(folder, wanted, ended_at=2000.0, values=values, judgement=judgement)
    assert {point.key for point in found.derived} == {"result/epochs", "result/minutes"}


def test_one_that_failed(folder: RunFolder, ask: Any):
    found = content_of(folder, ask(), outcome="non_finite", ended_at=2000.0)
    assert (found.failed, found.end_ms, found.derived) == (True, 2_000_000, ())
    assert found.tags["sweeper.outcome"] == "non_finite"
