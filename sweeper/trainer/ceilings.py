"""The ceilings job: measures how fast this machine's parts are on their own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.core import loaders
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.core.units import GIB, MIB
from sweeper.system.cpu import usable_cpus
from sweeper.system.process import time_limit
from sweeper.trainer import device as devices
from sweeper.trainer.data import make_loader
from sweeper.trainer.pipeline import Samples
from sweeper.trainer.step.compiling import CompileWatch
from sweeper.trainer.support import lacks, lacks_compiler

SECONDS = 0.2
"""Seconds for each figure; the best repeat counts, because a disturbance only ever adds time."""

STRETCH_SECONDS = 0.02
COMPILE_SECONDS = 30.0
FEATURES, ROWS, BATCH = 30, 50_000, 512

Ceilings = Iterator[tuple[str, float, str]]
"""Name, value and unit; a GPU's names begin with `cuda:N.`."""


def run(job: Job, progress: Progress) -> Report:
    """Returns torch's build, the devices and what they lack, whether torch compiles, and ceilings.

    If `job.device` is `cpu`, nothing is asked of CUDA, which may hang.
    A problem with one GPU or with the compiler is reported under `problem`, and the others are
    still measured. Compiled code is kept in `job.cache`, and the disk is measured there; without
    `job.cache`, the code is not kept and the disk is not measured.
    """
    ceilings: list[dict[str, Any]] = [
        {"name": "process.start_with_torch", "value": _age_seconds(), "unit": "s"}
    ]
    progress.stage("torch")
    values: dict[str, Any] = {"ceilings": ceilings}
    asks_cuda = job.device != "cpu"
    values["torch"] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "arch_list": torch.cuda.get_arch_list() if asks_cuda else [],
        "problem": _cuda_problem() if asks_cuda else "",
    }
    infos = [devices.describe(torch.device("cuda", i)) for i in range(_num_visible() if asks_cuda else 0)]
    progress.stage("cpu")
    torch.set_num_threads(usable_cpus())
    cpu = devices.describe(torch.device("cpu"))
    problem = _collect(ceilings, _host(lacks(cpu)))
    values["cpu"] = {**encode(cpu), "lacks": lacks(cpu), "problem": problem}
    values["gpus"] = []
    for index, info in enumerate(infos):
        progress.stage(f"cuda:{index}")
        problem = _collect(ceilings, _gpu(index, lacks(info)))
        values["gpus"].append({**encode(info), "lacks": lacks(info), "problem": problem})
    progress.stage("loader")
    values["loader"] = {"problem": _collect(ceilings, _loader())}
    if job.cache:
        progress.stage("disk")
        values["disk"] = {"problem": _collect(ceilings, _disk(Path(job.cache)))}
    progress.stage("compile")
    device = torch.device("cuda" if infos and not values["gpus"][0]["problem"] else "cpu")
    values["compile"] = _compilation(job, device)
    return Report(values=values, finished_at=time.time())


