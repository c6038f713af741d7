"""The GPUs of this machine as NVML reports them: names, facts, problems."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from sweeper.core.units import GIB
from sweeper.errors import EnvironmentStopError
from sweeper.system.process import tree
from sweeper.telemetry.nvml.binding import (
    find_device,
    gpus,
    initialised,
    instances,
    is_split,
    open_nvml,
    why_unusable,
)
from sweeper.telemetry.nvml.processes import compute_processes

LIMIT_SECONDS = 60.0
"""Seconds that NVML may take: without persistence mode, many GPUs take some 10 s to wake up."""
HANGS = (
    f"the NVIDIA driver has not answered for {LIMIT_SECONDS:g} s: `nvidia-smi` will hang as well; reboot the "
    "machine"
)
"""The answer of `driver_problem` if there was none."""
_WORD_BITS = 64
_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Default = TypeVar("_Default")


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


def run_bounded(work: Callable[[], _T]) -> _T | None:
    """Returns the result of `work`; None if NVML hangs, which leaves a thread behind."""
    results: list[_T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return results[0] if results else None


def _bounded(default: _Default) -> Callable[[Callable[_P, _T]], Callable[_P, _T | _Default]]:
    """Makes a function that asks NVML return `default` if it raises, or if NVML hangs."""

    def decorate(ask: Callable[_P, _T]) -> Callable[_P, _T | _Default]:
        @functools.wraps(ask)
        def ask_bounded(*args: _P.args, **kwargs: _P.kwargs) -> _T | _Default:
            def work() -> _T | _Default:
                with contextlib.suppress(Exception):
                    return ask(*args, **kwargs)
                return default

            answer = run_bounded(work)
            return default if answer is None else answer

        return ask_bounded

    return decorate


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
    return _most_capable_gpu(uuids) or uuids[0]


@_bounded("")
def _most_capable_gpu(uuids: Sequence[str]) -> str:
    with initialised() as nvml:
        capability = {
            uuid: nvml.nvmlDeviceGetCudaComputeCapability(find_device(nvml, uuid).gpu_handle)
            for uuid in uuids
        }
    return max(uuids, key=lambda uuid: tuple(capability[uuid]))


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


@_bounded(None)
def memory_used_gib(uuid: str) -> float | None:
    """Returns the used memory of a GPU, by all processes; None if NVML does not report it."""
    with initialised() as nvml:
        return float(nvml.nvmlDeviceGetMemoryInfo(find_device(nvml, uuid).handle).used / GIB)


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
        nvml = open_nvml()
        for uuid in uuids:
            # NVML opens a GPU at the first request for its handle, and keeps it open.
            with contextlib.suppress(Exception):
                find_device(nvml, uuid)
        return nvml
    return None


def _close(nvml: Any) -> None:
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()


@_bounded(frozenset[int]())
def cores_near(uuid: str) -> frozenset[int]:
    """Returns the logical cores nearest to a GPU; empty if NVML does not report them."""
    # A bit for each possible core: NVML fills exactly this many words.
    words = os.sysconf("SC_NPROCESSORS_CONF") // _WORD_BITS + 1
    with initialised() as nvml:
        masks = nvml.nvmlDeviceGetCpuAffinity(find_device(nvml, uuid).gpu_handle, words)
    return frozenset(
        word * _WORD_BITS + bit
        for word, mask in enumerate(masks)
        for bit in range(_WORD_BITS)
        if mask >> bit & 1
    )


def full_uuid(name: str) -> str:
    """Returns NVML's UUID of the GPU that CUDA_VISIBLE_DEVICES calls `name`; `name` if unknown.

    An index is NVML's own, as in `gpu_names`.
    """
    return _uuid_of(name) or name


@_bounded("")
def _uuid_of(name: str) -> str:
    with initialised() as nvml:
        return str(nvml.nvmlDeviceGetUUID(_handle_of(nvml, name, dict(gpus(nvml)))))


def is_exclusive(uuid: str) -> bool:
    """Returns whether only one process at a time may use a GPU; False if NVML does not report it."""
    return bool(uuid) and _is_exclusive(uuid)


@_bounded(False)
def _is_exclusive(uuid: str) -> bool:
    with initialised() as nvml:
        mode = _MODES[nvml.nvmlDeviceGetComputeMode(find_device(nvml, uuid).gpu_handle)]
    return mode.startswith("exclusive")


@_bounded(("", 0.0))
def name_and_memory_gib(uuid: str) -> tuple[str, float]:
    """Returns the model and the memory of a GPU or a MIG instance; empty and 0 if unknown."""
    with initialised() as nvml:
        handle = find_device(nvml, uuid).handle
        return _name(nvml, handle), _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, 0.0)


def driver_problem() -> str:
    """Returns why NVML cannot be used here and what to do; empty if it can."""
    message = run_bounded(_problem)
    return HANGS if message is None else message


def _is_name(entry: str) -> bool:
    return entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))


def _read_visible(wanted: list[str] | None, read: Callable[[Any, Any], str]) -> list[str]:
    values: list[str] = []
    # An entry that NVML refuses ends the list, as an invalid one does.
    with contextlib.suppress(Exception), initialised() as nvml:
        gpu_handles = dict(gpus(nvml))
        for entry in wanted if wanted is not None else map(str, gpu_handles):
            if not _is_name(entry):
                break
            values.append(read(nvml, _handle_of(nvml, entry, gpu_handles)))
    return values


def _handle_of(nvml: Any, entry: str, gpu_handles: Mapping[int, Any]) -> Any:
    """Returns the handle of an entry of CUDA_VISIBLE_DEVICES; a split GPU's is its first instance's."""
    if not entry.isdecimal():
        return find_device(nvml, entry).handle
    gpu_handle = gpu_handles[int(entry)]
    return next(instances(nvml, gpu_handle), gpu_handle)


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
        return why_unusable(error)


def _facts() -> list[GpuFacts]:
    facts: list[GpuFacts] = []
    with contextlib.suppress(Exception), initialised() as nvml:
        pids = set(tree(os.getpid()))
        driver = _ask(lambda: str(nvml.nvmlSystemGetDriverVersion()), "")
        cuda = _ask(lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2()), "")
        facts.extend(_fact(nvml, index, gpu_handle, driver, cuda, pids) for index, gpu_handle in gpus(nvml))
    return facts


def _fact(nvml: Any, index: int, gpu_handle: Any, driver: str, cuda: str, pids: set[int]) -> GpuFacts:
    return GpuFacts(
        index=index,
        name=_ask(lambda: str(nvml.nvmlDeviceGetName(gpu_handle)), ""),
        uuid=_ask(lambda: str(nvml.nvmlDeviceGetUUID(gpu_handle)), ""),
        memory_gib=_ask(lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu_handle).total / GIB), 0.0),
        free_gib=_ask(lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu_handle).free / GIB), None),
        driver=driver,
        cuda_driver_version=cuda,
        persistence=_ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(gpu_handle)), None),
        compute_mode=_ask(lambda: _MODES[nvml.nvmlDeviceGetComputeMode(gpu_handle)], ""),
        mig=is_split(nvml, gpu_handle),
        foreign=_ask(lambda: tuple(sorted(compute_processes(nvml, gpu_handle).keys() - pids)), ()),
    )


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _ask(call: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return call()
    except Exception:
        return otherwise
