"""Writes a trial's telemetry as text with one line per second, for `less` and `tail`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sweeper.telemetry.sampler import TIME

_SHOWN = (
    ("gpu_util_pct", "GPU {:.0f}%"),
    ("gpu_sm_active_pct", "SM {:.0f}%"),
    ("gpu_mem_used_gib", "{:.1f} GiB"),
    ("gpu_power_w", "{:.0f} W"),
    ("gpu_temperature_c", "{:.0f} C"),
    ("gpu_sm_clock_mhz", "{:.0f} MHz"),
    ("cpu_util_pct", "CPU {:.0f}%"),
    ("tree_cpu_pct", "trial {:.0f}% of a core"),
    ("tree_mem_gib", "{:.2f} GiB"),
    ("disk_read_mib_s", "disk {:.0f} MiB/s"),
)


def lines(columns: Mapping[str, Sequence[float]], wall_offset: float) -> Iterator[str]:
    """Yields one line for each second with readings: means, with their units.

    Args:
        wall_offset: Wall time minus the monotonic clock of the column `time_s`.
    """
    moments = columns.get(TIME, ())
    seconds: dict[int, list[int]] = {}
    for row, moment in enumerate(moments):
        seconds.setdefault(int(moment + wall_offset), []).append(row)
    for second, rows in sorted(seconds.items()):
        parts = []
        for name, form in _SHOWN:
            column = columns.get(name, ())
            values = [column[row] for row in rows if column and not math.isnan(column[row])]
            if values:
                parts.append(form.format(sum(values) / len(values)))
        if parts:
            yield f"{time.strftime('%H:%M:%S', time.localtime(second))}  {'  '.join(parts)}"


def write_log(columns: Mapping[str, Sequence[float]], path: Path) -> None:
    """Writes the text, if there are any readings."""
    text = "\n".join(lines(columns, time.time() - time.perf_counter()))
    if text:
        path.write_text(text + "\n", encoding="utf-8")
