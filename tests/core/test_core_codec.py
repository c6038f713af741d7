"""The wire format: dataclasses to JSON and back."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from sweeper.core.codec import DecodeError, decode, encode
from sweeper.core.config import FIELDS, TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import (
    Breakdown,
    DeviceInfo,
    Diagnosis,
    Failure,
    FailureKind,
    Measurement,
    Quality,
    Stats,
    Window,
)


def random_config(rng: random.Random) -> TrialConfig:
    drawn = {}
    for name, item in FIELDS.items():
        if item.choices:
            drawn[name] = rng.choice(item.choices)
        elif item.type is bool:
            drawn[name] = rng.random() < 0.5
        elif name == "device.count":
            drawn[name] = 1
        elif item.type is int:
            drawn[name] = rng.randint(1, 10**6)
        else:
            drawn[name] = rng.uniform(1e-9, 1.0)
    drawn["model.name"] = rng.choice(["straße", 'quo"te', "\u2028", ""])
    drawn["model.value"] = rng.choice([None, True, 1, -1.5e300, "1"])
    return TrialConfig().replace(drawn)


def quality(**more) -> Quality:
    return Quality(key="k", samples=1, seconds=1.0, train_loss=0.5, val_loss=0.25, **more)


def random_measurement(rng: random.Random) -> Measurement:
    window = Window(
        start_s=rng.random() * 1e6,
        seconds=rng.random(),
        steps=rng.randint(1, 99),
        samples=7,
        waited_seconds=rng.choice([None, 0.5]),
        disturbances=("one", "the other")[: rng.randint(0, 2)],
    )
    return Measurement(
        throughput=rng.random() * 1e9,
        step_ms=rng.random(),
        epoch_seconds=1.5,
        train_samples=rng.randint(1, 10**12),
        windows=(window,) * rng.randint(0, 3),
        breakdown=Breakdown(data_s=rng.random()),
        device=DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-1"),
        startup_seconds=0.1,
        first_step_seconds=0.2,
        warmup_seconds=0.3,
        warmup_steps=4,
        gpu_mem_peak_gib=rng.choice([None, 1.25]),
        quality=rng.choice([None, quality(), quality(curve=((10, 1.5), (40, 0.25)))]),
        diagnosis=rng.choice(
            [None, Diagnosis(), Diagnosis(busy_s=rng.random(), sync_places=("a.py:1",), fits_device=True)]
        ),
        repeated_windows=rng.randint(0, 3),
        telemetry_missing={"gpu_power_w": "not supported"},
        effective={"compile.mode": "eager"},
        telemetry={"gpu_util_pct": Stats(mean=1.0, p50=2.0, p95=3.0)},
    )


def through_json(value):
    return json.loads(json.dumps(encode(value), allow_nan=False))


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed):
    rng = random.Random(seed)
    job = Job(
        uid="u",
        config=random_config(rng),
        import_paths=("a", "b"),
        cpus=tuple(range(rng.randint(0, 3))),
        env={"A": "1"},
        plan=MeasurePlan(repeats=rng.randint(0, 5)),
        data={"path": "x", "deep": {"list": [1, None]}},
    )
    assert decode(Job, through_json(job)) == job
    measurement = random_measurement(rng)
    assert decode(Measurement, through_json(measurement)) == measurement
    failure = Failure(kind=rng.choice(list(FailureKind)), message="m")
    decoded = decode(Failure, through_json(failure))
    assert decoded == failure
    assert isinstance(decoded.kind, FailureKind)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_absent(value):
    quality = Quality(key="k", samples=1, seconds=1.0, train_loss=value, val_loss=1.0, best_loss=value)
    encoded = through_json(quality)
    assert encoded["train_loss"] is None
    back = decode(Quality, encoded)
    assert math.isnan(back.train_loss)
    assert back.best_loss is None


def test_unknown_keys_are_passed_over_and_missing_ones_take_defaults():
    assert decode(Job, {"uid": "u", "invented": {"later": 1}}) == Job(uid="u")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"uid": 1}, "`uid` must be str, but got 1."),
        ({"config": {"batch_size": "64"}}, "`config.batch_size` must be int, but got '64'."),
        ({"config": {"batch_size": True}}, "`config.batch_size` must be int"),
        ({"config": {"loader": {"kind": 1}}}, "`config.loader.kind` must be str, but got 1."),
        ({"config": {"compile": {"mode": "graf"}}}, "`config.compile.mode` must be one of"),
        ({"config": {"loader": [1]}}, "`config.loader` must be an object"),
        ({"config": {"model": [1]}}, "`config.model` must be an object, but got [1]."),
        ({"config": {"model": {"x": [1]}}}, "`config.model.x` does not take [1]."),
        ({"import_paths": "a/b"}, "`import_paths` must be a list, but got 'a/b'."),
        ({"cpus": 3}, "`cpus` must be a list, but got 3."),
        ({"cpus": [0, "1"]}, "`cpus[1]` must be int, but got '1'."),
        ({"timeout_seconds": "1"}, "`timeout_seconds` must be float"),
    ],
)
def test_a_wrong_type_is_said_with_its_path(change, path):
    with pytest.raises(DecodeError) as caught:
        decode(Job, {"uid": "u", **change})
    assert path in str(caught.value)


def test_a_loss_from_before_there_were_curves_has_none():
    old = {name: value for name, value in through_json(quality()).items() if name != "curve"}
    assert decode(Quality, old).curve == ()


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ([[10, 1.5, 2]], "`curve[0]` must be a list of 2, but got [10, 1.5, 2]."),
        ([[10, 1.5], [1.5, 1.5]], "`curve[1][0]` must be int, but got 1.5."),
    ],
)
def test_each_part_of_a_point_has_its_own_type(curve, says):
    with pytest.raises(DecodeError) as caught:
        decode(Quality, {**through_json(quality()), "curve": curve})
    assert str(caught.value) == says


def test_a_missing_key_is_named():
    with pytest.raises(DecodeError, match=r"`Job`: .*uid"):
        decode(Job, {})
    with pytest.raises(DecodeError, match="`Job` must be an object"):
        decode(Job, [])
    with pytest.raises(DecodeError, match=r"`kind`: 'x' is not a valid FailureKind"):
        decode(Failure, {"kind": "x", "message": ""})


@dataclass(frozen=True, slots=True)
class Numbered:
    """Mappings by number, whose keys are text in JSON."""

    counts: Mapping[int, int]
    parts: tuple[Mapping[int, float], ...] = ()


def test_a_mapping_by_number_has_its_numbers_again():
    value = Numbered(counts={2: 0, 10: 1}, parts=({3: 0.5}, {}))
    assert through_json(value) == {"counts": {"2": 0, "10": 1}, "parts": [{"3": 0.5}, {}]}
    assert decode(Numbered, through_json(value)) == value
    with pytest.raises(DecodeError, match=r"`parts\[1\]`: invalid literal .* 'x'"):
        decode(Numbered, {"counts": {}, "parts": [{}, {"x": 1.0}]})
    with pytest.raises(DecodeError, match=r"`counts.3` must be int, but got 'many'"):
        decode(Numbered, {"counts": {"3": "many"}})
    with pytest.raises(DecodeError, match="`counts` must be an object"):
        decode(Numbered, {"counts": []})
