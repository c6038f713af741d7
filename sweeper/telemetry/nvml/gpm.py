"""Reads how much of a GPU is active, with GPU performance monitoring (GPM, Hopper and later)."""

from __future__ import annotations

import contextlib
import math
from time import perf_counter
from typing import Any

from sweeper.telemetry.nvml.binding import SUCCESS, Device, NeverReportedError, NotThisTimeError
from sweeper.telemetry.nvml.pcie import RX, TX

# NVML refreshes the counters behind a sample every 100 ms.
_MIN_SECONDS = 0.1
_METRICS = {
    "gpu_sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "gpu_sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "gpu_tensor_active_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpu_dram_active_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
# The bus belongs to the whole GPU; there are no such figures for an instance.
_BUS_METRICS = {RX: "NVML_GPM_METRIC_PCIE_RX_PER_SEC", TX: "NVML_GPM_METRIC_PCIE_TX_PER_SEC"}


class Gpm:
    """Metrics from two consecutive samples.

    Attributes:
        names: The series that it can provide.
    """

    def __init__(self, nvml: Any, device: Device) -> None:
        self._nvml, self._device = nvml, device
        self._metrics = _METRICS if device.is_mig_instance else {**_METRICS, **_BUS_METRICS}
        self.names = tuple(self._metrics)
        self._samples: list[Any] = []
        self._request: Any = None
        self._sampled_at: float | None = None

    def read(self) -> dict[str, float | Exception]:
        """Returns the means since the last reading; nothing if there was none or it was just now."""
        nvml = self._nvml
        if self._request is None:
            self._request = self._open()
        now = perf_counter()
        if self._sampled_at is not None and now - self._sampled_at <= _MIN_SECONDS:
            return {}
        earlier, later = self._samples
        if self._device.is_mig_instance:
            nvml.nvmlGpmMigSampleGet(self._device.gpu_handle, self._device.instance, later)
        else:
            nvml.nvmlGpmSampleGet(self._device.gpu_handle, later)
        is_first, self._sampled_at = self._sampled_at is None, perf_counter()
        self._samples = [later, earlier]
        if is_first:
            return {}
        self._request.sample1, self._request.sample2 = earlier, later
        nvml.nvmlGpmMetricsGet(self._request)
        return {name: self._value(i) for i, name in enumerate(self.names)}

    def _value(self, index: int) -> float | Exception:
        metric = self._request.metrics[index]
        if metric.nvmlReturn != SUCCESS:
            return self._nvml.NVMLError(metric.nvmlReturn)  # type: ignore[no-any-return]
        return metric.value if math.isfinite(metric.value) else NotThisTimeError("NVML returned no number")

    def _open(self) -> Any:
        nvml, device = self._nvml, self._device
        if not nvml.nvmlGpmQueryDeviceSupport(device.gpu_handle).isSupportedDevice:
            raise NeverReportedError("not supported by this GPU: GPM needs Hopper or later")
        if device.is_mig_instance and device.instance is None:
            raise NeverReportedError("not reported for this MIG instance: NVML does not say which one it is")
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self.names)
        for index, name in enumerate(self._metrics.values()):
            request.metrics[index].metricId = getattr(nvml, name)
        while len(self._samples) < 2:
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        return request

    def close(self) -> None:
        """Frees the samples."""
        while self._samples:
            with contextlib.suppress(Exception):
                self._nvml.nvmlGpmSampleFree(self._samples.pop())
        self._request = self._sampled_at = None
