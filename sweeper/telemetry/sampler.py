"""Sampling probes beside a trial, and cutting the series to its measuring windows."""

from __future__ import annotations

import array
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.core.measurement import Stats, Window
from sweeper.telemetry.probe import Probe

INTERVAL_SECONDS = 0.25
TIME = "time_s"


class Sampler:
    """Reads all probes at a steady pace in a thread of the keeper, never of the trial.

    Each probe has a thread of its own, so that one which hangs costs its own series and no other.
    """

    def __init__(self, probes: Sequence[Probe], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._probes = probes
        self._interval = interval_seconds
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._rows: list[tuple[float, Mapping[str, float]]] = []

    def start(self, pid: int, device_uuid: str) -> None:
        """Begins to sample the trial `pid` on the GPU `device_uuid` (empty where there is none)."""
        for probe in self._probes:
            threading.Thread(target=self._sample, args=(probe, pid, device_uuid), daemon=True).start()

    def _sample(self, probe: Probe, pid: int, device_uuid: str) -> None:
        probe.open(pid, device_uuid)
        while not self._ended.wait(self._interval):
            began = time.perf_counter()
            values = probe.read()
            if values:
                with self._lock:
                    self._rows.append(((began + time.perf_counter()) / 2, values))
        probe.close()

    def stop(self) -> None:
        """Ends sampling; a probe that hangs is left behind."""
        self._ended.set()

    def columns(self) -> dict[str, list[float]]:
        """Returns the series on one common time axis (`time_s`, monotonic), NaN where not read."""
        with self._lock:
            rows = sorted(self._rows, key=lambda row: row[0])
        names = dict.fromkeys(name for _, values in rows for name in values)
        table: dict[str, list[float]] = {TIME: [moment for moment, _ in rows]}
        for name in names:
            table[name] = [float(values.get(name, math.nan)) for _, values in rows]
        return table if rows else {}


def summarise(columns: Mapping[str, Sequence[float]], windows: Sequence[Window]) -> dict[str, Stats]:
    """Returns mean, median and 95th percentile of each series inside the windows."""
    moments = columns.get(TIME, ())
    inside = [
        i for i, t in enumerate(moments) if any(w.start_s <= t <= w.start_s + w.seconds for w in windows)
    ]
    found: dict[str, Stats] = {}
    for name, values in columns.items():
        kept = sorted(values[i] for i in inside if not math.isnan(values[i]))
        if name != TIME and kept:
            found[name] = Stats(
                mean=statistics.fmean(kept),
                p50=statistics.median(kept),
                p95=kept[min(len(kept) - 1, math.ceil(0.95 * len(kept)) - 1)],
            )
    return found


def save(columns: Mapping[str, Sequence[float]], folder: Path) -> None:
    """Writes each column as `<name>.npy` (float64), which numpy reads and this needs no numpy for."""
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
