"""Limits, feasibility, and what the search is told of a trial."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from parts.noop import synthetic
from replays import spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import INFEASIBLE, Failure, FailureKind, Quality
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.limits import Limit, Yardstick, objective_values, with_quality, with_violations

LOSSES = (1.0, 1.1, 0.9)


def quality(loss: float, *, key: str = "k", constant: float | None = None) -> Quality:
    return Quality(key=key, samples=10, seconds=0, train_loss=loss, val_loss=loss, constant_loss=constant)


def record(number: int = 1, throughput: float = 100.0, loss: float | None = None, **more) -> TrialRecord:
    return TrialRecord(
        number=number,
        uid=str(number),
        stage="search",
        config=TrialConfig(),
        outcome=synthetic(throughput),
        quality=None if loss is None else quality(loss),
        **more,
    )


def failed(kind: FailureKind, number: int = 1) -> TrialRecord:
    return dataclasses.replace(record(number), outcome=Failure(kind=kind, message="it broke"))


def limits_of(constraints: dict, losses: tuple[float, ...] = (), loss: float | None = None) -> list[Limit]:
    return Yardstick(record(0, loss=loss), losses).limits(spec_of(constraints=constraints))


def test_a_ratio_is_taken_of_the_mean_loss_over_seeds():
    (limit,) = limits_of({"val_loss": {"max_ratio_to_baseline": 1.5}}, (2.0, 2.02, 1.98), loss=7.0)
    assert limit == Limit("val_loss", pytest.approx(3.0), 1)


def test_a_ratio_is_never_narrower_than_two_standard_deviations():
    (limit,) = limits_of({"val_loss": {"max_ratio_to_baseline": 1.02}}, LOSSES)
    assert limit.bound == pytest.approx(1.0 + 2 * statistics.stdev(LOSSES))


def test_a_ratio_of_a_negative_loss_is_no_better_than_it():
    """A Gaussian likelihood may be above 1: its loss is negative, and 1.02 times that would be better."""
    limits = limits_of({"val_loss": {"max_ratio_to_baseline": 1.5, "min_ratio_to_baseline": 0.5}}, (-2.0,))
    assert limits == [Limit("val_loss", -1.0, 1), Limit("val_loss", -3.0, -1)]
    assert all(each.violation(-2.0) <= 0 for each in limits)
    (limit,) = limits_of({"val_loss": {"max_ratio_to_baseline": 1.02}}, tuple(-each for each in LOSSES))
    assert limit.bound == pytest.approx(-1.0 + 2 * statistics.stdev(LOSSES))


def test_a_ratio_of_a_loss_of_zero_is_zero():
    assert limits_of({"val_loss": {"max_ratio_to_baseline": 1.02}}, (0.0, 0.0, 0.0)) == [
        Limit("val_loss", 0.0, 1)
    ]


def test_one_seed_has_no_spread():
    (limit,) = limits_of({"val_loss": {"max_ratio_to_baseline": 1.02}}, (1.0,))
    assert limit.bound == pytest.approx(1.02)


def test_absolute_bounds_and_ratios_of_other_metrics():
    found = limits_of(
        {
            "gpu_mem_peak_fraction": {"max": 0.9},
            "throughput": {"min": 50.0, "min_ratio_to_baseline": 0.5},
            "epoch_seconds": {"max_ratio_to_baseline": 2.0},
        }
    )
    assert found == [
        Limit("gpu_mem_peak_fraction", 0.9, 1),
        Limit("throughput", 50.0, -1),
        Limit("throughput", 50.0, -1),
        Limit("epoch_seconds", 2 * 1e6 / 100, 1),
    ]


def test_a_ratio_to_what_the_baseline_does_not_have_is_no_limit():
    assert limits_of({"val_loss": {"max_ratio_to_baseline": 1.02}}) == []
    assert limits_of({"gpu_mem_peak_gib": {"max_ratio_to_baseline": 1.0, "max": 8.0}}) == [
        Limit("gpu_mem_peak_gib", 8.0, 1)
    ]


@pytest.mark.parametrize(("value", "expected"), [(2.0, 0.0), (3.0, 0.5), (1.0, -0.5)])
def test_a_violation_is_relative_to_the_bound(value, expected):
    assert Limit("val_loss", 2.0, 1).violation(value) == pytest.approx(expected)
    assert Limit("throughput", 2.0, -1).violation(value) == pytest.approx(-expected)


def test_bounds_at_and_below_zero():
    assert Limit("val_loss", 0.0, 1).violation(0.25) == 0.25
    assert Limit("val_loss", -4.0, 1).violation(-3.0) == 0.25


def test_every_record_has_a_violation_for_every_constraint():
    spec = spec_of(constraints={"val_loss": {"max": 1.0}, "throughput": {"min": 10.0}})
    limits = Yardstick(record(0)).limits(spec)
    good = with_violations(record(loss=1.0), limits, spec)
    assert good.violations == {"ran": 0.0, "val_loss": 0.0, "throughput": 0.0}
    assert good.feasible
    bad = with_violations(record(loss=1.5), limits, spec)
    assert bad.violations == {"ran": 0.0, "val_loss": 0.5, "throughput": 0.0}
    assert not bad.feasible
    broken = with_violations(failed(FailureKind.OOM), limits, spec)
    assert broken.violations == {"ran": 1.0, "val_loss": 1.0, "throughput": 1.0}
    assert not broken.feasible


def test_what_was_not_looked_at_violates_nothing_and_what_runs_is_not_judged():
    spec = spec_of(constraints={"val_loss": {"max": 1.0}})
    limits = Yardstick(record(0)).limits(spec)
    assert with_violations(record(), limits, spec).feasible
    running = dataclasses.replace(record(), outcome=None)
    assert with_violations(running, limits, spec).violations == {}


def test_a_feasible_trial_is_told_as_it_is():
    spec = spec_of(objectives=[{"maximize": "throughput"}, {"minimize": "epoch_seconds"}])
    assert objective_values(record(throughput=50.0), [], spec) == (50.0, 1e6 / 50)


@pytest.mark.parametrize("kind", sorted(INFEASIBLE))
def test_an_infeasible_trial_is_told_the_worst_feasible_value(kind):
    others = [
        record(0, 300.0),
        record(2, 200.0),
        failed(FailureKind.OOM, 3),
        record(4, 1.0, violations={"x": 1}),
    ]
    mine = failed(kind, 5)
    assert objective_values(mine, [*others, mine], spec_of()) == (200.0,)
    spec = spec_of(objectives=[{"minimize": "epoch_seconds"}])
    assert objective_values(mine, [*others, mine], spec) == (1e6 / 200,)


def test_beyond_a_limit_is_told_the_worst_feasible_value_not_its_own():
    mine = record(5, 900.0, violations={"val_loss": 0.1})
    assert objective_values(mine, [record(0, 300.0), mine], spec_of()) == (300.0,)


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - INFEASIBLE))
def test_what_the_environment_ended_says_nothing(kind):
    assert objective_values(failed(kind), [record(0)], spec_of()) is None


def test_without_any_feasible_trial_a_failure_is_not_told_as_the_best():
    others = [record(0, 100.0, violations={"throughput": 1.0})]
    spec = spec_of(objectives=[{"minimize": "epoch_seconds"}])
    (told,) = objective_values(failed(FailureKind.OOM), others, spec)
    assert told >= 1e6 / 100


def test_a_loss_is_shared_and_never_replaced():
    shared = quality(2.0, key="shared")
    assert with_quality(record(), shared).quality is shared
    assert with_quality(record(), None).quality is None
    own = quality(3.0, key=shared.key)
    mine = dataclasses.replace(record(), outcome=dataclasses.replace(synthetic(1.0), quality=own))
    assert with_quality(mine, shared).quality is own


@pytest.mark.parametrize(
    ("losses", "constant", "tells"),
    [
        ((0.5, 0.5, 0.5), 1.0, True),
        ((0.99, 1.0, 1.01), 1.0, False),
        ((0.98, 0.99, 1.0), 1.0, False),  # Better, but by less than its seeds differ.
        ((-1.0, -1.1, -0.9), -0.5, True),
        ((-1.0, -1.1, -0.9), -0.9, False),
        ((0.9,), None, True),
        ((), 1.0, True),
    ],
)
def test_whether_the_loss_tells_anything(losses, constant, tells):
    baseline = dataclasses.replace(record(0), quality=quality(losses[0] if losses else 1, constant=constant))
    assert Yardstick(baseline, losses).loss_is_informative is tells


def test_a_metric_that_is_not_finite_is_absent():
    assert record(loss=math.nan).metric("val_loss") is None
