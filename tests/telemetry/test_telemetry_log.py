"""Telemetry as text: one line a second, of what was read in it."""

from __future__ import annotations

import math
import time
from pathlib import Path

from sweeper.telemetry.log import lines, write_log

NAN = math.nan
OFFSET = 1_790_000_000.0


def clock(second: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(OFFSET + second))


def test_a_line_has_the_means_of_its_second_with_their_units():
    columns = {
        "time_s": [10.1, 10.6, 10.9, 11.0],
        "gpu_util_pct": [90.0, NAN, 100.0, 70.0],
        "gpu_mem_used_gib": [NAN, 3.0, NAN, NAN],
        "gpu_power_w": [150.2, NAN, 149.8, NAN],
        "cpu_util_pct": [NAN, 33.4, NAN, NAN],
        "tree_cpu_pct": [NAN, 187.0, NAN, NAN],
        # Not for whoever reads along.
        "host_read_ms": [1.0, 1.0, 1.0, 1.0],
    }
    assert list(lines(columns, OFFSET)) == [
        f"{clock(10)}  GPU 95%  3.0 GiB  150 W  CPU 33%  trial 187% of a core",
        f"{clock(11)}  GPU 70%",
    ]


def test_seconds_are_the_clocks_on_the_wall():
    columns = {"time_s": [10.1, 10.6, 11.2], "gpu_temperature_c": [50.0, 60.0, 70.0]}
    assert list(lines(columns, OFFSET + 0.5)) == [f"{clock(10)}  50 C", f"{clock(11)}  65 C"]


def test_lines_are_in_order_and_seconds_in_which_nothing_was_read_have_none():
    columns = {"time_s": [12.0, 14.0, 13.0], "cpu_util_pct": [1.0, 3.0, NAN]}
    assert list(lines(columns, OFFSET)) == [f"{clock(12)}  CPU 1%", f"{clock(14)}  CPU 3%"]


def test_nothing_read_is_no_file(tmp_path: Path):
    for columns in ({}, {"time_s": [1.0], "host_read_ms": [1.0]}, {"time_s": [1.0], "cpu_util_pct": [NAN]}):
        write_log(columns, tmp_path / "telemetry.log")
    assert list(tmp_path.iterdir()) == []


def test_the_file_ends_with_a_line_and_has_the_present_time(tmp_path: Path):
    path = tmp_path / "telemetry.log"
    before = time.time()
    write_log({"time_s": [time.perf_counter()], "cpu_util_pct": [12.0]}, path)
    stamps = {time.strftime("%H:%M:%S", time.localtime(moment)) for moment in (before, time.time())}
    assert path.read_text() in {f"{stamp}  CPU 12%\n" for stamp in stamps}
