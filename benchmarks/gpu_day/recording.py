"""What NVML says at 10 Hz in three situations, kept so that the stand-in for NVML can say it again.

A recording holds what `tests/stub_nvml.py` needs for a scenario, and what `NvmlProbe` made of it:
`tests/telemetry/test_telemetry_recordings.py` plays it back. The recorder sits between the probe and
pynvml and keeps each answer under the stand-in's name for it, so that a replay answers as the driver did.

python -m gpu_day.recording matmul|light        the load of a situation, until it is killed
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_day import rehearsal
from gpu_day.steps import ROOT, Day, SkippedError
from sweeper.system.process import tree
from sweeper.telemetry.nvml import probe as probes
from sweeper.telemetry.nvml.binding import NOT_FOUND, initialised
from sweeper.telemetry.nvml.devices import describe_gpus, first_gpu
from sweeper.telemetry.nvml.probe import NvmlProbe

READS = 30
"""About three seconds of a situation; with the one at the start, the stand-in holds 64 of a key."""
PACE_SECONDS = 0.11
BETWEEN = 10
"""So many readings from one look at the other processes to the next."""
OUTSIDER = 4_100_001
"""Numbers from here on stand for processes of others; Linux gives none so high."""
NOT_SUPPORTED = 3

SITUATIONS: Mapping[str, tuple[str, str]] = {
    "idle": ("", ""),
    "matmul": ("matmul", ""),
    "foreign": ("light", "matmul"),
}
"""By name: the load of the process that is watched, and of one that is not its own."""

Answers = Iterator[tuple[str, float]]


def _one(key: str) -> Callable[[Any, Sequence[Any]], Answers]:
    return lambda answer, arguments: iter([(key, float(answer))])


def _clock(prefix: str) -> Callable[[Any, Sequence[Any]], Answers]:
    kinds = {1: "sm", 2: "mem"}
    return lambda answer, arguments: iter([(prefix + kinds.get(arguments[1], "other"), float(answer))])


def _utilisation(answer: Any, arguments: Sequence[Any]) -> Answers:
    yield "util_gpu", float(answer.gpu)
    yield "util_mem", float(answer.memory)


def _throughput(answer: Any, arguments: Sequence[Any]) -> Answers:
    yield ("pcie_tx_kib", "pcie_rx_kib")[arguments[1]], float(answer)


def _fields(answer: Any, arguments: Sequence[Any]) -> Answers:
    for asked, field_value in zip(arguments[1], answer, strict=True):
        if field_value.nvmlReturn == 0:
            narrow = field_value.valueType == 1
            yield (
                f"field{32 if narrow else ''}_{asked}",
                float(field_value.value.uiVal if narrow else field_value.value.ullVal),
            )


def _gpm(answer: Any, arguments: Sequence[Any]) -> Answers:
    request = arguments[0]
    for metric in request.metrics[: request.numMetrics]:
        if metric.nvmlReturn == 0:
            yield f"gpm_{metric.metricId}", float(metric.value)


KEYS: Mapping[str, Callable[[Any, Sequence[Any]], Answers]] = {
    "nvmlDeviceGetMemoryInfo": lambda answer, arguments: iter([("mem_used_mib", answer.used // 2**20)]),
    "nvmlDeviceGetTemperature": _one("temperature_c"),
    "nvmlDeviceGetTemperatureV": _one("temperature_c"),
    "nvmlDeviceGetClockInfo": _clock("clock_"),
    "nvmlDeviceGetMaxClockInfo": _clock("max_clock_"),
    "nvmlDeviceGetDefaultApplicationsClock": _clock("default_clock_"),
    "nvmlDeviceGetCurrentClocksEventReasons": _one("reasons"),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _one("reasons"),
    "nvmlDeviceGetUtilizationRates": _utilisation,
    "nvmlDeviceGetPowerUsage": _one("power_mw"),
    "nvmlDeviceGetTotalEnergyConsumption": _one("energy_mj"),
    "nvmlDeviceGetPcieThroughput": _throughput,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlGpmQueryDeviceSupport": lambda answer, arguments: iter([("gpm", float(answer.isSupportedDevice))]),
    "nvmlGpmMetricsGet": _gpm,
}
"""By pynvml's function: the stand-in's keys (tests/nvml_stub.c) and values of an answer."""

LISTING, BUSY = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetProcessUtilization"
SYMBOLS = {LISTING: f"{LISTING}_v3"}
"""What the library calls a function that pynvml calls otherwise."""


@dataclass(slots=True)
class Recording:
    """One situation.

    Attributes:
        values: By the stand-in's keys, one for each call.
        processes: (pid or `self`, MiB or `-`, first and last listing).
        samples: (pid or `self`, SM utilisation, query).
        errors: (function, NVML's code) of what was always refused; without first and last call.
        readings: What the probe's `read` returned, one by one.
        others: What its `read_between_windows` returned, after each `BETWEEN` readings.
        missing: Its reasons for what is absent.
        read_ms: How long each `read` took.
    """

    situation: str
    name: str = ""
    memory_mib: int = 0
    driver: str = ""
    cuda: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    processes: list[tuple[Any, ...]] = field(default_factory=list)
    samples: list[tuple[Any, ...]] = field(default_factory=list)
    errors: list[tuple[Any, ...]] = field(default_factory=list)
    readings: list[dict[str, float]] = field(default_factory=list)
    others: list[dict[str, float]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    read_ms: list[float] = field(default_factory=list)


class Recorder:
    """pynvml, but for that it keeps the answers."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.values: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, int] = {}
        self.listings: list[dict[int, int | None]] = []
        self.busy: list[list[tuple[int, int]]] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._nvml, name)
        if name not in KEYS and name not in (LISTING, BUSY):
            return attribute

        def call(*arguments: Any) -> Any:
            try:
                answer = attribute(*arguments)
            except self._nvml.NVMLError as error:
                self._refuse(name, error.value)
                raise
            self._keep(name, answer, arguments)
            return answer

        return call

    def _refuse(self, name: str, code: int) -> None:
        if name == BUSY and code == NOT_FOUND:
            self.busy.append([])
        elif code != NOT_SUPPORTED:
            self.refused.setdefault(name, code)

    def _keep(self, name: str, answer: Any, arguments: Sequence[Any]) -> None:
        self.refused.pop(name, None)
        if name == LISTING:
            self.listings.append({int(process.pid): process.usedGpuMemory for process in answer})
        elif name == BUSY:
            self.busy.append([(int(sample.pid), int(sample.smUtil)) for sample in answer])
        else:
            for key, value in KEYS[name](answer, arguments):
                self.values[key].append(value)


