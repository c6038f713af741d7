"""Samples probes during a trial and cuts the series to its timed windows."""

from __future__ import annotations

import array
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.measurement import Stats, Window
from sweeper.core.probes import Probe

INTERVAL_SECONDS = 0.25
ANSWER_SECONDS = 0.2
TIME = "time_s"


@dataclass(frozen=True, slots=True)
class _Row:
    """One reading of a probe.

    Attributes:
        is_slow: Whether it was requested between windows.
    """

    moment: float
    values: Mapping[str, float]
    is_slow: bool


class ProbeSampler:
    """Reads all probes at a steady rate in threads of the keeper, never of the trial.

    Each probe has its own thread, so that a probe that hangs only costs its own series.
    """

    def __init__(self, probes: Sequence[Probe], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._lock = threading.Lock()
        self._rows: list[_Row] = []
        self._threads = [_ProbeThread(probe, interval_seconds, self._take) for probe in probes]

    def start(self, pid: int, device_uuid: str) -> None:
        """Starts sampling the trial `pid` on the GPU `device_uuid` (empty if there is none)."""
        for thread in self._threads:
            thread.start(pid, device_uuid)

    def _take(self, row: _Row) -> None:
        with self._lock:
            self._rows.append(row)

    def request_slow_readings(self) -> None:
        """Has every probe take its slow readings, those between windows; does not wait for them."""
        for thread in self._threads:
            thread.request_slow_reading()

    def read_means(self, window: Window) -> Mapping[str, float]:
        """Takes the slow readings, and returns the means over a window that has just ended.

        Each slow reading covers the time since the previous one, so one that was taken inside the window
        covers the time before it. A hanging probe is waited for only once, and briefly.
        """
        self.request_slow_readings()
        for thread in self._threads:
            thread.wait(ANSWER_SECONDS)
        columns = self.columns()
        means = {name: stats.mean for name, stats in summarise(columns, [window]).items()}
        since = window.start_s + window.seconds
        with self._lock:
            after = [row for row in self._rows if row.moment >= since]
        for row in after:
            means.update(
                {name: value for name, value in row.values.items() if row.is_slow or name not in means}
            )
        return means

    def missing_reasons(self) -> dict[str, str]:
        """Returns why series are absent, by name."""
        reasons: dict[str, str] = {}
        for thread in self._threads:
            reasons.update(thread.missing_reasons())
        return reasons

    def stop(self) -> None:
        """Stops sampling; hanging probes are left behind."""
        for thread in self._threads:
            thread.end()

    def columns(self) -> dict[str, list[float]]:
        """Returns the series on a common time axis (`time_s`, monotonic), NaN if not read."""
        with self._lock:
            rows = list(self._rows)
        return _table(rows)

    def drain(self) -> dict[str, list[float]]:
        """Returns and clears `columns`, since a long run is reported in pieces."""
        with self._lock:
            rows, self._rows = self._rows, []
        return _table(rows)


def _table(rows: list[_Row]) -> dict[str, list[float]]:
    rows.sort(key=lambda row: row.moment)
    names = dict.fromkeys(name for row in rows for name in row.values)
    table: dict[str, list[float]] = {TIME: [row.moment for row in rows]}
    for name in names:
        table[name] = [float(row.values.get(name, math.nan)) for row in rows]
    return table if rows else {}


class _ProbeThread:
    """One probe and the thread that reads it. The caller is another thread: `_run` is the probe's."""

    def __init__(self, probe: Probe, interval: float, take: Callable[[_Row], None]) -> None:
        self._probe, self._interval, self._take = probe, interval, take
        # Set by the caller, cleared by the probe's thread: whether there is something to do at once.
        self._woken = threading.Event()
        self._is_slow_requested = False
        # Set by the probe's thread, cleared by the caller: whether the latest request was answered.
        self._answered = threading.Event()
        # Set by the caller if an answer is late, cleared by the probe's thread after any reading.
        self._stuck = False
        # Written by the caller alone.
        self._started = self._ended = False

    def start(self, pid: int, device_uuid: str) -> None:
        self._started = True
        threading.Thread(target=self._run, args=(pid, device_uuid), daemon=True).start()

    def request_slow_reading(self) -> None:
        # In this order: the thread may wake up and answer at any moment.
        self._answered.clear()
        self._is_slow_requested = True
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Waits for the answer, unless the probe is stuck."""
        if self._started and not self._stuck:
            self._stuck = not self._answered.wait(seconds)

    def missing_reasons(self) -> dict[str, str]:
        late = {self._probe.name: "a reading did not come back in time"} if self._stuck else {}
        return {**late, **self._probe.missing}

    def end(self) -> None:
        self._ended = True
        self._woken.set()

    def _run(self, pid: int, device_uuid: str) -> None:
        self._probe.open(pid, device_uuid)
        due = time.perf_counter() + self._interval
        while not self._ended:
            self._woken.wait(max(0.0, due - time.perf_counter()))
            self._woken.clear()
            if self._is_slow_requested and not self._ended:
                self._is_slow_requested = False
                self._read(self._probe.read_between_windows, is_slow=True)
                self._answered.set()
            if time.perf_counter() >= due and not self._ended:
                due = max(due + self._interval, time.perf_counter())
                self._read(self._probe.read, is_slow=False)
        self._probe.close()

    def _read(self, read: Callable[[], Mapping[str, float]], *, is_slow: bool) -> None:
        began = time.perf_counter()
        values = read()
        ended = time.perf_counter()
        self._stuck = False
        if values:
            # The cost of a reading is a series, too, except for readings between windows.
            cost = {} if is_slow else {f"{self._probe.name}_read_ms": 1e3 * (ended - began)}
            self._take(_Row(ended if is_slow else (began + ended) / 2, {**values, **cost}, is_slow))


def summarise(columns: Mapping[str, Sequence[float]], windows: Sequence[Window]) -> dict[str, Stats]:
    """Returns mean, median and 95th percentile of each series inside the windows."""
    moments = columns.get(TIME, ())
    inside = [
        i for i, t in enumerate(moments) if any(w.start_s <= t <= w.start_s + w.seconds for w in windows)
    ]
    summary: dict[str, Stats] = {}
    for name, values in columns.items():
        kept = sorted(values[i] for i in inside if not math.isnan(values[i]))
        if name != TIME and kept:
            summary[name] = Stats(
                mean=statistics.fmean(kept),
                p50=statistics.median(kept),
                p95=kept[min(len(kept) - 1, math.ceil(0.95 * len(kept)) - 1)],
            )
    return summary


def save(columns: Mapping[str, Sequence[float]], folder: Path) -> None:
    """Writes each column as `<name>.npy` (float64), without needing numpy."""
    if not columns:
        return
    folder.mkdir(exist_ok=True)
    for name, values in columns.items():
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({len(values)},), }}"
        padding = " " * (-(10 + len(header) + 1) % 64)
        text = (header + padding + "\n").encode("latin-1")
        body = array.array("d", values).tobytes()
        (folder / f"{name}.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body
        )
