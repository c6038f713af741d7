"""From symptoms to kinds of failure; texts as torch, CUDA, Python and the kernel write them."""

from __future__ import annotations

import signal

import pytest

from sweeper.core.measurement import FailureKind
from sweeper.worker.failures import of_exit, of_text, with_oom_kills

TEXTS = [
    # pytorch/pytorch#5040, #1355, #973, #165532: shared memory and descriptors
    (
        "RuntimeError: DataLoader worker (pid 4161) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        "shm",
    ),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
        "memory (shm).",
        "shm",
    ),
    ("RuntimeError: unable to open shared memory object </torch_29919_1396> in read-write mode", "shm"),
    (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_5_1_0>: No space left on "
        "device (28)",
        "shm",
    ),
    ("RuntimeError: unable to write to file </torch_18692_1954506624>", "shm"),
    (
        "RuntimeError: unable to mmap 536870976 bytes from file </torch_7_1>: Cannot allocate memory (12)",
        "shm",
    ),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_21467'", "shm"),
    (
        "RuntimeError: unable to open shared memory object </torch_29919_1396> in read-write mode: Too many "
        "open files (24)",
        "fd_limit",
    ),
    ("OSError: [Errno 24] Too many open files: '/data/x.npy'", "fd_limit"),
    ("RuntimeError: received 0 items of ancdata", "fd_limit"),
    # LLaVA#392, lm-evaluation-harness#1689: what out of memory is also called
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity "
        "of 22.06 GiB of which 6.38 MiB is free.",
        "oom",
    ),
    ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "oom"),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "oom",
    ),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "oom"),
    (
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nOutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 2.00 GiB",
        "oom",
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 800000000000 bytes. Error code 12 (Cannot allocate memory)",
        "host_oom",
    ),
    ("MemoryError: ", "host_oom"),
    ("builtins.MemoryError: ", "host_oom"),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape "
        "(1000000000000,) and data type float64",
        "host_oom",
    ),
    ("OSError: [Errno 12] Cannot allocate memory", "host_oom"),
    # pytorch/pytorch#8976
    ("RuntimeError: DataLoader worker (pid 20655) is killed by signal: Killed.", "loader_worker_died"),
    ("RuntimeError: DataLoader worker (pid(s) 42, 43) exited unexpectedly", "loader_worker_died"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "device_lost"),
    ("NVMLError_GpuIsLost: GPU is lost", "device_lost"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "device_lost"),
    ("NVRM: Xid (PCI:0000:3b:00): 48, pid=12, Double Bit ECC Error", "device_lost"),
    ("NVRM: Xid (PCI:0000:3b:00): 119, Timeout waiting for RPC from GSP!", "device_lost"),
    # An application's own fault; the device goes on.
    ("NVRM: Xid (PCI:0000:3b:00): 31, MMU Fault", None),
    ("Unable to query: GPU requires reset", "device_lost"),
    ("AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "device_busy"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "device_busy"),
    ("torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)", "compile_error"),
    ("torch._inductor.exc.InductorError: LoweringException: AssertionError:", "compile_error"),
    ("torch._inductor.exc.TritonMissing: Cannot find a working triton installation.", "compile_error"),
    ("torch._inductor.exc.CppCompileError: C++ compile error", "compile_error"),
    ("ValueError: a mistake in the model", None),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x10 and 8x1)", None),
    ("RuntimeError: CUDA error: device-side assert triggered", None),
    ("OSError: [Errno 28] No space left on device: '/data/cache'", None),
    ("MyMemoryErrorReport: nothing wrong", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "kind"), TEXTS, ids=[text[:40] for text, _ in TEXTS])
def test_text(text: str, kind: str | None):
    assert of_text(text) == kind
    if kind:
        assert of_text(f"Traceback (most recent call last):\n  File x\n{text}\nsome more\n") == kind


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("status", "tail", "oom_kills", "kind", "message"),
    [
        (signal.SIGKILL, "", 0, "lost", "SIGKILL"),
        (signal.SIGKILL, "", 1, "host_oom", "host ran out of memory"),
        (signal.SIGBUS, "", 0, "shm", "/dev/shm"),
        (signal.SIGTERM, "", 0, "preempted", "SIGTERM"),
        (signal.SIGUSR1, "", 0, "preempted", "SIGUSR1"),
        (signal.SIGSEGV, "", 0, "crash", "the trial crashed with SIGSEGV"),
        (signal.SIGABRT | 0x80, "CUDA error: out of memory", 0, "oom", "SIGABRT"),
        (40, "", 0, "crash", "the trial crashed with"),
        (exited(0), "CUDA out of memory", 0, "no_result", "exited with status 0"),
        (exited(3), "", 0, "crash", "exited with status 3"),
        (exited(1), "RuntimeError: received 0 items of ancdata", 0, "fd_limit", "exited with status 1"),
    ],
)
def test_exit(status: int, tail: str, oom_kills: int, kind: str, message: str):
    got, text = of_exit(int(status), tail, oom_kills)
    assert got == kind
    assert message in text
    assert "\n" not in text


def test_a_loader_worker_that_the_kernel_killed_is_the_hosts_memory():
    assert with_oom_kills(FailureKind.LOADER_WORKER_DIED, 1) is FailureKind.HOST_OOM
    assert with_oom_kills(FailureKind.LOADER_WORKER_DIED, 0) is FailureKind.LOADER_WORKER_DIED
    assert with_oom_kills(FailureKind.OOM, 1) is FailureKind.OOM
