"""The GPUs of this machine as NVML reports them: names, facts, problems."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweeper.errors import EnvironmentStopError
from sweeper.system.process import tree
from sweeper.telemetry.nvml.binding import find, gpus, initialised, instances, is_split, problem, start
from sweeper.telemetry.nvml.processes import compute_processes

LIMIT_SECONDS = 60.0
"""Seconds that NVML may take: without persistence mode, many GPUs take some 10 s to wake up."""
GIB = 1024**3
HANGS = (
    f"the NVIDIA driver has not answered for {LIMIT_SECONDS:g} s: `nvidia-smi` will hang as well; reboot the "
    "machine"
)
"""The answer of `driver_problem` if there was none."""
_WORD_BITS = 64
_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU as the driver describes it; unknown values are empty, 0 or None.

    Attributes:
        index: NVML's index, in PCI bus order, whatever CUDA_VISIBLE_DEVICES says.
        uuid: Identifies a trial's device.
        free_gib: Memory that no process holds.
        driver: The driver's version.
        cuda_driver_version: The latest CUDA version that the driver supports.
        persistence: Whether the driver stays loaded while nobody uses the GPU.
        compute_mode: `default`, `exclusive process`, `exclusive thread` or `prohibited`.
        mig: Whether it is split into instances.
        foreign: Compute processes on it that this process has not started.
    """

    index: int
    name: str = ""
    uuid: str = ""
    memory_gib: float = 0.0
    free_gib: float | None = None
    driver: str = ""
    cuda_driver_version: str = ""
    persistence: bool | None = None
    compute_mode: str = ""
    mig: bool = False
    foreign: tuple[int, ...] = ()


def gpu_names() -> list[str]:
    """Returns the model names of the visible GPUs, in the order of CUDA_VISIBLE_DEVICES.

    See `gpu_uuids` for which GPUs are visible, and for the errors raised.
    """
    return _visible_values(_name)


def gpu_uuids() -> list[str]:
    """Returns the UUIDs of the visible GPUs, in the order of CUDA_VISIBLE_DEVICES.

    Entries are indices, UUIDs or UUID prefixes, of GPUs or of MIG devices; as in CUDA, the first
    invalid entry ends the list, and a duplicate empties it. Indices are NVML's, in PCI bus order;
    CUDA uses that order only with CUDA_DEVICE_ORDER=PCI_BUS_ID, and otherwise starts with the
    fastest GPU, so use UUIDs if models differ. Empty if NVML cannot be used.

    Raises:
        EnvironmentStopError: The driver has not answered within `LIMIT_SECONDS`.
    """
    return _visible_values(lambda nvml, handle: str(nvml.nvmlDeviceGetUUID(handle)))


def first_gpu() -> str:
    """Returns the UUID of the GPU that a process uses if it names none; empty without one.

    If models differ, CUDA starts with the one of the highest capability, unless CUDA_DEVICE_ORDER or a list
    of UUIDs says otherwise.

    Raises:
        EnvironmentStopError: As for `gpu_uuids`.
    """
    uuids = gpu_uuids()
    is_listed = not os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()[:1].isdecimal()
    if len(uuids) < 2 or is_listed or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return next(iter(uuids), "")
    return run_bounded(lambda: _most_capable_gpu(uuids)) or uuids[0]


def _most_capable_gpu(uuids: Sequence[str]) -> str:
    with contextlib.suppress(Exception), initialised() as nvml:
        capability = {uuid: nvml.nvmlDeviceGetCudaComputeCapability(find(nvml, uuid).whole) for uuid in uuids}
        return max(uuids, key=lambda uuid: tuple(capability[uuid]))
    return ""


def _visible_values(read: Callable[[Any, Any], str]) -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [entry.strip() for entry in visible.split(",")]
    if wanted is not None and (len(set(wanted)) < len(wanted) or not _is_name(wanted[0])):
        return []
    values = run_bounded(lambda: _read_visible(wanted, read))
    if values is None:
        raise EnvironmentStopError(
            f"the NVIDIA driver must list its GPUs within {LIMIT_SECONDS:g} s, but has not answered. It "
            "hangs, as `nvidia-smi` will: reboot the machine, or use the CPU (`CUDA_VISIBLE_DEVICES=`)."
        )
    return values


def describe_gpus() -> list[GpuFacts]:
    """Describes every GPU of the machine; if empty, `driver_problem` may say why."""
    return run_bounded(_facts) or []


def memory_used_gib(uuid: str) -> float | None:
    """Returns the used memory of a GPU, by all processes; None if NVML does not report it."""
    return run_bounded(lambda: _memory_used(uuid))


def _memory_used(uuid: str) -> float | None:
    with contextlib.suppress(Exception), initialised() as nvml:
        return float(nvml.nvmlDeviceGetMemoryInfo(find(nvml, uuid).handle).used / GIB)
    return None


@contextlib.contextmanager
def awake(uuids: Sequence[str]) -> Iterator[None]:
    """Keeps the driver and these GPUs initialised, if NVML allows; does nothing without GPUs.

    With persistence mode off, the driver shuts a GPU down when the last process that uses it exits,
    and the next one waits seconds for it to come up. Processes started meanwhile inherit nothing.
    """
    nvml = run_bounded(lambda: _open(uuids)) if uuids else None
    try:
        yield
    finally:
        if nvml is not None:
            run_bounded(lambda: _close(nvml))


def _open(uuids: Sequence[str]) -> Any:
    with contextlib.suppress(Exception):
        nvml = start()
        for uuid in uuids:
            # NVML opens a GPU at the first request for its handle, and keeps it open.
            with contextlib.suppress(Exception):
                find(nvml, uuid)
        return nvml
    return None


