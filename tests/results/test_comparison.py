"""Two sweeps side by side: the interval, the winners, the trials both measured, and what is not fair."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
from scipy import stats
from thousand import write_sweep

from sweeper.cli.compare import side_of
from sweeper.results.comparison import SpeedRatio, compare, log_ratio
from sweeper.sweep.folder.load import load_sweep

A = [100.0, 104.0, 99.0, 101.0, 97.0]
B = [120.0, 131.0, 118.0]


def side(home, name, **about):
    return side_of(load_sweep(write_sweep(home, name, **{"trials": 12, "with_series": False, **about})))


@pytest.fixture
def a(tmp_path):
    return side(tmp_path, "a")


def test_the_interval_is_welchs():
    logs = [[math.log(value) for value in each] for each in (A, B)]
    theirs = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    mean, low, high = log_ratio(A, B)
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    assert mean == pytest.approx(sum(logs[1]) / 3 - sum(logs[0]) / 5)
    assert log_ratio(B, A) == pytest.approx((-mean, -high, -low))
    assert log_ratio([2.0, 2.0], [4.0, 4.0, 4.0]) == pytest.approx((math.log(2),) * 3)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Two sweeps of one truth, of unlike noise and few rounds."""
    draw, held, times = random.Random(0), 0, 600
    for _ in range(times):
        one = [math.exp(draw.gauss(0, 0.02)) for _ in range(8)]
        other = [math.exp(draw.gauss(0.1, 0.08)) for _ in range(5)]
        _, low, high = log_ratio(one, other)
        held += low <= 0.1 <= high
    assert 0.92 <= held / times <= 0.98


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (0.90, 0.949, "slower"),
        (0.90, 0.951, "not decided"),
        (0.95, 1.20, "not slower"),
        (0.949, 1.20, "not decided"),
        (None, None, "not decided"),
    ],
)
def test_the_whole_interval_decides(low, high, answer):
    assert SpeedRatio(ratio=0.5, low=low, high=high).is_slower(0.05) == answer


def test_seconds_are_the_other_way_round():
    found = SpeedRatio(ratio=2.0, low=1.6, high=2.5, epoch_ratio=1.5).of_epochs()
    assert found is not None
    # The epoch is three times as long, at twice the speed.
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 3 / 2.5, 3 / 1.6))
    assert SpeedRatio(ratio=2.0).of_epochs() is None
    single = SpeedRatio(ratio=2.0, epoch_ratio=0.5).of_epochs()
    assert single is not None
    assert (single.ratio, single.low, single.high) == (0.5, None, None)


def test_b_is_held_against_a(a, tmp_path):
    b = side(tmp_path, "b", faster=0.8, seed=1)
    found = compare(a, b)
    assert found.winner is not None
    assert found.baseline is not None
    assert found.gain is not None
    assert found.winner.high < 0.9
    assert found.winner.low < 0.8 < found.winner.high
    assert found.winner.epoch_ratio == pytest.approx(1 / found.winner.ratio)
    assert found.baseline.low < 1 < found.baseline.high
    # All but the baseline are slower: so is the winner, measured by it.
    assert found.gain.low < 0.8 < found.gain.high < 0.9
    assert found.winner.is_slower(0.05) == "slower"
    assert found.winner.is_slower(0.5) == "not slower"
    assert found.configuration == {}
    assert found.unfair == ()


def test_what_moved_a_round_as_a_whole_is_not_in_the_gain(a):
    draw = random.Random(0)
    shaken = [
        {n: speed * k for n, speed in each.items()} for each in a.rounds if (k := draw.uniform(0.2, 0.8))
    ]
    found, same = compare(a, dataclasses.replace(a, rounds=shaken)), compare(a, a)
    assert found.winner is not None
    assert found.gain is not None
    assert same.gain is not None
    assert found.winner.ratio < 0.8
    assert found.gain.ratio == pytest.approx(1)
    assert (found.gain.low, found.gain.high) == pytest.approx((same.gain.low, same.gain.high))


def test_pairs_are_of_one_configuration_and_those_that_moved_most_come_first(a, tmp_path):
    b = side(tmp_path, "b", faster=0.8, seed=1)
    found = compare(a, b)
    measured = [r for r in a.summary.records if r.measurement]
    assert 10 <= len(found.pairs) <= len(measured)
    assert all(pair.a.config.key() == pair.b.config.key() for pair in found.pairs)
    moved = [abs(math.log(pair.ratio)) for pair in found.pairs]
    assert moved == sorted(moved, reverse=True)
    (own,) = [pair for pair in found.pairs if pair.a.number == 0]
    assert own.ratio == pytest.approx(
        b.summary.records[0].metric("throughput") / a.summary.records[0].metric("throughput")
    )
    assert found.median == pytest.approx(0.8, rel=0.05)


def test_a_trial_that_a_short_window_ended_is_no_pair(a):
    records = [
        dataclasses.replace(r, outcome=dataclasses.replace(r.outcome, is_screened=True))
        if r.measurement
        else r
        for r in a.summary.records
    ]
    b = dataclasses.replace(a, summary=dataclasses.replace(a.summary, records=tuple(records)))
    assert compare(a, b).pairs == ()
    assert compare(a, b).median is None


