"""Readings of the GPU through NVML, found by UUID and never by index; each stands alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sweeper.telemetry.probe import Reading

GIB = 1024**3


class NvmlProbe:
    """Utilisation (NVML's own: share of time with any kernel running), memory, power, clocks, throttling.

    Attributes:
        missing: Why a series is absent, by its name.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._nvml: Any = None
        self._calls: dict[str, Callable[[], float]] = {}

    def open(self, pid: int, device_uuid: str) -> None:
        """Finds the GPU. Where there is no driver, the reason is kept and nothing is read."""
        if not device_uuid:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
        except Exception as error:
            self.missing["gpu"] = str(error)
            return
        nvml = self._nvml = pynvml
        held_down = (
            nvml.nvmlClocksThrottleReasonSwPowerCap
            | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
        )
        self._calls = {
            "gpu_util_pct": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_mem_used_gib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "gpu_temperature_c": lambda: float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            "gpu_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "gpu_mem_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            # 1 while power, heat or a brake hold the clocks down; its mean is the share of the time.
            "gpu_throttled": lambda: float(
                bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & held_down)
            ),
            "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
        }

    def read(self) -> Reading:
        """Returns what the device supports; a call that fails once is not made again."""
        values: dict[str, float] = {}
        for name, call in list(self._calls.items()):
            try:
                values[name] = call()
            except Exception as error:
                self.missing[name] = str(error)
                del self._calls[name]
        return values

    def close(self) -> None:
        """Releases NVML."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def gpu_names() -> list[str]:
    """Returns the model names of the GPUs this process may use, without making a CUDA context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = [name.strip() for name in visible.split(",")] if visible is not None else None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            if wanted is None or any(w and (w == str(index) or uuid.startswith(w)) for w in wanted):
                found.append(str(pynvml.nvmlDeviceGetName(handle)))
        return found
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
