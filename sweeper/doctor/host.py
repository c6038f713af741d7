"""Checks the host: cores, memory, shared memory, open files and other load."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from sweeper.core.loaders import RESIDENT
from sweeper.core.units import GIB, MIB
from sweeper.doctor.finding import Check, Look, State, make_check
from sweeper.script.run.sandbox import why_unguarded
from sweeper.system.cpu import cpu_limits, usable_cpus
from sweeper.system.memory import group_memory

SHM = Path("/dev/shm")
PRESSURE = Path("/proc/pressure")
ISOLATED = Path("/sys/devices/system/cpu/isolated")
DOCKER_SHM = 64 * MIB
MIN_SHM, MIN_MEMORY = 1 * GIB, 2 * GIB
MIN_FILES = 4096
BUSY_PCT, SWAPPING_PCT, STOLEN_PCT = 10.0, 1.0, 1.0
LOADED = 0.5
"""Load per core of the machine above which something else counts as running."""


def looks() -> Sequence[Look]:
    """Returns the checks of the host."""
    return (
        ("load", lambda: load(pressure("cpu"), os.getloadavg()[0], os.cpu_count() or 1)),
        ("cores", lambda: cores(cpu_limits(), usable_cpus(), os.cpu_count() or 1)),
        ("quiet cores", _quiet_cores),
        ("memory", _memory),
        ("swap", lambda: swap(psutil.swap_memory().used, pressure("memory"))),
        ("shared memory", _shared_memory),
        ("scripts", lambda: scripts(why_unguarded(Path.cwd()))),
        ("open files", lambda: open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))),
    )


def scripts(problem: str) -> Check:
    """Returns a check of what keeps scripts from changing the user's files.

    Args:
        problem: Why they are not guarded; empty if they are.
    """
    if not problem:
        text = "scripts run under guard: they read your files, and what they write goes to a scratch folder"
        return Check("scripts", State.OK, text)
    remedy = "Absolute paths still lead to your own files: `sweeper watch` names those that a script writes"
    return Check("scripts", State.WARN, f"scripts run in a copy of their folder: {problem}", remedy)


def load(pressure_pct: float | None, load_1min: float, num_cores: int) -> Check:
    """Returns a check of what else is running.

    Args:
        pressure_pct: Share of the last 10 s in which something waited for a core; None if unknown.
        num_cores: Cores of the machine, usable or not, because the load counts all processes.
    """
    waits = "" if pressure_pct is None else f"; processes waited for {pressure_pct:.0f}% of the last 10 s"
    text = f"load {load_1min:.2g} on {num_cores} cores in the last minute{waits}"
    busy = load_1min > LOADED * num_cores or (pressure_pct or 0.0) >= BUSY_PCT
    remedy = "Something else is running (see `top`), so timings will be repeated: end it, or wait"
    return make_check("load", text, [(busy, State.WARN, remedy)])


def cores(limits: Mapping[str, float], usable: int, num_cores: int) -> Check:
    """Returns a check of the usable cores and what limits them."""
    if usable >= num_cores:
        text = f"all {num_cores} cores are usable" if num_cores > 1 else "the machine has a single core"
    else:
        tightest = min(limits, key=lambda name: limits[name])
        text = f"{usable} of {num_cores} cores are usable, limited by {tightest}"
    remedy = (
        "Loader workers compete with training: request more cores (`--cpus-per-task`, `--cpus`), or keep "
        f"`loader.kind: {RESIDENT}` in the space, which needs no workers"
    )
    return make_check("cores", text, [(usable == 1, State.WARN, remedy)])


def quiet_cores(isolated: str, stolen_pct: float) -> Check:
    """Returns a check of the cores that are kept free of other processes, where timings are steadier.

    Args:
        isolated: Cores that the kernel keeps free (`isolcpus`, cpuset partitions), in its notation: `2-5`.
        stolen_pct: Share of the cores' time that a host gave to other machines.
    """
    free = (
        f"cores {isolated} are kept free of other processes, and are used only if asked for:"
        f" `taskset -c {isolated} sweeper run ...`"
    )
    text = free if isolated else "no core is kept free of other processes (`isolcpus`, or a cpuset partition)"
    if stolen_pct >= STOLEN_PCT:
        text += f"; the host gave {stolen_pct:.0f}% of this machine's time to others"
    return make_check("quiet cores", text, [])


def _quiet_cores() -> Check:
    times = psutil.cpu_times()
    try:
        isolated = ISOLATED.read_text(encoding="ascii").strip()
    except OSError:
        isolated = ""
    return quiet_cores(isolated, 100 * times.steal / max(sum(times[:8]), 1e-9))


def memory(total: int, free: int, group: tuple[int, int] | None) -> Check:
    """Returns a check of the memory.

    Args:
        group: Limit of the control group, and how much of it is left; None if there is no limit.
    """
    text = f"{free / GIB:.3g} of {total / GIB:.3g} GiB are free"
    if group is not None and group[0] < total:
        text += f"; the control group leaves {group[1] / GIB:.3g} of {group[0] / GIB:.3g} GiB"
        free = min(free, group[1])
    remedy = "The kernel kills trials when memory runs out: free some, or request more"
    return make_check("memory", text, [(free < MIN_MEMORY, State.WARN, remedy)])


def _memory() -> Check:
    ram = psutil.virtual_memory()
    return memory(ram.total, ram.available, group_memory())


def swap(used: int, pressure_pct: float | None) -> Check:
    """Returns a check of memory that is swapped out; idle swap disturbs nothing."""
    text = f"{used / GIB:.2g} GiB are swapped out" if used else "nothing is swapped out"
    swapping = bool(used) and (pressure_pct or 0.0) >= SWAPPING_PCT
    if swapping:
        text += f", and processes waited for memory {pressure_pct:.0f}% of the last 10 s"
    remedy = "End the processes that use the memory: timings mean nothing until then"
    return make_check("swap", text, [(swapping, State.WARN, remedy)])


def shared_memory(total: int, free: int) -> Check:
    """Returns a check of /dev/shm, through which loader workers hand over their batches."""
    docker = " (Docker's default)" if total == DOCKER_SHM else ""
    text = f"/dev/shm has {_size(total)}{docker}, {_size(free)} free"
    remedy = (
        f"Loader workers die with a bus error when it is full: make it {_size(MIN_SHM)} or more. Docker: "
        "`--shm-size=8g` or `--ipc=host`; otherwise `mount -o remount,size=8G /dev/shm`"
    )
    if total >= MIN_SHM:
        remedy = "Remove leftover files from /dev/shm"
    return make_check("shared memory", text, [(free < MIN_SHM, State.WARN, remedy)])


def _shared_memory() -> Check:
    try:
        volume = os.statvfs(SHM)
    except OSError:
        remedy = "Loader workers need it: `mount -t tmpfs tmpfs /dev/shm`"
        return Check("shared memory", State.WARN, "there is no /dev/shm", remedy)
    return shared_memory(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)


def open_files(soft: int, hard: int) -> Check:
    """Returns a check of the limit on open files; each batch in flight uses several."""

    def describe(limit: int) -> str:
        return "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"

    text = f"{describe(soft)} per process (hard limit: {describe(hard)})"
    enough = hard == resource.RLIM_INFINITY or hard >= MIN_FILES
    remedy = (
        f"Run `ulimit -n {MIN_FILES if hard < 0 else max(MIN_FILES, min(hard, 65536))}` before `sweeper run`"
    )
    if not enough:
        remedy = "Raise nofile in /etc/security/limits.conf; Docker: `--ulimit nofile=65536`"
    few = soft != resource.RLIM_INFINITY and soft < MIN_FILES
    return make_check("open files", text, [(few, State.WARN, remedy)])


def pressure(what: str) -> float | None:
    """Returns the share of the last 10 s, in percent, in which something waited for `what` (PSI)."""
    try:
        text = (PRESSURE / what).read_text(encoding="ascii")
        return float(text.partition("avg10=")[2].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _size(size: int) -> str:
    return f"{size / GIB:.3g} GiB" if size >= GIB else f"{size / MIB:.3g} MiB"
