"""PCIe traffic of a GPU, from byte counters or NVML's own rate."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

from sweeper.core.units import MIB
from sweeper.telemetry.nvml.binding import SUCCESS, NotThisTimeError

RX, TX = "gpu_pcie_rx_mib_s", "gpu_pcie_tx_mib_s"
_MIN_SECONDS = 0.05
# A 32-bit counter wraps after 4 GiB. If it is read less often than this, it can wrap unnoticed at a
# rate that training reaches.
_NARROW_SECONDS = 0.5


class PcieCounters:
    """Rates from the byte counters of drivers from 555 on, at about 0.3 ms per reading."""

    names = (RX, TX)

    def __init__(self, nvml: Any, gpu_handle: Any) -> None:
        self._nvml, self._gpu_handle = nvml, gpu_handle
        self._last: dict[str, tuple[float, int]] = {}

    def read(self) -> dict[str, float | Exception]:
        """Returns MiB per second since the last reading."""
        nvml = self._nvml
        fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
        values = nvml.nvmlDeviceGetFieldValues(self._gpu_handle, fields)
        now = perf_counter()
        rates: dict[str, float | Exception] = {}
        for name, value in zip(self.names, values, strict=True):
            if value.nvmlReturn != SUCCESS:
                rates[name] = nvml.NVMLError(value.nvmlReturn)
                continue
            is_narrow = value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT
            count = int(value.value.uiVal if is_narrow else value.value.ullVal)
            then, before = self._last.get(name, (now, count))
            if name in self._last and now - then < _MIN_SECONDS:
                continue
            self._last[name] = now, count
            if now > then:
                rates[name] = _rate(count - before, now - then, is_narrow)
        return rates


def _rate(increase: int, seconds: float, is_narrow: bool) -> float | Exception:
    if is_narrow and seconds > _NARROW_SECONDS:
        return NotThisTimeError(
            "its counter wraps after 4 GiB and was read too rarely to tell how often it did"
        )
    if is_narrow:
        increase %= 2**32
    return increase / MIB / seconds if increase >= 0 else NotThisTimeError("its counter was reset")


class PcieThroughput:
    """NVML's own rates, each read once per second at most.

    A call blocks for 20 ms, so a reading makes one at most.
    """

    names = (RX, TX)

    def __init__(self, nvml: Any, gpu_handle: Any) -> None:
        self._nvml, self._gpu_handle = nvml, gpu_handle
        self._read_at = dict.fromkeys(self.names, -math.inf)

    def read(self) -> dict[str, float | Exception]:
        """Returns at most one of the two rates."""
        nvml, name = self._nvml, min(self._read_at, key=self._read_at.__getitem__)
        if perf_counter() - self._read_at[name] < 1:
            return {}
        self._read_at[name] = perf_counter()
        counter = nvml.NVML_PCIE_UTIL_RX_BYTES if name == RX else nvml.NVML_PCIE_UTIL_TX_BYTES
        try:
            return {name: nvml.nvmlDeviceGetPcieThroughput(self._gpu_handle, counter) / 1024}
        except Exception as error:
            return {name: error}
