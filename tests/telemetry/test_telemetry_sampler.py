"""The sampler: series on one axis, files that numpy reads, summaries of the windows alone."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sweeper.core.measurement import Window
from sweeper.telemetry.sampler import TIME, Sampler, save, summarise


class Counting:
    def __init__(self, name: str):
        self.name, self.count, self.opened, self.closed = name, 0, None, threading.Event()

    def open(self, pid, device_uuid):
        self.opened = (pid, device_uuid)

    def read(self):
        self.count += 1
        return {self.name: float(self.count), "second": 1.0} if self.count > 1 else {self.name: 1.0}

    def close(self):
        self.closed.set()


class Hanging(Counting):
    def __init__(self, release: threading.Event):
        super().__init__("hung")
        self.release = release

    def read(self):
        self.release.wait()
        return {}


def test_each_probe_is_read_and_one_that_hangs_costs_nothing_of_the_others():
    release = threading.Event()
    first, other, hung = Counting("a"), Counting("b"), Hanging(release)
    sampler = Sampler([hung, first, other], interval_seconds=0.01)
    began = time.perf_counter()
    sampler.start(123, "GPU-1")
    deadline = began + 30
    while min(first.count, other.count) < 5 and time.perf_counter() < deadline:
        time.sleep(0.01)
    sampler.stop()
    columns = sampler.columns()
    assert first.closed.wait(30)
    assert other.closed.wait(30)
    release.set()
    assert hung.closed.wait(30)
    assert first.opened == hung.opened == (123, "GPU-1")
    assert set(columns) == {TIME, "a", "b", "second"}
    assert len({len(values) for values in columns.values()}) == 1
    assert columns[TIME] == sorted(columns[TIME])
    assert began < columns[TIME][0] < columns[TIME][-1] < time.perf_counter()
    for name in "ab":
        read = [value for value in columns[name] if not math.isnan(value)]
        assert read[:4] == [1.0, 2.0, 3.0, 4.0]
    assert all(math.isnan(a) != math.isnan(b) for a, b in zip(columns["a"], columns["b"], strict=True))


def test_nothing_read_is_no_series(tmp_path: Path):
    sampler = Sampler([])
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


def window(start: float, seconds: float) -> Window:
    return Window(start_s=start, seconds=seconds, steps=1, samples=1)


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
