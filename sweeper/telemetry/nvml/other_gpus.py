"""Readings of the GPUs that a trial uses besides its first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.core.gpu_series import of_rank
from sweeper.core.probes import Probe, Reading
from sweeper.telemetry.nvml.devices import full_uuid
from sweeper.telemetry.nvml.probe import NvmlProbe


class OtherGpus(Probe):
    """The readings of `NvmlProbe` for several GPUs: `gpu1_power_w`, `gpu2_power_w` and so on, by rank.

    Args:
        uuids: The GPUs from rank 1 on, as CUDA_VISIBLE_DEVICES names them: by UUID or index.
    """

    name = "other_gpus"

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = uuids
        self._probes = [NvmlProbe() for _ in uuids]

    def open(self, pid: int, device_uuid: str) -> None:
        """Opens each GPU separately."""
        for probe, uuid in zip(self._probes, self._uuids, strict=True):
            probe.open(pid, full_uuid(uuid) if uuid.isdecimal() else uuid)
        self._look()

    def read(self) -> Reading:
        """Returns the fast readings of all GPUs."""
        return self._merge([probe.read() for probe in self._probes])

    def read_between_windows(self) -> Reading:
        """Returns the use of each GPU by other processes."""
        return self._merge([probe.read_between_windows() for probe in self._probes])

    def close(self) -> None:
        """Releases NVML."""
        for probe in self._probes:
            probe.close()

    def _merge(self, readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
        self._look()
        return {
            of_rank(name, rank): value
            for rank, reading in enumerate(readings, 1)
            for name, value in reading.items()
        }

    def _look(self) -> None:
        missing: dict[str, str] = {}
        for rank, probe in enumerate(self._probes, 1):
            self.lost |= probe.lost
            for name, why in probe.missing.items():
                if name != "gpu":
                    missing[of_rank(name, rank)] = why
                else:
                    missing["gpu" if probe.lost else f"gpu{rank}"] = f"GPU {rank}: {why}"
        self.missing = missing
