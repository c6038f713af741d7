"""The sampler: series on one axis, files that numpy reads, summaries of the windows alone."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sweeper.core.measurement import Window
from sweeper.telemetry import sampler as under_test
from sweeper.telemetry.sampler import TIME, ProbeSampler, save, summarise


class Counting:
    def __init__(self, name: str):
        self.name, self.count, self.opened, self.closed = name, 0, None, threading.Event()
        self.missing = {}
        self.looked = 0

    def open(self, pid, device_uuid):
        self.opened = (pid, device_uuid)

    def read(self):
        self.count += 1
        return {self.name: float(self.count), "second": 1.0} if self.count > 1 else {self.name: 1.0}

    def read_between_windows(self):
        self.looked += 1
        return {f"{self.name}_around": float(self.looked)}

    def close(self):
        self.closed.set()


class Hanging(Counting):
    def __init__(self, release: threading.Event):
        super().__init__("hung")
        self.release = release

    def read(self):
        self.release.wait()
        return {}

    def read_between_windows(self):
        self.release.wait()
        return super().read_between_windows()


SECONDS = 30.0
"""For what must come to pass; far more than it takes."""


def wait_for(holds: Callable[[], object]) -> bool:
    deadline = time.perf_counter() + SECONDS
    while not holds():
        if time.perf_counter() > deadline:
            return False
        time.sleep(0.002)
    return True


@contextlib.contextmanager
def sampling(*probes, interval: float = SECONDS) -> Iterator[ProbeSampler]:
    """Samples `probes`, which are open; by default only where they are asked."""
    sampler = ProbeSampler(probes, interval_seconds=interval)
    sampler.start(123, "GPU-1")
    assert wait_for(lambda: all(probe.opened for probe in probes))
    try:
        yield sampler
    finally:
        sampler.stop()


def test_each_probe_is_read_and_one_that_hangs_costs_nothing_of_the_others():
    release = threading.Event()
    first, other, hung = Counting("a"), Counting("b"), Hanging(release)
    sampler = ProbeSampler([hung, first, other], interval_seconds=0.01)
    began = time.perf_counter()
    sampler.start(123, "GPU-1")
    assert wait_for(lambda: min(first.count, other.count) >= 5)
    sampler.stop()
    columns = sampler.columns()
    assert first.closed.wait(SECONDS)
    assert other.closed.wait(SECONDS)
    release.set()
    assert hung.closed.wait(SECONDS)
    assert first.opened == hung.opened == (123, "GPU-1")
    assert set(columns) == {TIME, "a", "b", "second", "a_read_ms", "b_read_ms"}
    assert len({len(values) for values in columns.values()}) == 1
    assert columns[TIME] == sorted(columns[TIME])
    assert began < columns[TIME][0] < columns[TIME][-1] < time.perf_counter()
    for name in "ab":
        read = [value for value in columns[name] if not math.isnan(value)]
        assert read[:4] == [1.0, 2.0, 3.0, 4.0]
    assert all(math.isnan(a) != math.isnan(b) for a, b in zip(columns["a"], columns["b"], strict=True))


def window(start: float, seconds: float) -> Window:
    return Window(start_s=start, seconds=seconds, steps=1, samples=1)


def window_of(seconds: float = 0.0) -> Window:
    """A window that has just ended."""
    return window(time.perf_counter() - seconds, seconds)


class Lasting(Counting):
    """Its readings take a while, and only the first has something to tell."""

    def read(self):
        time.sleep(0.02)
        return {} if self.count == 1 else super().read()


def test_what_a_reading_costs_is_a_series():
    probe = Lasting("slow")
    with sampling(probe, interval=0.001) as sampler:
        assert wait_for(lambda: sampler.columns())
        sampler.request_slow_readings()
        assert wait_for(lambda: "slow_around" in sampler.columns())
    columns = sampler.columns()
    costs = [(cost, value) for cost, value in zip(columns["slow_read_ms"], columns["slow"], strict=True)]
    told = [cost for cost, value in costs if not math.isnan(value)]
    assert told
    assert all(20 <= cost < 5000 for cost in told)
    # Neither of what told nothing nor of the looks between windows.
    assert all(math.isnan(cost) == math.isnan(value) for cost, value in costs)


def test_looks_around_arrive_without_being_waited_for():
    probe = Counting("a")
    with sampling(probe) as sampler:
        assert sampler.columns() == {}
        began = time.perf_counter()
        sampler.request_slow_readings()
        assert wait_for(lambda: sampler.columns())
        sampler.request_slow_readings()
        assert wait_for(lambda: probe.looked == 2 and len(sampler.columns()[TIME]) == 2)
    columns = sampler.columns()
    assert columns["a_around"] == [1.0, 2.0]
    assert set(columns) == {TIME, "a_around"}
    assert began < columns[TIME][0] < columns[TIME][1] < time.perf_counter()
    assert probe.count == 0


def test_of_a_window_that_has_just_ended_there_is_what_was_read_in_it_and_around_it():
    first, other = Counting("a"), Counting("b")
    with sampling(first, other, interval=0.01) as sampler:
        assert wait_for(lambda: first.count >= 3)
        start = time.perf_counter()
        before = first.count
        assert wait_for(lambda: min(first.count, other.count) >= before + 5)
        within = window_of(time.perf_counter() - start)
        found = sampler.read_means(within)
    inside = summarise(sampler.columns(), [within])
    # By what was there when it was asked.
    assert found["a"] == pytest.approx(inside["a"].mean)
    assert found["a"] > before
    assert found["second"] == 1.0
    assert (found["a_around"], found["b_around"]) == (1.0, 1.0)


def test_a_look_inside_a_window_is_of_the_time_before_it():
    probe = Counting("a")
    with sampling(probe, interval=0.01) as sampler:
        sampler.request_slow_readings()
        assert wait_for(lambda: "a_around" in sampler.columns())
        within = window_of(SECONDS)
        found = sampler.read_means(within)
        assert found["a_around"] == 2.0
        assert sampler.read_means(window_of())["a_around"] == 3.0
    assert probe.looked == 3


def test_a_look_from_before_the_window_says_nothing_about_it():
    release = threading.Event()
    probe = Hanging(release)
    with sampling(probe) as sampler:
        release.set()
        sampler.request_slow_readings()
        assert wait_for(lambda: sampler.columns())
        release.clear()
        assert sampler.read_means(window_of()) == {}
        release.set()


def test_a_probe_that_hangs_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(under_test, "ANSWER_SECONDS", 0.1)
    release = threading.Event()
    hung, other = Hanging(release), Counting("b")
    other.missing["b_second"] = "not told here"
    with sampling(hung, other) as sampler:
        assert sampler.missing_reasons() == {"b_second": "not told here"}
        began = time.perf_counter()
        assert sampler.read_means(window_of()) == {"b_around": 1.0}
        first = time.perf_counter() - began
        assert sampler.missing_reasons() == {
            "hung": "a reading did not come back in time",
            "b_second": "not told here",
        }
        # What does not come back is not what is waited for, however long.
        monkeypatch.setattr(under_test, "ANSWER_SECONDS", SECONDS)
        began = time.perf_counter()
        assert sampler.read_means(window_of()) == {"b_around": 2.0}
        assert time.perf_counter() - began < SECONDS / 2
        assert 0.1 <= first < SECONDS / 2
        # It comes back, and is waited for again.
        release.set()
        assert wait_for(lambda: "hung" not in sampler.missing_reasons())
        assert sampler.read_means(window_of())["hung_around"] >= 1.0


class Opening(Counting):
    """Does not come back from `open`."""

    def __init__(self, release: threading.Event):
        super().__init__("opening")
        self.release = release

    def open(self, pid, device_uuid):
        super().open(pid, device_uuid)
        self.release.wait()


def test_a_probe_that_never_opens_costs_one_wait(monkeypatch):
    monkeypatch.setattr(under_test, "ANSWER_SECONDS", 0.05)
    release = threading.Event()
    probe = Opening(release)
    with sampling(probe) as sampler:
        assert sampler.read_means(window_of()) == {}
        assert "opening" in sampler.missing_reasons()
        monkeypatch.setattr(under_test, "ANSWER_SECONDS", SECONDS)
        assert sampler.read_means(window_of()) == {}
    release.set()
    assert probe.closed.wait(SECONDS)
    assert (probe.count, probe.looked) == (0, 0)


def test_without_a_start_nothing_is_asked_nor_waited_for(monkeypatch):
    monkeypatch.setattr(under_test, "ANSWER_SECONDS", SECONDS)
    sampler = ProbeSampler([Counting("a")])
    sampler.request_slow_readings()
    assert sampler.read_means(window_of()) == {}
    assert sampler.missing_reasons() == {}


class Late(threading.Event):
    """Is cleared only after the probe's thread had its chance to answer what it was asked so far."""

    def __init__(self, probe: Counting):
        super().__init__()
        self.probe = probe

    def clear(self):
        before, deadline = self.probe.looked, time.perf_counter() + 0.1
        while self.probe.looked == before and time.perf_counter() < deadline:
            time.sleep(0.001)
        super().clear()