def test_unlike_is_said(a, tmp_path):
    b = side(
        tmp_path,
        "b",
        device="NVIDIA A100",
        changes={"baseline": {"loader.kind": "rows", "batch_size": 64, "model.hidden_size": 128}},
    )
    changed = {**b.fingerprint, "data": {"options": {"limit": 100}}}
    said = compare(a, dataclasses.replace(b, fingerprint=changed)).unfair
    assert said[0] == "The devices differ: NVIDIA A10, 22.5 GiB and NVIDIA A100."
    assert any("do not do the same work (model.hidden_size)" in line for line in said)
    assert any(line.startswith("The data may differ") for line in said)
    other = compare(a, dataclasses.replace(b, fingerprint={**changed, "pipeline": "mine"})).unfair
    assert "They do not run the same pipeline or command." in other
    assert not any(line.startswith("The data may differ") for line in other)


def of_measured(side, **changes):
    """`side`, with fields of all measurements changed."""
    summary = side.summary
    records = tuple(
        dataclasses.replace(r, outcome=dataclasses.replace(r.outcome, **changes)) if r.measurement else r
        for r in summary.records
    )
    yardstick = dataclasses.replace(summary.yardstick, baseline=records[0])
    winner = summary.winner and records[summary.winner.number]
    changed = dataclasses.replace(summary, records=records, yardstick=yardstick, winner=winner)
    return dataclasses.replace(side, summary=changed)


def test_other_samples_and_who_timed_it_are_said_once_for_both(a):
    b = of_measured(a, train_samples=500_000, reported_by="the meter")
    said = compare(a, b).unfair
    assert "The baselines and the winners were timed by sweeper itself and by the meter." in said
    assert (
        "The baselines and the winners saw different data: 1,000,000 and 500,000 samples per epoch." in said
    )
    found = compare(a, b).winner
    assert found is not None
    assert found.epoch_ratio == pytest.approx(0.5)
    unknown = compare(a, of_measured(a, train_samples=0))
    assert unknown.winner is not None
    assert unknown.winner.epoch_ratio is None
    assert not any("other data" in line for line in unknown.unfair)


def test_losses_after_other_samples_do_not_compare(a):
    records = [
        dataclasses.replace(r, quality=r.quality and dataclasses.replace(r.quality, samples=7))
        for r in a.summary.records
    ]
    yardstick = dataclasses.replace(a.summary.yardstick, baseline=records[0])
    b = dataclasses.replace(
        a, summary=dataclasses.replace(a.summary, records=tuple(records), yardstick=yardstick)
    )
    (said,) = compare(a, b).unfair
    assert said.startswith("The baselines had their loss measured after 60,000 and 7 samples: ")


def test_made_up_data_and_disturbances_are_said(a):
    summary = dataclasses.replace(
        a.summary, synthetic=True, state="stopped", disturbances={0: 0, a.summary.winner.number: 3}
    )
    said = compare(a, dataclasses.replace(a, summary=summary)).unfair
    assert said == (
        "The data of B is synthetic: speeds on your own data may differ.",
        "B is stopped.",
        "The timings of B's winner stayed disturbed: 3 of 8 confirmation runs.",
    )


def test_without_confirmation_there_is_no_interval(a, tmp_path):
    b = side(tmp_path, "b", rounds=0)
    record, how = b.best
    assert how == "unconfirmed"
    assert (
        record.number
        == max(
            b.summary.records,
            key=lambda r: (
                r.metric("throughput")
                if r.feasible and r.config.work_key() == b.baseline.config.work_key()
                else 0
            ),
        ).number
    )
    found = compare(a, b)
    assert found.gain is None
    assert (found.winner.low, found.winner.high) == (None, None)
    assert found.winner.ratio == pytest.approx(1, rel=0.1)
    assert any(line.startswith("B's winner is not confirmed") for line in found.unfair)


def test_where_nothing_wins_it_is_the_baseline_that_stands(a, tmp_path):
    b = side(tmp_path, "b", faster=0.001)
    assert b.summary.winner is None
    assert b.best == (b.baseline, "baseline")
    found = compare(a, b)
    assert found.winner.high < 1
    assert found.gain is None
    assert found.configuration["loader.kind"] == ("resident", "rows")
    assert "loader.kind" in found.searched
    assert "device.malloc" not in found.configuration


def test_what_was_faster_once_and_not_confirmed_so_is_no_winner(a):
    b = dataclasses.replace(a, summary=dataclasses.replace(a.summary, winner=None, ratio=None))
    assert max(row.speedup for row in b.summary.per_loader) > 1
    assert b.best == (b.baseline, "baseline")


def test_what_only_the_baseline_names_was_not_searched(a, tmp_path):
    b = side(tmp_path, "b", changes={"fix": {"device.malloc": "default"}})
    found = compare(a, b)
    assert found.configuration["device.malloc"] == ("retain", "default")
    assert "device.malloc" not in found.searched


def test_a_sweep_without_a_baseline_is_compared_with_nothing(a, tmp_path):
    journal = write_sweep(tmp_path, "b", trials=12, with_series=False)
    (journal.trial_folder(0) / "outcome.json").write_text(
        json.dumps({"schema": 1, "type": "failure", "kind": "oom", "message": "out of memory"})
    )
    (journal.folder / "result.json").unlink()
    b = side_of(load_sweep(journal))
    for found in (compare(a, b), compare(b, a)):
        assert (found.baseline, found.winner, found.gain, found.configuration) == (None, None, None, {})
        assert any(line.endswith("has no measured baseline.") for line in found.unfair)
