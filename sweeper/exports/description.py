"""Describes an export in words: its origin and its promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.results import words


def origin(value: Mapping[str, Any]) -> str:
    """Returns `trial 2 of the sweep quick, measured at ...`."""
    source = value["provenance"]
    return f"trial {source['trial']} of the sweep {source['sweep']}, measured at {source['measured_at']}"


def promise(value: Mapping[str, Any]) -> str:
    """Returns one line with the figures to expect in production and their device."""
    measured, held = value["measurement"], value["conditions"]
    parts = [f"{measured['throughput']:,.0f} samples/s"]
    if measured["epoch_seconds"]:
        parts.append(f"{measured['epoch_seconds']:.3g} s per epoch")
    if ratio := measured["speedup"]:
        sure = words.interval_text(ratio["low"], ratio["high"], ratio["rounds"])
        parts.append(f"{words.speedup_text(ratio['ratio'])} ({sure})")
    if measured["projected_hours"]:
        parts.append(f"{measured['projected_hours']:.3g} h projected for production")
    return " ".join(f"{', '.join(parts)}, on {held['device']}".split())