def test_an_answer_is_not_lost_to_a_thread_that_wakes_up_meanwhile(monkeypatch):
    monkeypatch.setattr(under_test, "ANSWER_SECONDS", 1.0)
    probe = Counting("a")
    with sampling(probe, interval=0.005) as sampler:
        (thread,) = sampler._threads
        thread._answered = Late(probe)
        began = time.perf_counter()
        assert sampler.read_means(window_of())["a_around"] >= 1.0
        assert time.perf_counter() - began < 0.9


def test_nothing_read_is_no_series(tmp_path: Path):
    sampler = ProbeSampler([])
    sampler.start(1, "")
    assert sampler.columns() == {}
    save({}, tmp_path / "series")
    assert not (tmp_path / "series").exists()


@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_numpy_reads_the_files(tmp_path: Path, length: int):
    values = [math.nan if i % 7 == 3 else i * 1.5 - 1e300 * (i == 2) for i in range(length)]
    save({TIME: list(range(length)), "gpu_util_pct": values}, tmp_path / "series")
    loaded = np.load(tmp_path / "series" / "gpu_util_pct.npy", mmap_mode="r")
    assert loaded.dtype == np.float64
    assert np.array_equal(loaded, np.array(values, dtype=np.float64), equal_nan=True)
    assert np.array_equal(np.load(tmp_path / "series" / "time_s.npy"), np.arange(length))
    assert (tmp_path / "series" / "time_s.npy").stat().st_size % 64 == (8 * length) % 64