def _close(nvml: Any) -> None:
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()


def cores_near(uuid: str) -> frozenset[int]:
    """Returns the logical cores nearest to a GPU; empty if NVML does not report them."""
    return run_bounded(lambda: _cores_near(uuid)) or frozenset()


def _cores_near(uuid: str) -> frozenset[int]:
    # A bit for each possible core: NVML fills exactly this many words.
    words = os.sysconf("SC_NPROCESSORS_CONF") // _WORD_BITS + 1
    with contextlib.suppress(Exception), initialised() as nvml:
        masks = nvml.nvmlDeviceGetCpuAffinity(find(nvml, uuid).whole, words)
        return frozenset(
            word * _WORD_BITS + bit
            for word, mask in enumerate(masks)
            for bit in range(_WORD_BITS)
            if mask >> bit & 1
        )
    return frozenset()


def full_uuid(name: str) -> str:
    """Returns NVML's UUID of the GPU that CUDA_VISIBLE_DEVICES calls `name`; `name` if unknown.

    An index is NVML's own, as in `gpu_names`.
    """
    return run_bounded(lambda: _find_uuid(name)) or name


def _find_uuid(name: str) -> str:
    with contextlib.suppress(Exception), initialised() as nvml:
        return str(nvml.nvmlDeviceGetUUID(_handle_of(nvml, name, dict(gpus(nvml)))))
    return ""


def is_exclusive(uuid: str) -> bool:
    """Returns whether only one process at a time may use a GPU; False if NVML does not report it."""
    return bool(uuid) and bool(run_bounded(lambda: _is_exclusive(uuid)))


def _is_exclusive(uuid: str) -> bool:
    with contextlib.suppress(Exception), initialised() as nvml:
        return _MODES[nvml.nvmlDeviceGetComputeMode(find(nvml, uuid).whole)].startswith("exclusive")
    return False


def name_and_memory_gib(uuid: str) -> tuple[str, float]:
    """Returns the model and the memory of a GPU or a MIG instance; empty and 0 if unknown."""
    return run_bounded(lambda: _name_and_memory(uuid)) or ("", 0.0)


def _name_and_memory(uuid: str) -> tuple[str, float]:
    with contextlib.suppress(Exception), initialised() as nvml:
        handle = find(nvml, uuid).handle
        return _name(nvml, handle), _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, 0.0)
    return "", 0.0


def driver_problem() -> str:
    """Returns why NVML cannot be used here and what to do; empty if it can."""
    message = run_bounded(_problem)
    return HANGS if message is None else message


def run_bounded(work: Callable[[], _T]) -> _T | None:
    """Returns the result of `work`; None if NVML hangs, which leaves a thread behind."""
    results: list[_T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return results[0] if results else None


def _is_name(entry: str) -> bool:
    return entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))


def _read_visible(wanted: list[str] | None, read: Callable[[Any, Any], str]) -> list[str]:
    values: list[str] = []
    # An entry that NVML refuses ends the list, as an invalid one does.
    with contextlib.suppress(Exception), initialised() as nvml:
        wholes = dict(gpus(nvml))
        for entry in wanted if wanted is not None else map(str, wholes):
            if not _is_name(entry):
                break
            values.append(read(nvml, _handle_of(nvml, entry, wholes)))
    return values


def _handle_of(nvml: Any, entry: str, wholes: Mapping[int, Any]) -> Any:
    """Returns the handle of an entry of CUDA_VISIBLE_DEVICES; of a split GPU, CUDA uses the first part."""
    if not entry.isdecimal():
        return find(nvml, entry).handle
    whole = wholes[int(entry)]
    return next(instances(nvml, whole), whole)


def _name(nvml: Any, handle: Any) -> str:
    try:
        return str(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        # Older drivers do not name MIG devices, only their GPU.
        return str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)))


def _problem() -> str:
    try:
        with initialised():
            return ""
    except Exception as error:
        return problem(error)


def _facts() -> list[GpuFacts]:
    facts: list[GpuFacts] = []
    with contextlib.suppress(Exception), initialised() as nvml:
        pids = set(tree(os.getpid()))
        driver = _ask(lambda: str(nvml.nvmlSystemGetDriverVersion()), "")
        cuda = _ask(lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2()), "")
        facts.extend(_fact(nvml, index, whole, driver, cuda, pids) for index, whole in gpus(nvml))
    return facts


def _fact(nvml: Any, index: int, whole: Any, driver: str, cuda: str, pids: set[int]) -> GpuFacts:
    return GpuFacts(
        index=index,
        name=_ask(lambda: str(nvml.nvmlDeviceGetName(whole)), ""),
        uuid=_ask(lambda: str(nvml.nvmlDeviceGetUUID(whole)), ""),
        memory_gib=_ask(lambda: float(nvml.nvmlDeviceGetMemoryInfo(whole).total / GIB), 0.0),
        free_gib=_ask(lambda: float(nvml.nvmlDeviceGetMemoryInfo(whole).free / GIB), None),
        driver=driver,
        cuda_driver_version=cuda,
        persistence=_ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(whole)), None),
        compute_mode=_ask(lambda: _MODES[nvml.nvmlDeviceGetComputeMode(whole)], ""),
        mig=is_split(nvml, whole),
        foreign=_ask(lambda: tuple(sorted(compute_processes(nvml, whole).keys() - pids)), ()),
    )


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _ask(call: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return call()
    except Exception:
        return otherwise
