"""What a trial says of a whole run: samples to a loss, hours, and when compiling has paid."""

from __future__ import annotations

import dataclasses
import math

import pytest
from measurements import measurement, record_of
from replays import spec_of

from sweeper.core.measurement import Quality, Stats
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.limits import Yardstick, with_violations
from sweeper.results.numbers.projection import (
    break_even_steps,
    eager_rival,
    projected_hours,
    samples_to_loss,
    with_derived,
)

# The loss falls by 0.2 with each doubling: a straight line over the logarithm of the samples.
STRAIGHT = ((100, 1.0), (200, 0.8), (400, 0.6))


@pytest.mark.parametrize(
    ("target", "samples"),
    [(1.0, 100), (0.9, 100 * math.sqrt(2)), (0.8, 200), (0.7, 200 * math.sqrt(2)), (0.6, 400), (1.5, 100)],
)
def test_a_loss_on_the_curve_is_read_off_it(target: float, samples: float):
    assert samples_to_loss(STRAIGHT, target) == (pytest.approx(samples), "measured")


def test_the_first_time_counts_where_a_curve_comes_back_up():
    assert samples_to_loss(((10, 2.0), (20, 1.0), (40, 1.5)), 1.0) == (20, "measured")


def power(n: int) -> float:
    return 3.0 * n**-0.25


@pytest.mark.parametrize("times", [1.01, 4.0, 9.99])
def test_below_the_curve_its_power_law_goes_on(times: float):
    """The steep beginning has no part in it."""
    curve = ((250, 9.0), *((n, power(n)) for n in (500, 750, 1000)))
    found = samples_to_loss(curve, power(round(1000 * times)))
    assert found == (pytest.approx(1000 * times, rel=1e-3), "extrapolated")


def test_a_power_law_goes_through_the_last_point_whatever_the_noise_before_it():
    samples, how = samples_to_loss(((500, 1.2), (750, 0.97), (1000, 0.96)), 0.959)
    assert how == "extrapolated"
    assert 1000 < samples < 1010


@pytest.mark.parametrize(
    ("curve", "target"),
    [
        (tuple((n, power(n)) for n in (500, 750, 1000)), power(10_100)),
        (((250, 0.5), (500, 0.6), (1000, 0.7)), 0.4),  # It rises.
        (((250, 0.7), (500, 0.7), (1000, 0.7)), 0.6),  # It is flat.
        (((250, 0.7), (500, 0.7), (1000, math.nextafter(0.7, 0))), 0.6),
        (((250, 0.7), (500, 0.6)), 0.0),
        (((250, 0.7), (500, -0.6)), -0.7),
        (((250, 0.7),), 0.6),
        ((), 0.6),
    ],
)
def test_where_it_would_not_get_within_reason_there_is_nothing(curve, target: float):
    assert samples_to_loss(curve, target) is None


def trial(
    number: int = 7, speed: float = 100.0, start: float = 0.5, compiling: float = 0.0, **changes
) -> TrialRecord:
    found = dataclasses.replace(
        measurement(), throughput=speed, startup_seconds=start, compile_seconds=compiling
    )
    return record_of(found, number, **changes)


def test_hours_are_start_up_and_compiling_once_and_then_the_samples():
    found = trial(start=100.0, compiling=260.0).measurement
    assert projected_hours(found, 3_600_000, 500.0) == pytest.approx(0.1 + 2.0)


@pytest.mark.parametrize(
    ("eager", "compiled", "steps"),
    [
        # 30 s later; of a batch of 64 samples it saves 0.32 s.
        ({}, {"speed": 200.0, "start": 1.5, "compiling": 29.0}, 94.0),
        ({"start": 40.0}, {"speed": 200.0}, 0.0),
        ({}, {"speed": 100.0, "compiling": 1.0}, math.inf),
        ({"speed": 101.0}, {}, math.inf),
    ],
)
def test_compiling_has_paid_from_this_step_on(eager: dict, compiled: dict, steps: float):
    assert break_even_steps(trial(**eager), trial(**compiled)) == steps


