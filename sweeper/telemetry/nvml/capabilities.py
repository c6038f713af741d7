"""What NVML reports of a GPU: its series, why others are absent, and the limits of its power."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.telemetry.nvml.binding import find_device, initialised, why_absent
from sweeper.telemetry.nvml.devices import run_bounded
from sweeper.telemetry.nvml.probe import NvmlProbe

READINGS, PAUSE_SECONDS = 3, 0.4
"""A reading is given up after so many failures; NVML's own rates are read once per second."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What NVML reports of a GPU.

    Attributes:
        series: The series that have a value.
        missing: Why other series have none, by their names.
        power_w: `enforced` (the lowest of all limits), `set`, `default`, `least` and `most`; those that are
            reported.
    """

    series: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    power_w: Mapping[str, float] = field(default_factory=dict)


def capabilities(uuid: str) -> Capabilities:
    """Returns what NVML reports of a GPU; nothing if it hangs."""
    return run_bounded(lambda: _read(uuid)) or Capabilities()


def _read(uuid: str) -> Capabilities:
    probe, seen = NvmlProbe(), set[str]()
    probe.open(os.getpid(), uuid)
    for _ in range(READINGS):
        time.sleep(PAUSE_SECONDS)
        seen |= probe.read().keys() | probe.read_between_windows().keys()
    missing = dict(probe.missing)
    probe.close()
    power: dict[str, float] = {}
    try:
        with initialised() as nvml:
            _read_limits(nvml, find_device(nvml, uuid).gpu_handle, power, missing)
    except Exception as error:
        missing["power limits"] = why_absent(error)
    return Capabilities(series=tuple(sorted(seen)), missing=missing, power_w=power)


def _read_limits(nvml: Any, gpu_handle: Any, power: dict[str, float], missing: dict[str, str]) -> None:
    def read(names: tuple[str, ...], call: Callable[[Any], Any]) -> None:
        try:
            answer = call(gpu_handle)
        except Exception as error:
            missing.update({f"power limit, {name}": why_absent(error) for name in names})
            return
        milliwatts = answer if isinstance(answer, list | tuple) else (answer,)
        power.update({name: value / 1e3 for name, value in zip(names, milliwatts, strict=True)})

    read(("enforced",), nvml.nvmlDeviceGetEnforcedPowerLimit)
    read(("set",), nvml.nvmlDeviceGetPowerManagementLimit)
    read(("default",), nvml.nvmlDeviceGetPowerManagementDefaultLimit)
    read(("least", "most"), nvml.nvmlDeviceGetPowerManagementLimitConstraints)
