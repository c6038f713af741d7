"""What to change next: what is named first, and what must never be named, over a wide grid."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from measurements import THROUGHPUT, measurement

from sweeper.core.config import FIELDS, TrialConfig
from sweeper.core.measurement import Bottleneck, Measurement
from sweeper.results.verdict.remedies import Remedy, percent, rate, remedy_for
from sweeper.results.verdict.signals import signals_of


def named(kind: Bottleneck, found: Measurement, config: TrialConfig) -> Remedy:
    return remedy_for(kind, signals_of(found), found, config)


def next_of(kind: Bottleneck, asked: dict[str, Any] | None = None, **shares: Any) -> Remedy:
    return named(kind, measurement(**shares), TrialConfig().replace(asked or {}))


def test_numbers_are_for_a_person():
    assert [rate(value) for value in (0.5, 8.25, 830.0, 5123.0, 1.3e6, 2.5e8)] == [
        "0.5",
        "8.25",
        "830",
        "5.12k",
        "1.3M",
        "250M",
    ]
    assert [percent(share) for share in (0.0, 0.006, 0.814, 1.0)] == ["0%", "1%", "81%", "100%"]


@pytest.mark.parametrize("value", [999.6, 999_700.0])
def test_a_rate_that_rounds_up_to_a_thousand_has_no_exponent(value: float):
    assert "e" not in rate(value)


# -- what is named first --------------------------------------------------------------------------------

ROWS = {"loader.kind": "rows", "loader.num_workers": 1}
WORKERS = {**ROWS, "loader.kind": "workers"}
STREAM = {"loader.kind": "stream"}
RATES = {"device_samples_s": 3 * THROUGHPUT, "loader_samples_s": THROUGHPUT}


@pytest.mark.parametrize("kind", ["rows", "workers", "stream"])
def test_data_that_fits_goes_to_the_device(kind: str):
    found = next_of(Bottleneck.INPUT, {"loader.kind": kind}, fits_device=True, **RATES)
    assert found == Remedy("`loader.kind: resident`: up to about 3x", {"loader.kind": "resident"})
    found = next_of(Bottleneck.TRANSFER, {"loader.kind": kind}, fits_device=True)
    assert found.changes == {"loader.kind": "resident"}


@pytest.mark.parametrize("fits", [False, None])
def test_rows_that_do_not_fit_are_streamed(fits: bool | None):
    found = next_of(Bottleneck.INPUT, ROWS, fits_device=fits, **RATES)
    assert found.changes == {"loader.kind": "stream"}


@pytest.mark.parametrize(
    ("asked", "rates", "workers"),
    [
        (WORKERS, RATES, 3),
        (WORKERS, {**RATES, "device_samples_s": 99 * THROUGHPUT}, 4),
        (WORKERS, {**RATES, "device_samples_s": 1.5 * THROUGHPUT}, 2),
        (WORKERS, {}, 2),
        ({**WORKERS, "loader.num_workers": 0}, RATES, 3),
        (STREAM, RATES, 3),
        # The device is the slower: one more all the same.
        ({**WORKERS, "loader.num_workers": 2}, {**RATES, "device_samples_s": THROUGHPUT}, 3),
    ],
)
def test_as_many_workers_as_the_device_needs_and_the_cores_carry(asked: dict, rates: dict, workers: int):
    found = next_of(Bottleneck.INPUT, asked, telemetry={"cpu_util_pct": 40.0}, **rates)
    assert found.changes == {"loader.kind": "workers", "loader.num_workers": workers}
    assert f"`loader.num_workers: {workers}`" in found.text


@pytest.mark.parametrize(
    ("workers", "cpu", "fewer"), [(4, 40.0, 3), (9, 40.0, 3), (3, 85.0, 2), (1, 99.0, 0)]
)
def test_where_the_cores_are_taken_fewer_workers(workers: int, cpu: float, fewer: int):
    asked = {**WORKERS, "loader.num_workers": workers}
    found = next_of(Bottleneck.INPUT, asked, telemetry={"cpu_util_pct": cpu}, **RATES)
    assert found.changes == {"loader.num_workers": fewer}
    assert f"adding workers will not help (the CPU is at {cpu:.0f}%)" in found.text
    # Also where something better is named.
    better = next_of(Bottleneck.INPUT, asked, telemetry={"cpu_util_pct": cpu}, fits_device=True)
    assert "adding workers will not help" in better.text


def test_what_no_loader_can_help_is_up_to_the_user():
    for asked, more in (({}, {}), (STREAM, {"usable_cpus": 1}), (STREAM, {"diagnosed": False})):
        found = next_of(Bottleneck.INPUT, asked, **more)
        assert (found.changes, found.text.startswith("make a sample cheaper to read")) == ({}, True)


def test_copies_are_taken_ahead_or_made_smaller():
    assert next_of(Bottleneck.TRANSFER, WORKERS, gpu=True).changes == {"loader.kind": "stream"}
    found = next_of(Bottleneck.TRANSFER, STREAM, gpu=True, fits_device=False)
    assert (found.changes, found.text.startswith("send less")) == ({}, True)


def test_a_wait_is_in_the_users_code():
    assert next_of(Bottleneck.SYNC, blocked=0.5).text.startswith("find what loss() or the model waits for")
    found = next_of(Bottleneck.SYNC, gpu=True, sync_places=("net.py:12",))
    assert found.text.startswith("at net.py:12: ")
    assert found.changes == {}
    # A scaler that is not fused asks the device in each step.
    half = {"precision.amp": "fp16", "optimizer.fused": False}
    assert next_of(Bottleneck.SYNC, half, gpu=True).changes == {"optimizer.fused": True}
    assert next_of(Bottleneck.SYNC, {"precision.amp": "fp16"}, gpu=True).changes == {}


SMALL = {"gpu": True, "idle": 0.7, "issue": 1.0, "sync_places": ()}


def test_fewer_launches():
    plain = {"optimizer.fused": False}
    assert next_of(Bottleneck.LAUNCH, plain, **SMALL).changes == {"optimizer.fused": True}
    assert next_of(Bottleneck.LAUNCH, **SMALL).changes == {"compile.mode": "graph"}
    assert next_of(Bottleneck.LAUNCH, {"compile.mode": "default"}, **SMALL).changes == {
        "compile.mode": "graph"
    }
    assert next_of(Bottleneck.LAUNCH, {"compile.mode": "graph"}, **SMALL).changes == {"batch_size": 256}
    assert next_of(Bottleneck.LAUNCH, {"device.count": 2}, **SMALL).changes == {"batch_size": 256}


def test_a_host_that_cannot_keep_up_is_helped_by_a_graph_whatever_the_counters_say():
    found = next_of(Bottleneck.LAUNCH, **SMALL, telemetry={"gpu_sm_active_pct": 8.0})
    assert found.changes == {"compile.mode": "graph"}


def test_more_workers_do_not_help_where_copies_take_their_share():
    copying = {"h2d": 0.2, "telemetry": {"cpu_util_pct": 40.0}, **RATES}
    assert next_of(Bottleneck.INPUT, WORKERS, **copying).changes == {}
    assert next_of(Bottleneck.INPUT, WORKERS, **{**copying, "h2d": 0.1}).changes != {}


def test_kernels_that_are_too_small_are_helped_by_a_larger_batch():
    full = {**SMALL, "idle": 0.0, "issue": 0.2, "telemetry": {"gpu_sm_active_pct": 8.0}}
    assert next_of(Bottleneck.LAUNCH, **full).changes == {"batch_size": 256}


def test_a_larger_batch_says_how_long_its_step_will_take():
    found = next_of(Bottleneck.LAUNCH, fixed=0.6)
    assert found == Remedy(
        "`batch_size: 256`, if the loss allows it: a step takes only 2.2x as long",
        {"batch_size": 256},
    )
    assert next_of(Bottleneck.LAUNCH).text == "`batch_size: 256`, if the loss allows it"
    assert next_of(Bottleneck.LAUNCH, fixed=1.0).text == (
        "`batch_size: 256`, if the loss allows it: a step takes barely longer"
    )


def test_a_full_device_makes_room():
    full = {**SMALL, "memory": 0.95}
    assert next_of(Bottleneck.CAPACITY, **full, native_bf16=True).changes == {"precision.amp": "bf16"}
    for native in (False, None):
        found = next_of(Bottleneck.CAPACITY, **full, native_bf16=native)
        assert found.changes == {"activation_checkpointing": True}


PLAIN = {"device.malloc": "default"}


def test_less_memory_is_moved():
    assert next_of(Bottleneck.BANDWIDTH, PLAIN, native_bf16=True).changes == {"device.malloc": "retain"}
    assert next_of(Bottleneck.BANDWIDTH, native_bf16=True).changes == {"precision.amp": "bf16"}
    gpu = {"gpu": True, "native_bf16": False}
    assert next_of(Bottleneck.BANDWIDTH, PLAIN, **gpu).changes == {"compile.mode": "default"}
    assert next_of(Bottleneck.BANDWIDTH, {"compile.mode": "default"}, **gpu).changes == {}
    assert next_of(Bottleneck.BANDWIDTH).changes == {}


def test_arithmetic_is_made_cheaper():
    native = {"native_bf16": True}
    assert next_of(Bottleneck.COMPUTE, **native).changes == {"precision.amp": "bf16"}
    # Small matrices lose more to conversions than they win.
    assert next_of(Bottleneck.COMPUTE, fixed=0.16, **native).changes == {"batch_size": 256}
    assert next_of(Bottleneck.COMPUTE, fixed=0.14, **native).changes == {"precision.amp": "bf16"}
    assert next_of(Bottleneck.COMPUTE, PLAIN, faults=0.08, **native).changes == {"device.malloc": "retain"}
    assert next_of(Bottleneck.COMPUTE, PLAIN, faults=0.07, **native).changes == {"precision.amp": "bf16"}
    assert next_of(Bottleneck.COMPUTE, gpu=True).changes == {"precision.tf32": True}
    assert next_of(Bottleneck.COMPUTE, {"precision.tf32": True}, gpu=True).changes == {
        "compile.mode": "default"
    }
    assert next_of(Bottleneck.COMPUTE, {"device.cpu_threads": 3}).changes == {"device.cpu_threads": 4}
    for most in (0, 4, 8):
        assert next_of(Bottleneck.COMPUTE, {"device.cpu_threads": most}).changes == {}


# -- over a wide grid -----------------------------------------------------------------------------------

AXES: dict[str, tuple[Any, ...]] = {
    "loader.kind": FIELDS["loader.kind"].choices,
    "loader.num_workers": (0, 1, 2, 4, 40),
    "batch_size": (1, 3, 64, 100, 50_000),
    "precision.amp": FIELDS["precision.amp"].choices,
    "precision.tf32": FIELDS["precision.tf32"].choices,
    "compile.mode": FIELDS["compile.mode"].choices,
    "optimizer.fused": (False, True),
    "device.malloc": FIELDS["device.malloc"].choices,
    "device.count": (1, 2),
    "device.cpu_threads": (0, 1, 4, 8),
}
SHARES: dict[str, tuple[Any, ...]] = {
    "data": (0.0, 0.4),
    "helpers": (0.0, 2.0),
    "fixed": (None, 0.1, 0.5),
    "blocked": (None, 0.5),
    "idle": (None, 0.5),
    "faults": (0.0, 0.3),
    "issue": (None, 0.2, 0.9),
    "memory": (None, 0.95),
    "diagnosed": (True, True, True, False),
    "fits_device": (None, False, True),
    "native_bf16": (None, False, True),
    "usable_cpus": (1, 2, 4, 64),
    "sync_places": (None, (), ("net.py:12",)),
    "device_samples_s": (None, 0.5 * THROUGHPUT, 7 * THROUGHPUT),
    "loader_samples_s": (None, 0.5 * THROUGHPUT, 7 * THROUGHPUT),
}
TELEMETRY = {"cpu_util_pct": (20.0, 84.0, 86.0, 100.0), "gpu_sm_active_pct": (5.0, 80.0)}
KINDS = [kind for kind in Bottleneck if kind not in (Bottleneck.UNCLEAR, Bottleneck.INCONCLUSIVE)]

Case = tuple[Bottleneck, Measurement, TrialConfig, Remedy]


def cases(number: int) -> Iterator[Case]:
    rng = random.Random(1)
    for kind in itertools.islice(itertools.cycle(KINDS), number):
        config = TrialConfig().replace({name: rng.choice(values) for name, values in AXES.items()})
        shares = {name: rng.choice(values) for name, values in SHARES.items()}
        told = {name: rng.choice(values) for name, values in TELEMETRY.items() if rng.random() < 0.7}
        found = measurement(gpu=rng.random() < 0.5, telemetry=told, **shares)
        found = dataclasses.replace(found, train_samples=rng.choice([1_000_000, 200_000, 60_000]))
        yield kind, found, config, named(kind, found, config)


@pytest.fixture(scope="module")
def grid() -> list[Case]:
    return list(cases(7 * 700))


def test_what_is_named_is_another_configuration_that_can_be_run(grid: list[Case]):
    told: dict[Bottleneck, set[str]] = {}
    for kind, _, config, remedy in grid:
        assert remedy.text
        if remedy.changes:
            # Another one to whoever looks for duplicates, too.
            assert config.replace(remedy.changes).key() != config.key(), (kind, config, remedy)
            told.setdefault(kind, set()).update(remedy.changes)
            assert any(
                f"`{name}: {value}`".lower() in remedy.text.lower() for name, value in remedy.changes.items()
            )
    # Only a script's own loop is held up by what it does between its steps.
    assert set(told) == set(KINDS) - {Bottleneck.HOST}
    every = {"loader.kind", "loader.num_workers", "optimizer.fused", "compile.mode", "batch_size"}
    every |= {
        "device.malloc",
        "precision.amp",
        "precision.tf32",
        "device.cpu_threads",
        "activation_checkpointing",
    }
    assert set().union(*told.values()) == every


def test_resident_is_never_named_where_the_data_does_not_fit(grid: list[Case]):
    asked = [case for case in grid if case[3].changes.get("loader.kind") == "resident"]
    assert asked
    for _, found, config, _ in asked:
        assert found.diagnosis is not None
        assert found.diagnosis.fits_device is True
        assert config.loader.kind != "resident"


def test_more_workers_are_never_named_where_the_cores_are_taken(grid: list[Case]):
    count = 0
    for _, found, config, remedy in grid:
        processes = config.loader.num_workers if config.loader.kind in ("rows", "workers") else 0
        wanted = remedy.changes.get("loader.num_workers", 0)
        if wanted > processes:
            count += 1
            cores = found.diagnosis.usable_cpus if found.diagnosis else 1
            cpu = found.telemetry.get("cpu_util_pct")
            assert processes < wanted <= cores
            assert cpu is None or cpu.mean < 85, (config.loader, cpu.mean, remedy.text)
    assert count > 20


def test_bf16_is_never_named_where_the_device_has_it_not(grid: list[Case]):
    asked = [case for case in grid if "precision.amp" in case[3].changes]
    assert asked
    for _, found, config, remedy in asked:
        assert remedy.changes == {"precision.amp": "bf16"}
        assert config.precision.amp == "fp32"
        assert found.diagnosis is not None
        assert found.diagnosis.native_bf16 is True


def test_what_only_a_gpu_has_is_never_named_on_a_cpu(grid: list[Case]):
    for _, found, config, remedy in grid:
        if remedy.changes.get("compile.mode") == "graph":
            assert (found.device.kind, config.device.count) == ("cuda", 1)
        if remedy.changes.keys() & {"compile.mode", "precision.tf32"}:
            assert found.device.kind == "cuda"
        if remedy.changes.keys() & {"device.malloc", "device.cpu_threads"}:
            assert found.device.kind == "cpu"
    assert any(case[3].changes.get("compile.mode") == "graph" for case in grid)


def test_a_batch_that_is_larger_than_the_data_is_never_named(grid: list[Case]):
    asked = [case for case in grid if "batch_size" in case[3].changes]
    assert asked
    for _, found, config, remedy in asked:
        size = remedy.changes["batch_size"]
        assert config.batch_size < size
        assert size * config.device.count <= found.train_samples, (config.batch_size, found.train_samples)


def test_tf32_is_named_only_where_its_generation_has_it():
    assert next_of(Bottleneck.COMPUTE, gpu=True, native_bf16=False).changes == {"compile.mode": "default"}


def test_data_on_the_device_is_not_sent_ahead_of_the_step():
    assert next_of(Bottleneck.TRANSFER, {"loader.kind": "resident"}, gpu=True).changes == {}


# -- a script ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "observed", "made", "text"),
    [
        (Bottleneck.COMPUTE, {}, {}, "mixed precision or torch.compile"),
        (Bottleneck.COMPUTE, {"precision": "bf16"}, {}, "torch.compile"),
        (Bottleneck.COMPUTE, {}, {"precision": "bf16", "compile": "original"}, "torch.compile"),
        (Bottleneck.COMPUTE, {"compiled": True, "precision": "fp16"}, {}, "a smaller model"),
        (
            Bottleneck.LAUNCH,
            {"fused": False},
            {},
            "a larger batch, or fewer and larger operations: a fused optimizer, torch.compile",
        ),
        (
            Bottleneck.LAUNCH,
            {"fused": True},
            {},
            "a larger batch, or fewer and larger operations: torch.compile",
        ),
        (
            Bottleneck.LAUNCH,
            {},
            {"optimizer": "fused", "compile": "model"},
            "a larger batch, or fewer and larger operations",
        ),
        (Bottleneck.CAPACITY, {}, {"precision": "bf16"}, "memory is full: activation checkpointing"),
        (
            Bottleneck.SYNC,
            {"ranks": 2, "accumulate_steps": 4},
            {"exchange": "once"},
            "read numbers every hundred steps, not in every one",
        ),
    ],
)
def test_what_a_script_has_already_is_no_advice(
    kind: Bottleneck, observed: dict[str, Any], made: dict[str, Any], text: str
):
    found = dataclasses.replace(measurement(), reported_by="torch", observed=observed)
    assert named(kind, found, TrialConfig(args=made)).text == text


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            {"ranks": 2, "accumulate_steps": 4},
            "exchange gradients once a step, if it does not yet: "
            "`no_sync()` around all backward passes but the last",
        ),
        ({"ranks": 2}, "read numbers every hundred steps, not in every one"),
        ({"accumulate_steps": 4}, "read numbers every hundred steps, not in every one"),
    ],
)
def test_ranks_that_accumulate_wait_for_one_another(seen: dict[str, Any], text: str):
    found = dataclasses.replace(measurement(), reported_by="torch", observed=seen)
    assert named(Bottleneck.SYNC, found, TrialConfig()).text == text