def best_seconds(call: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Returns the best time of `call` in seconds.

    It is called often enough between two clock readings that their cost does not matter.

    Args:
        wait: Returns once all calls have completed; called before the clock is read.
    """
    call()
    wait()
    best, count = math.inf, 1
    began = time.perf_counter()
    while True:
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        end = time.perf_counter()
        best = min(best, (end - start) / count)
        if end - began > SECONDS:
            return best
        if end - start < STRETCH_SECONDS:
            count *= 2


def _collect(into: list[dict[str, Any]], measured: Ceilings) -> str:
    """Appends the measurements to a list; returns the error that ended them, or an empty string."""
    try:
        for name, value, unit in measured:
            into.append({"name": name, "value": value, "unit": unit})
    except Exception as error:
        return first_line(error)
    return ""


def first_line(error: BaseException) -> str:
    """Returns an exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def _host(unsupported: Mapping[str, str]) -> Ceilings:
    threads = torch.get_num_threads()
    for name in ("fp32", "bf16", "fp16"):
        if f"precision.amp={name}" in unsupported:
            continue
        if threads > 1:
            torch.set_num_threads(1)
            try:
                yield f"cpu.matmul_{name}_one_thread", matmul(name, 1024) / 1e9, "GFLOP/s"
            finally:
                torch.set_num_threads(threads)
        yield f"cpu.matmul_{name}", matmul(name, 2048 if threads > 8 else 1024) / 1e9, "GFLOP/s"
    source = torch.ones(128 * MIB, dtype=torch.uint8)
    target = torch.empty_like(source)
    yield "cpu.memory_copy", source.nbytes / GIB / best_seconds(lambda: target.copy_(source)), "GiB/s"
    number = torch.ones(1)
    yield "cpu.small_operations", 1 / best_seconds(lambda: number.add_(0.0)), "1/s"


_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matmul(name: str, size: int, device: str = "cpu", wait: Callable[[], object] = lambda: None) -> float:
    """Returns operations per second of multiplying two square matrices (2 size^3 per product)."""
    left, right = (torch.randn(size, size, device=device).to(_TYPES[name]) for _ in range(2))
    into = torch.empty_like(left)
    return 2 * size**3 / best_seconds(lambda: torch.mm(left, right, out=into), wait)


def _gpu(index: int, unsupported: Mapping[str, str]) -> Ceilings:
    """Yields a GPU's ceilings; a memory copy counts a byte once, though it is read and written."""
    name = f"cuda:{index}"
    before = torch.get_float32_matmul_precision()
    with torch.cuda.device(index):
        try:
            yield from (
                (f"{name}.{what}", value, unit) for what, value, unit in _gpu_speeds(name, unsupported)
            )
        finally:
            torch.set_float32_matmul_precision(before)
            torch.cuda.empty_cache()


def _gpu_speeds(name: str, unsupported: Mapping[str, str]) -> Ceilings:
    wait = torch.cuda.synchronize
    free = torch.cuda.mem_get_info()[0]
    size = 8192 if free > 4 * GIB else 2048
    for kind in ("fp32", "tf32", "bf16", "fp16"):
        if f"precision.amp={kind}" in unsupported or (
            kind == "tf32" and "precision.tf32=True" in unsupported
        ):
            continue
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        yield f"matmul_{kind}", matmul(kind, size, name, wait) / 1e12, "TFLOP/s"
    source = torch.ones(min(GIB, free // 8), dtype=torch.uint8, device=name)
    target = torch.empty_like(source)
    yield "memory_copy", source.nbytes / GIB / best_seconds(lambda: target.copy_(source), wait), "GiB/s"
    part = target[: 256 * MIB]
    for kind in ("pinned", "pageable"):
        seconds = best_seconds(_copier(part, _host_tensor(part.nbytes, pinned=kind == "pinned")), wait)
        yield f"copy_from_{kind}", part.nbytes / GIB / seconds, "GiB/s"
    number = torch.ones(1, device=name)
    yield "small_kernels", 1 / best_seconds(lambda: number.add_(0.0), wait), "1/s"


def _host_tensor(num_bytes: int, *, pinned: bool) -> Tensor:
    return torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)


def _copier(target: Tensor, source: Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _loader() -> Ceilings:
    """Yields samples per second for rows of 30 numbers, singly and in batches, without workers."""
    tensors = {"x": torch.randn(ROWS, FEATURES), "y": torch.randn(ROWS)}
    samples = Samples(tensors=tensors, length=ROWS)
    for name, kind in ((loaders.ROWS, loaders.ROWS), ("whole_batches", loaders.WORKERS)):
        config = TrialConfig().replace({"loader.kind": kind, "loader.num_workers": 0})
        loader = make_loader(samples, config.loader, BATCH, 0, torch.device("cpu"))
        loader.start()
        yield f"loader.{name}", BATCH / best_seconds(loader.next), "samples/s"
        loader.close()


def _disk(folder: Path) -> Ceilings:
    """Yields the speed of reading an uncached file (if the disk's cache can be dropped)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".read-{os.getpid()}"
    size = 64 * MIB
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        piece = os.urandom(MIB)
        for _ in range(size // MIB):
            os.write(descriptor, piece)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(descriptor, 0, os.SEEK_SET)
        began = time.perf_counter()
        while os.read(descriptor, 4 * MIB):
            pass
        yield "home.disk_read", size / GIB / (time.perf_counter() - began), "GiB/s"
    finally:
        os.close(descriptor)
        path.unlink()


def _compilation(job: Job, device: torch.device) -> Mapping[str, Any]:
    """Returns the time to compile a small network's step, or why it could not be compiled."""
    compilation: dict[str, Any] = {
        "device": device.type,
        "seconds": 0.0,
        "cache": "",
        "problem": lacks_compiler(),
    }
    if compilation["problem"]:
        return compilation
    began = time.perf_counter()
    try:
        with time_limit(COMPILE_SECONDS):
            config = TrialConfig().replace({"compile.mode": "default"})
            watch = CompileWatch(config, Path(job.cache) if job.cache else None)
            _compile_step(device)
            compilation["cache"] = watch.cache
    except Exception as error:
        late = time.perf_counter() - began >= COMPILE_SECONDS
        compilation["problem"] = f"not done within {COMPILE_SECONDS:g} s" if late else first_line(error)
    compilation["seconds"] = time.perf_counter() - began
    return compilation


def _compile_step(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    batch = torch.randn(256, FEATURES).to(device)

    def loss(x: Tensor) -> Tensor:
        error: Tensor = model(x).square().mean()
        return error

    value, expected = torch.compile(loss)(batch), loss(batch)
    value.backward()
    if not math.isclose(value.item(), expected.item(), rel_tol=1e-2):
        raise ArithmeticError(f"the compiled loss is {value.item()}, but the eager one is {expected.item()}")


def _num_visible() -> int:
    return devices.num_visible() if torch.cuda.is_available() else 0


def _cuda_problem() -> str:
    """Returns why a CUDA build of torch cannot use CUDA; empty if it can, or for other builds."""
    if torch.version.cuda is None:
        return ""
    try:
        torch.cuda.init()
    except Exception as error:
        return first_line(error)
    return ""


def _age_seconds() -> float:
    """Returns the seconds since this process was started, which include importing torch."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
