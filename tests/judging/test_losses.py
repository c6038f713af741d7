"""How two versions train: which runs are recorded, and what follows from them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from parts.noop import synthetic
from records import LOSSES, run

from sweeper.core.recording import Recording
from sweeper.judging import losses
from sweeper.judging.arms import Arm
from sweeper.judging.losses import Baseline, LossAgreement
from sweeper.race.record import Record
from sweeper.race.verify import Claim

BEFORE, AFTER = (Arm(name=name, command=("python", name), folder=Path()) for name in ("before", "after"))


Made = Callable[[str, Recording, int], Record]
"""Function that makes the record of a version, given how often it has run so."""


def _scaled(factor: float) -> list[float]:
    return [loss * factor for loss in LOSSES]


class Runs:
    """Runs that are made up: a function gives the record of a version."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, made: Callable[[str, Recording, int], Record]
    ) -> None:
        self.seen: list[tuple[str, int, bool]] = []

        def record(command: tuple[str, ...], _: Path, recording: Recording, **__: object) -> Record:
            key = (command[1], recording.shift, recording.deterministic)
            self.seen.append(key)
            return made(command[1], recording, self.seen.count(key))

        monkeypatch.setattr(losses, "record", record)

    def count(self, name: str, shift: int = 0, *, deterministic: bool = False) -> int:
        return self.seen.count((name, shift, deterministic))


def baseline(*, on_gpu: bool = False) -> Baseline:
    observed = {"device": "cuda"} if on_gpu else {}
    return Baseline(BEFORE, dataclasses.replace(synthetic(1.0), observed=observed))


VERSION = Claim(is_version=True)


def test_what_is_equal_in_every_bit_takes_one_run_of_each(monkeypatch: pytest.MonkeyPatch):
    runs = Runs(monkeypatch, lambda *_: run(LOSSES))
    known = baseline()
    found = known.compare(AFTER, VERSION)
    assert (found.answer, found.covers) == (LossAgreement.EQUAL, "40 steps")
    assert sorted(runs.seen) == [("after", 0, False), ("before", 0, False)]
    assert known.compare(AFTER, VERSION).answer is LossAgreement.EQUAL
    assert runs.count("before") == 1


def test_what_is_close_is_compared_with_other_seeds(monkeypatch: pytest.MonkeyPatch):
    def made(name: str, recording: Recording, _: int) -> Record:
        factor = 1 + 1e-6 if name == "after" else 1 + recording.shift / 1e5
        return run([loss * factor for loss in LOSSES])

    runs = Runs(monkeypatch, made)
    assert baseline().compare(AFTER, VERSION).answer is LossAgreement.CLOSE
    assert [runs.count("before", shift) for shift in (0, 1000, 2000, 3000)] == [1, 1, 1, 0]


def test_a_version_that_fails_trains_differently_and_one_that_cannot_be_compared_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
):
    Runs(monkeypatch, lambda name, *_: Record(failure="no data") if name == "after" else run(LOSSES))
    found = baseline().compare(AFTER, VERSION)
    assert (found.answer, found.why) == (LossAgreement.DIFFERENT, "no data")
    runs = Runs(monkeypatch, lambda name, *_: Record(failure="no data") if name == "before" else run(LOSSES))
    known = baseline()
    for _ in range(2):
        found = known.compare(AFTER, VERSION)
        assert (found.answer, found.why) == (LossAgreement.UNKNOWN, "no data")
    assert runs.count("before") == 1


def test_a_seed_that_fails_says_nothing_and_is_not_run_again(monkeypatch: pytest.MonkeyPatch):
    def made(name: str, recording: Recording, _: int) -> Record:
        if recording.shift == 1000:
            return Record(failure="no such seed")
        factor = 1 + 1e-6 if name == "after" else 1 + recording.shift / 1e5
        return run([loss * factor for loss in LOSSES])

    runs = Runs(monkeypatch, made)
    known = baseline()
    assert known.compare(AFTER, VERSION).answer is LossAgreement.CLOSE
    assert known.compare(AFTER, VERSION).answer is LossAgreement.CLOSE
    assert runs.count("before", 1000) == 1


def test_a_gpu_that_adds_in_any_order_is_asked_for_one(monkeypatch: pytest.MonkeyPatch):
    def made(name: str, recording: Recording, number: int) -> Record:
        noise = 0 if recording.deterministic else 1e-6 * number + 1e-6 * (name == "after")
        return run([loss * (1 + noise) for loss in LOSSES])

    runs = Runs(monkeypatch, made)
    assert baseline(on_gpu=True).compare(AFTER, VERSION).answer is LossAgreement.EQUAL
    assert (runs.count("before"), runs.count("before", deterministic=True)) == (2, 1)
    # What differs by itself is not asked for another order.
    runs = Runs(monkeypatch, lambda name, *_: run(_scaled(1 + (name == "after"))))
    assert baseline(on_gpu=True).compare(AFTER, VERSION).answer is LossAgreement.DIFFERENT
    assert runs.count("before", deterministic=True) == 0


def test_a_script_that_does_not_repeat_itself_leaves_the_answer_open(monkeypatch: pytest.MonkeyPatch):
    numbers = itertools.count(1)
    Runs(monkeypatch, lambda *_: run(_scaled(1 + 0.1 * next(numbers))))
    found = baseline().compare(AFTER, VERSION)
    assert found.answer is LossAgreement.UNKNOWN
    assert found.why.startswith("two runs of the unchanged script with the same seeds differ")


def test_processes_that_race_are_not_asked_for_an_order_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    numbers = itertools.count(1)

    def made(*_: object) -> Record:
        events = run(_scaled(1 + 0.1 * next(numbers))).events["record-0"]
        return Record(events={"1": events, "2": events})

    runs = Runs(monkeypatch, made)
    assert baseline().compare(AFTER, VERSION).answer is LossAgreement.UNKNOWN
    assert runs.count("before", deterministic=True) == 0


def test_two_runs_that_listen_on_the_same_port_follow_each_other(monkeypatch: pytest.MonkeyPatch):
    port, first_is_over = threading.Lock(), threading.Event()

    def made(*_: object) -> Record:
        if not port.acquire(blocking=False):
            first_is_over.set()
            return Record(failure="user_error: OSError: [Errno 98] Address already in use")
        with contextlib.ExitStack() as left:
            left.callback(port.release)
            # At the same time as the other, if that has begun.
            first_is_over.wait(2.0)
            return run(LOSSES)

    Runs(monkeypatch, made)
    compared = baseline()
    compared._at_once = 2
    assert compared.compare(AFTER, VERSION).answer is LossAgreement.EQUAL