def test_summaries_are_of_the_windows_alone():
    columns = {
        TIME: [float(t) for t in range(10)],
        "a": [99.0, 1.0, 2.0, 99.0, 99.0, 3.0, 4.0, math.nan, 99.0, 99.0],
        "never": [math.nan] * 10,
        "outside": [1.0, *[math.nan] * 9],
    }
    found = summarise(columns, [window(1.0, 1.0), window(4.5, 3.0)])
    assert set(found) == {"a"}
    assert (found["a"].mean, found["a"].p50, found["a"].p95) == (2.5, 2.5, 4.0)
    assert summarise(columns, []) == {}
    assert summarise({}, [window(0, 1)]) == {}


def test_the_95th_percentile_of_a_hundred_is_the_95th():
    columns = {TIME: [float(t) for t in range(100)], "a": [float(t + 1) for t in range(100)]}
    assert summarise(columns, [window(0, 1000)])["a"].p95 == 95.0


def test_a_long_run_is_told_bit_by_bit():
    probe = Counting("a")
    with sampling(probe) as sampler:
        assert sampler.drain() == {}
        told: list[float] = []
        for _ in range(3):
            sampler.request_slow_readings()
            assert wait_for(lambda: sampler.columns())
            before = sampler.columns()
            found = sampler.drain()
            assert found == before
            told += found["a_around"]
            assert sampler.columns() == {}
    assert told == [1.0, 2.0, 3.0]


def test_nothing_is_lost_between_two_drains():
    probe = Counting("a")
    told: list[float] = []
    with sampling(probe, interval=0.001) as sampler:
        while probe.count < 100:
            told += sampler.drain().get("a", [])
    assert wait_for(probe.closed.is_set)
    told += sampler.drain().get("a", [])
    assert told == list(range(1, probe.count + 1))
