"""The thread that ships: the latest of each key, in order, whatever the place does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sweeper.errors import StorageError
from sweeper.tracking import RejectedError, Sender, TrackerRefusedError, sender


class Place:
    """Takes what it is sent, unless told otherwise; `sent` has the attempts, `taken` what arrived."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.taken: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.gate = threading.Event()
        self.gate.set()

    def send(self, key: str, state: str = "") -> Callable[[], None]:
        def call() -> None:
            self.sent.append(key + state)
            self.gate.wait(10)
            error = self.fails.get(key) or self.fails.get("*")
            if error is not None:
                raise error
            self.taken.append(key + state)

        return call


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def shipping():
    found = Sender()
    yield found
    found.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_hanging_place_holds_nobody_up_and_gets_only_the_latest(place, shipping):
    place.gate.clear()
    began = time.monotonic()
    for state in "12345":
        for key in "ab":
            shipping.put(key, place.send(key, state))
    assert time.monotonic() - began < 0.5
    left = shipping.drain(0.05)
    assert time.monotonic() - began < 1
    assert set(left.pending) == {"a", "b"}
    place.gate.set()
    assert shipping.drain(5) == sender.DrainResult((), "")
    assert place.taken[-2:] in (["b5", "a5"], ["a5", "b5"])
    assert len(place.taken) <= 3


def test_what_is_put_while_its_older_state_is_on_its_way_is_sent_too(place, shipping):
    place.gate.clear()
    shipping.put("a", place.send("a", "1"))
    until(lambda: place.sent == ["a1"])
    shipping.put("a", place.send("a", "2"))
    place.gate.set()
    assert shipping.drain(5).pending == ()
    assert place.taken == ["a1", "a2"]


def test_one_that_is_rejected_is_set_aside_and_named(place, shipping):
    place.fails["poison"] = RejectedError("does not take `poison`: INVALID")
    for key in ("poison", "a", "b"):
        shipping.put(key, place.send(key))
    until(lambda: place.taken == ["a", "b"])
    assert place.sent.count("poison") == 1
    left = shipping.drain(5)
    assert left.pending == ("poison",)
    assert left.problem == "does not take `poison`: INVALID"
    assert place.sent.count("poison") == 2
    # Another state of it may be taken.
    place.fails.clear()
    shipping.put("poison", place.send("poison", "2"))
    assert shipping.drain(5).pending == ()


def test_one_that_was_rejected_is_tried_once_it_is_put_again(place, shipping):
    place.fails["poison"] = RejectedError("INVALID")
    shipping.put("poison", place.send("poison"))
    shipping.wait(5)
    place.fails.clear()
    shipping.put("poison", place.send("poison", "2"))
    until(lambda: place.taken == ["poison2"])


def test_a_fault_in_one_is_no_fault_of_the_others(place, shipping):
    place.fails["odd"] = KeyError("mistake")
    for key in ("odd", "a"):
        shipping.put(key, place.send(key))
    assert shipping.drain(5) == sender.DrainResult(("odd",), "KeyError: 'mistake'")
    assert place.taken == ["a"]


def test_one_that_always_breaks_the_server_does_not_hold_up_the_others(place, shipping):
    """An answer of 500 to one record looks like a server that is away, but only for that one."""
    place.fails["bad"] = StorageError("500 for `bad`")
    shipping.put("bad", place.send("bad"))
    until(lambda: place.sent == ["bad"])
    began = time.monotonic()
    for key in "abcdef":
        shipping.put(key, place.send(key))
    until(lambda: len(place.taken) == 6)
    assert time.monotonic() - began < 0.5
    left = shipping.drain(5)
    assert left == sender.DrainResult(("bad",), "500 for `bad`")
    # Thrice in the drain, and before as often as its own pauses allow.
    assert place.sent.count("bad") <= 2 + sender.MAX_TRIES


