"""Promised against reached, and why it is not the same."""

from __future__ import annotations

from typing import Any

import pytest
from productions import values_of

from sweeper.production.promise import assess
from sweeper.production.request import Promise

HOLDS = {"device": "EPYC, 4 cores", "torch": "2.13.0", "train_samples": 960, "usable_cpus": 4}
PROMISE = Promise(throughput=10_000.0, conditions=HOLDS)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (100_000, "kept: 10,000 samples/s, 1.00x the promised 10,000"),
        (95_100, "kept: 9,510 samples/s, 0.95x the promised 10,000"),
        (94_000, "missed: 9,400 samples/s, 0.94x the promised 10,000"),
        (104_900, "kept: 10,490 samples/s, 1.05x the promised 10,000"),
        (123_000, "exceeded: 12,300 samples/s, 1.23x the promised 10,000"),
    ],
)
def test_the_verdict_in_one_line(samples: int, words: str):
    found = assess(values_of(timed_samples=samples), PROMISE, {})
    assert found.words == words
    assert (found.reached, found.promised, found.ratio) == (samples / 10, 10_000.0, samples / 100_000)
    assert found.reasons == ()


def test_nothing_is_judged_that_was_too_short():
    found = assess(values_of(timed_seconds=0.0, timed_samples=0, disturbed={"noise": 1.0}), PROMISE, {})
    assert found.words == "too short to measure its speed: it ended before it was steady"
    assert (found.reached, found.ratio, found.reasons) == (None, None, ())


def test_nor_what_was_never_promised():
    found = assess(values_of(), None, {"heat": 9.0})
    assert found.words == "10,000 samples/s; no speed was promised"
    assert (found.promised, found.ratio) == (None, None)
    # What disturbed it is said all the same.
    assert found.reasons == ("heat: 90% of the time",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"device": {"name": "NVIDIA A10"}},
            "it ran on NVIDIA A10; the promise holds for EPYC, 4 cores",
        ),
        ({"usable_cpus": 2}, "it had 2 cores; the promise holds for 4"),
        ({"versions": {"torch": "2.14.0"}}, "torch is 2.14.0, was 2.13.0"),
        ({"train_samples": 1_200_000}, "the data has 1,200,000 training samples, had 960"),
        ({"disturbed": {"other processes took cores": 2.0}}, "other processes took cores: 20% of the time"),
    ],
)
def test_why_it_may_differ(changes: dict[str, Any], reason: str):
    assert assess(values_of(**changes), PROMISE, {}).reasons == (reason,)


@pytest.mark.parametrize(
    ("device", "there", "same"),
    [
        ("NVIDIA A10", "NVIDIA A10, 22.5 GiB", True),
        ("NVIDIA A10", "2 x NVIDIA A10, 22.5 GiB", True),
        ("NVIDIA A10", "NVIDIA A10, 22.5 GiB (SLURM)", True),
        ("EPYC, 4 cores", "EPYC, 4 cores (Dask)", True),
        ("NVIDIA A10", "NVIDIA A10", True),
        ("AMD EPYC, 2 cores", "AMD EPYC, 2 cores", True),
        ("NVIDIA A10", "NVIDIA A100-SXM4-80GB, 79.2 GiB", False),
        ("NVIDIA H100", "NVIDIA H100 NVL, 94 GiB", False),
        ("A10", "NVIDIA A10, 22.5 GiB", False),
        # An export may not say.
        ("NVIDIA A10", None, True),
    ],
)
def test_a_device_is_the_same_one_by_its_whole_name(device: str, there: str | None, same: bool):
    promise = Promise(throughput=1.0, conditions={"device": there})
    assert (assess(values_of(device={"name": device}), promise, {}).reasons == ()) == same


def test_little_disturbance_is_no_reason():
    found = assess(values_of(disturbed={"a": 0.4, "b": 0.6}), PROMISE, {"c": 0.5, "d": 25.0})
    assert found.reasons == ("b: 6% of the time", "d: 100% of the time")


def test_what_nobody_knows_is_no_reason():
    found = assess(values_of(versions={}), Promise(throughput=1.0, conditions={"cuda": None}), {})
    assert found.reasons == ()
