"""Formats durations, ratios, rates and losses for people, with few digits."""

from __future__ import annotations

import math
import textwrap

from sweeper.core.metrics import metric_row

ABSENT = "–"


def seconds(value: float | None) -> str:
    """Returns a duration: `85 ms`, `12.3 s`, `4 min 05 s`, `3.2 h`; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return ABSENT
    # Just below a limit, three digits would be rounded up to it.
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    if value < 3600:
        whole = max(60, int(value))
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{value / 3600:.3g} h" if value < 999.5 * 3600 else f"{value / 3600:,.0f} h"


def times(value: float | None) -> str:
    """Returns a ratio as `12.3x`; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.3g}x" if value < 100 else f"{value:,.0f}x"


def count_of(number: float, what: str) -> str:
    """Returns `1 round`, `1,200 rounds` or `1.5 minutes`."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def interval(low: float, high: float) -> str:
    """Returns an interval as `[2.44, 3.26]`."""
    return f"[{low:.3g}, {high:.3g}]"


def rate(value: float | None) -> str:
    """Returns samples per second."""
    return ABSENT if value is None else f"{per_second(value)}/s"


def per_second(value: float) -> str:
    """Returns a number of samples per second with three digits or more, and a thousands separator."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def loss(value: float | None) -> str:
    """Returns a loss with four digits."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.4g}"


def figure(value: float | None) -> str:
    """Returns any metric: thousands separated, else four digits."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def bare_metric(name: str, value: float | None) -> str:
    """Returns a value of the metric `name` for a table column; a duration keeps its unit."""
    if name == "val_loss":
        return loss(value)
    return seconds(value) if metric_row(name).unit == "s" else figure(value)


def metric(name: str, value: float | None) -> str:
    """Returns a value of the metric `name` with its unit."""
    shown, unit = bare_metric(name, value), metric_row(name).unit
    return shown if shown == ABSENT or unit == "s" else f"{shown} {unit}".rstrip()


def joules(value: float | None) -> str:
    """Returns an energy: `840 J`, `12.5 kJ`, `3.2 MJ (0.889 kWh)`."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value < 999.5:
        return f"{value:.3g} J"
    return f"{value / 1e3:.3g} kJ" if value < 999.5e3 else f"{value / 1e6:.3g} MJ ({value / 3.6e6:.3g} kWh)"


def size(num_bytes: float) -> str:
    """Returns an amount of memory: `124 B`, `7.75 KiB`, `21.3 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB" if num_bytes < 999.5 else f"{num_bytes:,.0f} GiB"


def value_of(value: object) -> str:
    """Returns a value of a configuration as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def wrap(text: str, width: int | None) -> str:
    """Returns a line wrapped between words, with an indent; unchanged if `width` is None."""
    if width is None or len(text) <= width:
        return text
    margin = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
