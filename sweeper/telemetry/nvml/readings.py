"""Takes the fast readings of NVML: memory, utilisation, power, temperature, clocks.

Each is a series of a trial's telemetry. To list or search one, add a row to `sweeper.core.metrics`; to
show it in the trial's `telemetry.log`, one to `_SHOWN` in `sweeper.telemetry.log`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.units import GIB
from sweeper.telemetry.nvml.binding import Device, NeverReportedError, is_final
from sweeper.telemetry.nvml.gpm import Gpm
from sweeper.telemetry.nvml.pcie import PcieCounters, PcieThroughput

# nvmlClocksEventReasons, by number because their names have changed once.
IDLE, POWER_CAP = 0x1, 0x4
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons that count as throttling: hardware slowdown, software and hardware thermal, power brake."""
_NOT_REPORTED = "not reported for a MIG instance"
_SHARED = "not reported for a MIG instance: it belongs to the whole GPU, which others share"
NOT_OF_A_MIG_INSTANCE = {
    "gpu_util_pct": _NOT_REPORTED,
    "gpu_mem_controller_pct": _NOT_REPORTED,
    "gpu_power_w": _SHARED,
    "gpu_energy_j": _SHARED,
    "gpu_pcie_rx_mib_s": _SHARED,
    "gpu_pcie_tx_mib_s": _SHARED,
}

SourceReading = Mapping[str, float | Exception]
"""Values by series, or the reason why one is absent; a series without a new value is left out."""


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ReadingSource:
    """A source of some series.

    Attributes:
        names: The series.
        read: Returns them; an exception applies to all of them.
        fallback: The source of those series that this one turns out not to report.
        close: Releases resources.
    """

    names: tuple[str, ...]
    read: Callable[[], SourceReading]
    fallback: ReadingSource | None = None
    close: Callable[[], None] = _do_nothing


def reading_sources(nvml: Any, device: Device) -> list[ReadingSource]:
    """Returns the independent sources of a device's series."""
    gpu_handle = device.gpu_handle
    gpm = Gpm(nvml, device)
    sources = [
        _single_source("gpu_mem_used_gib", lambda: nvml.nvmlDeviceGetMemoryInfo(device.handle).used / GIB),
        _single_source(
            "gpu_temperature_c",
            lambda: nvml.nvmlDeviceGetTemperature(gpu_handle, nvml.NVML_TEMPERATURE_GPU),
            # CUDA 14 removes the older name.
            _single_source("gpu_temperature_c", lambda: nvml.nvmlDeviceGetTemperatureV(gpu_handle, 0)),
        ),
        _single_source(
            "gpu_mem_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(gpu_handle, nvml.NVML_CLOCK_MEM)
        ),
        ReadingSource(Clocks.names, Clocks(nvml, gpu_handle).read),
    ]
    if device.is_mig_instance:
        return [*sources, ReadingSource(gpm.names, gpm.read, close=gpm.close)]
    throughput = ReadingSource(PcieThroughput.names, PcieThroughput(nvml, gpu_handle).read)
    counters = ReadingSource(PcieCounters.names, PcieCounters(nvml, gpu_handle).read, throughput)
    return [
        *sources,
        ReadingSource(("gpu_util_pct", "gpu_mem_controller_pct"), lambda: _utilisation(nvml, gpu_handle)),
        _single_source("gpu_power_w", lambda: nvml.nvmlDeviceGetPowerUsage(gpu_handle) / 1e3),
        ReadingSource(("gpu_energy_j",), GpuEnergy(nvml, gpu_handle).read),
        ReadingSource(gpm.names, gpm.read, counters, gpm.close),
    ]


def _single_source(
    name: str, call: Callable[[], float], fallback: ReadingSource | None = None
) -> ReadingSource:
    return ReadingSource((name,), lambda: {name: float(call())}, fallback)


def _utilisation(nvml: Any, gpu_handle: Any) -> SourceReading:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu_handle)
    return {"gpu_util_pct": float(rates.gpu), "gpu_mem_controller_pct": float(rates.memory)}


class GpuEnergy:
    """The energy used since the first reading; NVML's counter starts when the driver is loaded."""

    def __init__(self, nvml: Any, gpu_handle: Any) -> None:
        self._nvml, self._gpu_handle = nvml, gpu_handle
        self._start: float | None = None

    def read(self) -> SourceReading:
        """Returns the joules since the first reading."""
        now = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu_handle) / 1e3
        if self._start is None:
            self._start = now
        return {"gpu_energy_j": now - self._start}


class Clocks:
    """The SM clock, and what limits it."""

    names = ("gpu_sm_clock_mhz", "gpu_clock_pct", "gpu_throttled", "gpu_power_capped")

    def __init__(self, nvml: Any, gpu_handle: Any) -> None:
        self._nvml, self._gpu_handle = nvml, gpu_handle
        # The newer name first; drivers before 535 only know the older one.
        self._asking = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
        self._refused: Exception = NeverReportedError("not reported")
        self._default: float | Exception | None = None

    def read(self) -> SourceReading:
        """Returns the clock, its share of the default clock, and 1 or 0 per kind of throttling."""
        nvml = self._nvml
        if self._default is None or (isinstance(self._default, Exception) and not is_final(self._default)):
            self._default = self._default_clock()
        clock = _try(lambda: nvml.nvmlDeviceGetClockInfo(self._gpu_handle, nvml.NVML_CLOCK_SM))
        why = self._reasons()
        values: dict[str, float | Exception] = {"gpu_sm_clock_mhz": clock}
        for name, bits in (("gpu_throttled", SLOWED), ("gpu_power_capped", POWER_CAP)):
            values[name] = why if isinstance(why, Exception) else float(bool(why & bits))
        # An idle GPU lowers its clocks, which is fine.
        is_idle = isinstance(why, int) and bool(why & IDLE)
        # If the reasons are never reported, every clock counts.
        may_be_idle = isinstance(why, Exception) and not is_final(why)
        if isinstance(clock, Exception) or isinstance(self._default, Exception):
            values["gpu_clock_pct"] = clock if isinstance(clock, Exception) else self._default
        elif not is_idle and not may_be_idle:
            values["gpu_clock_pct"] = 100 * clock / self._default
        return values

    def _default_clock(self) -> float | Exception:
        nvml, gpu_handle = self._nvml, self._gpu_handle
        clock = _try(lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(gpu_handle, nvml.NVML_CLOCK_SM))
        if isinstance(clock, Exception) or clock <= 0:
            clock = _try(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu_handle, nvml.NVML_CLOCK_SM))
        if isinstance(clock, Exception) or clock > 0:
            return clock
        return NeverReportedError("the default clock is not reported")

    def _reasons(self) -> int | Exception:
        while self._asking:
            try:
                return int(getattr(self._nvml, self._asking[0])(self._gpu_handle))
            except Exception as error:
                self._refused = error
                if not is_final(error):
                    break
                del self._asking[0]
        return self._refused


def _try(call: Callable[[], float]) -> float | Exception:
    try:
        return float(call())
    except Exception as error:
        return error