def test_a_place_that_is_away_is_asked_ever_less_often(place, shipping, monkeypatch):
    place.fails["*"] = StorageError("away")
    pauses: list[float] = []
    real = shipping._retry_at
    monkeypatch.setattr(
        shipping,
        "_retry_at",
        lambda n: pauses.append(n) or (real(n) - time.monotonic()) / 1000 + time.monotonic(),
    )
    # Else the first may come round again before the second is there.
    place.gate.clear()
    for number in range(20):
        shipping.put(str(number), place.send(str(number)))
    place.gate.set()
    until(lambda: len(place.sent) == 8)
    # The n-th further key in a row: twice the pause each time.
    assert pauses[:8:2] == [0, 1, 2, 3]
    began = time.monotonic()
    left = shipping.drain(5)
    assert time.monotonic() - began < 1
    assert len(left.pending) == 20
    assert left.problem == "away"


def test_after_one_that_arrives_the_pause_starts_anew(place, shipping, monkeypatch):
    place.fails |= {"a": StorageError("away"), "b": StorageError("away")}
    pauses: list[float] = []
    real = shipping._retry_at
    monkeypatch.setattr(shipping, "_retry_at", lambda n: pauses.append(n) or real(n))
    for key in ("a", "taken", "b"):
        shipping.put(key, place.send(key))
        until(lambda key=key: key in place.sent)
    until(lambda: len(pauses) >= 4)
    # Of all keys and of the one that failed, twice.
    assert pauses[:4] == [0, 1, 0, 1]


def test_the_longest_pause_is_five_minutes():
    found = Sender()
    assert found._retry_at(30) - time.monotonic() == pytest.approx(300, abs=1)
    assert found._retry_at(3) - time.monotonic() == pytest.approx(4, abs=0.1)


def test_a_pause_is_slept_through(place, shipping, monkeypatch):
    place.fails["*"] = StorageError("away")
    looked: list[float] = []
    real = shipping._next_key
    monkeypatch.setattr(shipping, "_next_key", lambda: looked.append(time.monotonic()) or real())
    for key in "abc":
        shipping.put(key, place.send(key))
    until(lambda: len(place.sent) == 2)
    time.sleep(0.1)
    before = len(looked)
    time.sleep(0.4)
    assert len(looked) <= before + 1
    assert len(place.sent) == 2


def test_one_that_takes_nothing_until_a_person_acts_is_not_asked_again(place, shipping):
    place.fails["*"] = TrackerRefusedError("start it with --allowed-hosts")
    for key in "abc":
        shipping.put(key, place.send(key))
    until(lambda: bool(place.sent))
    left = shipping.drain(5)
    assert (set(left.pending), left.problem) == (set("abc"), "start it with --allowed-hosts")
    assert place.sent == ["a"]


def test_a_drain_goes_on_while_things_arrive(place, shipping):
    """Seconds without anything being sent, not in all: a healthy place may have much to take."""
    slow = [lambda: time.sleep(0.05)] * 12
    for number, send in enumerate(slow):
        shipping.put(str(number), send)
    assert shipping.drain(0.3).pending == ()


def test_a_drain_waits_for_each_only_so_long(place, shipping):
    place.gate.clear()
    shipping.put("a", place.send("a"))
    began = time.monotonic()
    left = shipping.drain(0.2)
    assert left.pending == ("a",)
    assert left.problem == "no answer within 0.2 s"
    assert 0.15 < time.monotonic() - began < 1
    place.gate.set()


def test_a_problem_that_is_over_explains_nothing(place, shipping):
    place.fails["a"] = StorageError("away")
    shipping.put("a", place.send("a"))
    until(lambda: place.sent == ["a"])
    place.fails.clear()
    assert shipping.drain(5).pending == ()
    place.gate.clear()
    shipping.put("b", place.send("b"))
    assert shipping.drain(0.2).problem == "no answer within 0.2 s"
    place.gate.set()


def test_waiting_ends_with_the_first_failure(place, shipping):
    place.fails["*"] = StorageError("away")
    shipping.put("a", place.send("a"))
    began = time.monotonic()
    shipping.wait(5)
    assert time.monotonic() - began < 2
    assert place.sent