def record(situation: str, uuid: str, pid: int, reads: int) -> Recording:
    """Returns what NVML says of a device while `pid` is watched, and what the probe makes of it."""
    with initialised() as nvml:
        recorder, recording = Recorder(nvml), _facts(nvml, situation, uuid)
        # The probe's own way to pynvml, for as long as it is open.
        before, probes.__dict__["open_nvml"] = probes.__dict__["open_nvml"], lambda: _opened(nvml, recorder)
        probe, own = NvmlProbe(), set(tree(pid))
        try:
            probe.open(pid, uuid)
            for number in range(1, reads + 1):
                began = time.perf_counter()
                recording.readings.append({name: round(value, 4) for name, value in probe.read().items()})
                recording.read_ms.append(round(1e3 * (time.perf_counter() - began), 3))
                own.update(tree(pid))
                if number % BETWEEN == 0:
                    recording.others.append(
                        {name: round(v, 4) for name, v in probe.read_between_windows().items()}
                    )
                time.sleep(max(0.0, PACE_SECONDS - (time.perf_counter() - began)))
        finally:
            probe.close()
            probes.__dict__["open_nvml"] = before
    recording.missing = dict(probe.missing)
    recording.values.update(recorder.values)
    names = _Names(own)
    recording.processes = list(_spans(recorder.listings, names))
    recording.samples = [
        (names(process_id), percent, query + 1)
        for query, busy in enumerate(recorder.busy)
        for process_id, percent in busy
    ]
    if recorder.busy and not recording.samples:
        # Utilisation is told, and there was none.
        recording.samples = [(OUTSIDER, 0, 0)]
    recording.errors = [(SYMBOLS.get(name, name), code) for name, code in recorder.refused.items()]
    return recording