def test_a_step_that_saves_more_pays_sooner():
    slow, fast = trial(), {"speed": 200.0, "compiling": 32.0}
    assert break_even_steps(slow, trial(**fast)) == 100
    assert break_even_steps(slow, trial(**fast, accumulate_steps=4)) == 25
    assert break_even_steps(dataclasses.replace(slow, outcome=None), trial(**fast)) is None


COMPILED = {"compile__mode": "default", "batch_size": 128}


def test_a_compiled_trial_is_compared_with_its_twin_or_else_with_the_fastest_eager_one():
    compiled = trial(1, 300.0, **COMPILED)
    twin, fastest, slow = trial(2, 50.0, batch_size=128), trial(3, 250.0), trial(4, 60.0)
    out_of_place = [
        trial(5, 900.0, model__width=9),
        dataclasses.replace(trial(6, 900.0), violations={"val_loss": 1.0}),
        trial(8, 900.0, compile__mode="graph"),
        dataclasses.replace(
            trial(9), outcome=dataclasses.replace(trial(9, 900.0).measurement, is_screened=True)
        ),
    ]
    others = [compiled, slow, fastest, *out_of_place]
    assert eager_rival(compiled, [*others, twin]) is twin
    assert eager_rival(compiled, others) is fastest
    assert eager_rival(compiled, [compiled, *out_of_place]) is None
    assert eager_rival(fastest, others) is None
    # Nothing of it was compiled in the end.
    left_alone = dataclasses.replace(compiled.measurement, effective={"compile.mode": "eager: recurrent"})
    assert eager_rival(dataclasses.replace(compiled, outcome=left_alone), others) is None


# -- the metrics of a record ------------------------------------------------------------------------------


def looked_at(record: TrialRecord, *curve: tuple[int, float], key: str = "other") -> TrialRecord:
    samples, loss = curve[-1]
    found = Quality(key=key, samples=samples, seconds=1, train_loss=loss, val_loss=loss, curve=curve)
    return dataclasses.replace(record, quality=found)


# After 1,000 samples 0.6 over the seeds; its own seed is a lucky one.
YARDSTICK = Yardstick(looked_at(trial(0), (500, 0.7), (1000, 0.5), key="base"), (0.5, 0.6, 0.7))


@pytest.mark.parametrize(
    ("curve", "seconds", "how"),
    [
        (((500, 0.6), (1000, 0.5)), 3 + 500 / 100, "measured"),
        (((500, 0.6 * 4**0.5), (1000, 0.6 * 2**0.5)), 3 + 2000 / 100, "extrapolated"),
        (((1000, 0.55),), 3 + 1000 / 100, "measured"),
        # Of a single point above it nothing is known.
        (((1000, 0.65),), None, None),
    ],
)
def test_time_to_the_baselines_loss(curve, seconds: float | None, how: str | None):
    record = with_derived(looked_at(trial(start=1.0, compiling=2.0), *curve), YARDSTICK, None)
    assert record.metric("time_to_loss_s") == (seconds and pytest.approx(seconds))
    assert record.derived.keys() == ({"time_to_loss_s"} if how else set())
    assert record.notes.get("time_to_loss_how") == how
    assert record.metric("projected_hours") is None


def test_the_baselines_numerics_take_the_samples_of_the_pass_whatever_the_seed():
    for record in (YARDSTICK.baseline, dataclasses.replace(trial(3), quality=YARDSTICK.baseline.quality)):
        found = with_derived(record, YARDSTICK, None)
        assert found.metric("time_to_loss_s") == pytest.approx(0.5 + 1000 / 100)
        assert found.notes == {"time_to_loss_how": "measured"}


