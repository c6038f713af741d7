"""Classifies failures: a table for the texts of exceptions and logs, and `of_exit` for exit statuses."""

from __future__ import annotations

import contextlib
import re
import signal

from sweeper.core.measurement import FailureKind

_TABLE: tuple[tuple[str, FailureKind], ...] = (
    # Descriptors and shared memory first: their messages also mention workers and memory, and those
    # of shared memory end with "Too many open files" if that is the cause.
    (r"Too many open files|received 0 items of ancdata", FailureKind.FD_LIMIT),
    (r"insufficient shared memory|unable to (open|mmap|allocate) shared memory|Bus error", FailureKind.SHM),
    (r"unable to (open|resize|stretch|write to|mmap [0-9]+ bytes from) file <[^>]*torch_", FailureKind.SHM),
    (r"No space left on device.*(/dev/shm|torch_)|/dev/shm.*No space left", FailureKind.SHM),
    (r"out of memory.*(CUDA|HIP|GPU)|(CUDA|HIP).*out of memory|OutOfMemoryError", FailureKind.OOM),
    (r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)", FailureKind.OOM),
    (r"CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)", FailureKind.OOM),
    (r"DataLoader worker.*(exited unexpectedly|killed by signal)", FailureKind.LOADER_WORKER_DIED),
    (
        # Xids of NVIDIA's catalogue: double-bit ECC, off the bus, GSP and contained errors.
        r"GPU is lost|has fallen off the bus|uncorrectable ECC|CUDA error: device.*lost"
        r"|GPU requires reset|NVML_ERROR_(GPU_IS_LOST|RESET_REQUIRED)"
        r"|Xid \([^)]*\): (48|79|94|95|119|140|154)\b",
        FailureKind.DEVICE_LOST,
    ),
    (r"CUDA-capable device(s are|\(s\) is/are) busy or unavailable", FailureKind.DEVICE_BUSY),
    (
        r"(DefaultCPUAllocator|DefaultAllocator).*(can't|not enough)|^(\S*\.)?(_Array)?MemoryError\b",
        FailureKind.HOST_OOM,
    ),
    (r"Cannot allocate memory", FailureKind.HOST_OOM),
    (r"could not create a primitive|not implemented for '|NotImplementedError", FailureKind.UNSUPPORTED),
    (r"no kernel image is available", FailureKind.UNSUPPORTED),
    (
        r"BackendCompilerFailed|InductorError|LoweringException|CppCompileError|torch\._(dynamo|inductor)\.exc|TritonError",
        FailureKind.COMPILE_ERROR,
    ),
)

_RULES = tuple((re.compile(pattern, re.MULTILINE | re.DOTALL), kind) for pattern, kind in _TABLE)


def of_text(text: str) -> FailureKind | None:
    """Returns the kind of failure in an exception (`Type: message`) or in a log's last lines."""
    return next((kind for rule, kind in _RULES if rule.search(text)), None)


def of_exit(status: int, log_tail: str, oom_kills: int) -> tuple[FailureKind, str]:
    """Returns kind and message for a trial that exited without a result.

    Args:
        status: As returned by os.waitpid.
        log_tail: The trial's last lines.
        oom_kills: How many processes the kernel's OOM killer killed meanwhile.
    """
    text_kind = of_text(log_tail)
    if number := status & 0x7F:
        name = signal.strsignal(number) if number >= signal.SIGRTMIN else signal.Signals(number).name
        if number == signal.SIGKILL:
            if oom_kills:
                return FailureKind.HOST_OOM, "the host ran out of memory, and the kernel killed the trial"
            return FailureKind.LOST, "the trial was killed from outside (SIGKILL)"
        if number == signal.SIGBUS:
            return FailureKind.SHM, "the trial crashed with SIGBUS: shared memory (/dev/shm) is full"
        if number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            return FailureKind.PREEMPTED, f"the trial was terminated from outside ({name})"
        return text_kind or FailureKind.CRASH, f"the trial crashed with {name}"
    code = _code(status)
    if code == 0:
        return FailureKind.NO_RESULT, "the trial exited with status 0 without a result"
    return text_kind or FailureKind.CRASH, f"the trial exited with status {code} without a result"


def oom_kills() -> int:
    """Returns how many processes the kernel's OOM killer has killed on this machine."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def with_oom_kills(kind: FailureKind, oom_kills: int) -> FailureKind:
    """Returns the kind of a reported failure, corrected if the kernel's OOM killer acted."""
    if kind is FailureKind.LOADER_WORKER_DIED and oom_kills:
        return FailureKind.HOST_OOM
    return kind


def _code(status: int) -> int:
    return (status >> 8) & 0xFF