def _opened(nvml: Any, recorder: Recorder) -> Recorder:
    nvml.nvmlInit()
    return recorder


def _facts(nvml: Any, situation: str, uuid: str) -> Recording:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    recording = Recording(
        situation=situation,
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20),
        driver=str(nvml.nvmlSystemGetDriverVersion()),
        cuda=int(nvml.nvmlSystemGetCudaDriverVersion_v2()),
    )
    for key, function in (
        ("persistence", nvml.nvmlDeviceGetPersistenceMode),
        ("compute_mode", nvml.nvmlDeviceGetComputeMode),
    ):
        with contextlib.suppress(nvml.NVMLError):
            recording.values[key] = [float(function(handle))]
    return recording


class _Names:
    """Numbers of processes for the stand-in: `self` for the watched one's, and others from `OUTSIDER` on."""

    def __init__(self, own: set[int]) -> None:
        self._own, self._others = own, dict[int, int]()

    def __call__(self, pid: int) -> int | str:
        return "self" if pid in self._own else self._others.setdefault(pid, OUTSIDER + len(self._others))


def _spans(listings: Sequence[Mapping[int, int | None]], names: _Names) -> Iterator[tuple[Any, ...]]:
    """Yields each process with the listings that it was in without a break."""
    for pid in sorted({pid for listing in listings for pid in listing}):
        first = 0
        for number, listing in enumerate([*listings, {}], 1):
            if pid in listing and not first:
                first = number
            elif pid not in listing and first:
                used = listings[first - 1][pid]
                yield names(pid), "-" if used is None else used // 2**20, first, number - 1
                first = 0


@contextlib.contextmanager
def _loading(kind: str) -> Iterator[int]:
    """Runs a load and yields its process; this one where there is none."""
    if not kind:
        yield os.getpid()
        return
    command = [sys.executable, "-m", "gpu_day.recording", kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT / "benchmarks")
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the load `{kind}` ended with {process.wait()} before it began")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def load(kind: str) -> None:
    """Keeps the GPU busy: `matmul` wholly, `light` with a small product every few milliseconds."""
    import torch

    size = 8192 if kind == "matmul" and rehearsal.REHEARSAL_VARIABLE not in os.environ else 256
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    print(float((x @ x).sum()), flush=True)
    while True:
        for _ in range(20 if kind == "matmul" else 1):
            x @ x
        torch.cuda.synchronize()
        if kind == "light":
            time.sleep(0.005)


def nvml(day: Day) -> str:
    """Records the situations; in a rehearsal, two of the stand-in for NVML."""
    gpus = describe_gpus()
    if not gpus:
        raise SkippedError("NVML knows no GPU here")
    uuid = first_gpu() or gpus[0].uuid
    said = []
    for situation in ("idle", "foreign") if day.rehearse else SITUATIONS:
        watched, neighbour = SITUATIONS[situation]
        # The neighbour is first: it stays when the watched process has ended.
        with _loading(neighbour), _loading(watched) as pid:
            recording = record(situation, uuid, pid, 10 if day.rehearse else READS)
        day.write("nvml", **asdict(recording))
        last = recording.readings[-1]
        watts, busy = last.get("gpu_power_w", 0.0), last.get("gpu_util_pct", 0.0)
        others = recording.others[-1].get("gpu_foreign_processes") if recording.others else None
        said.append(f"{situation} {busy:.0f} %, {watts:.0f} W, {others} others")
        print(f"{said[-1]}; a reading takes {statistics.median(recording.read_ms):.2f} ms")
        print("  missing:", recording.missing or "nothing")
    return "; ".join(said)


if __name__ == "__main__":
    load(sys.argv[1])