def test_a_loss_that_is_never_reached_is_beyond_every_limit_on_the_time():
    """Absent as a metric: what was not looked at is absent, too, and violates nothing."""
    spec = spec_of(constraints={"time_to_loss_s": {"max_ratio_to_baseline": 2.0}})
    baseline = with_derived(YARDSTICK.baseline, YARDSTICK, None)
    limits = Yardstick(baseline, YARDSTICK.losses).limits(spec)
    assert [(limit.metric, limit.bound) for limit in limits] == [("time_to_loss_s", pytest.approx(21.0))]
    rising, unknown, near = (
        with_violations(with_derived(record, YARDSTICK, None), limits, spec)
        for record in (
            looked_at(trial(), (500, 0.7), (1000, 0.8)),
            trial(),
            looked_at(trial(), (500, 0.7), (1000, 0.6)),
        )
    )
    assert (rising.metric("time_to_loss_s"), rising.notes, rising.feasible) == (None, {}, False)
    assert (unknown.metric("time_to_loss_s"), unknown.feasible) == (None, True)
    assert (near.metric("time_to_loss_s"), near.feasible) == (pytest.approx(10.5), True)


def test_hours_are_there_as_soon_as_a_trial_is_measured():
    record = with_derived(trial(start=36.0), None, 360_000.0)
    assert record.metric("projected_hours") == pytest.approx(1.01)
    assert with_derived(dataclasses.replace(record, outcome=None), None, 1.0).derived == {}


def test_a_run_has_a_price_where_an_hour_has_one():
    record = with_derived(trial(start=36.0), None, 360_000.0, 2.0)
    assert record.metric("cost_per_run") == pytest.approx(2.02)
    two = dataclasses.replace(record, config=record.config.replace({"device.count": 2}))
    assert with_derived(two, None, 360_000.0, 2.0).metric("cost_per_run") == pytest.approx(4.04)
    assert with_derived(trial(), None, 360_000.0).metric("cost_per_run") is None


def test_energy_per_sample_is_that_of_all_gpus():
    record = trial()
    assert record.metric("joules_per_sample") is None
    power = Stats(mean=300.0, p50=300.0, p95=310.0)
    measured = dataclasses.replace(
        record.measurement,
        device=dataclasses.replace(record.measurement.device, kind="cuda"),
        telemetry={"gpu_power_w": power},
    )
    throughput = measured.throughput
    record = dataclasses.replace(record, outcome=measured)
    assert record.metric("joules_per_sample") == pytest.approx(300 / throughput)
    two = dataclasses.replace(record, config=record.config.replace({"device.count": 2}))
    assert two.metric("joules_per_sample") == pytest.approx(600 / throughput)
    both = dataclasses.replace(
        measured, telemetry={"gpu_power_w": power, "gpu1_power_w": Stats(mean=200.0, p50=0.0, p95=0.0)}
    )
    assert dataclasses.replace(two, outcome=both).metric("joules_per_sample") == pytest.approx(
        500 / throughput
    )


@pytest.mark.parametrize(("kind", "joules"), [("cpu", 90.0), ("cuda", None)])
def test_energy_per_sample_is_that_of_the_processors_on_a_cpu(kind, joules):
    record = trial()
    measured = record.measurement
    measured = dataclasses.replace(
        measured,
        device=dataclasses.replace(measured.device, kind=kind),
        telemetry={"cpu_power_w": Stats(mean=90.0, p50=90.0, p95=95.0)},
    )
    found = dataclasses.replace(record, outcome=measured).metric("joules_per_sample")
    assert found == (joules and pytest.approx(joules / measured.throughput))


def test_a_training_on_the_processors_has_no_energy_of_the_gpu_beside_them():
    record = trial()
    power = Stats(mean=300.0, p50=300.0, p95=310.0)
    measured = dataclasses.replace(
        record.measurement,
        device=dataclasses.replace(record.measurement.device, kind="cuda"),
        observed={"device": "cpu"},
        telemetry={"gpu_power_w": power, "cpu_power_w": Stats(mean=90.0, p50=90.0, p95=95.0)},
    )
    found = dataclasses.replace(record, outcome=measured).metric("joules_per_sample")
    assert found == pytest.approx(90 / measured.throughput)
