"""Reads a loader's rows in child processes, as its workers would; leaves the script's process as it is."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..change import ChangeRefusedError


def be_worker(torch: Any, loader: Any, number: int, count: int | None = None) -> None:
    """Makes a child look to the data set like one of the loader's workers, or like one of `count`."""
    if count := loader.num_workers if count is None else count:
        worker = torch.utils.data._utils.worker
        worker._worker_info = worker.WorkerInfo(
            id=number % count, num_workers=count, seed=number, dataset=loader.dataset
        )


def seed_worker(torch: Any, number: int, count: int, base_seed: int, dataset: Any) -> None:
    """Gives a process the generators of worker `number`, of `count`, as torch seeds a new one."""
    worker = torch.utils.data._utils.worker
    seed = base_seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    generate = getattr(worker, "_generate_state", None)
    if generate is not None and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(generate(base_seed, number))
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)


def _start(torch: Any, loader: Any, work: Callable[[], Any]) -> tuple[int, int]:
    """Runs `work` in a child; returns the child's id, and a descriptor from which to read its result.

    Raises:
        ChangeRefusedError: No process or no descriptor is left.
    """
    ends: tuple[int, ...] = ()
    try:
        ends = reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        for end in ends:
            os.close(end)
        raise ChangeRefusedError(f"no process can be started to read its rows ({error.strerror})") from error
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A cycle may hold a block of CUDA's that only the parent can free.
        gc.disable()
        # The parent's threads do not exist in the child.
        torch.set_num_threads(1)
        be_worker(torch, loader, 0)
        if loader.num_workers and loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        try:
            outcome = True, work()
        except ChangeRefusedError as refusal:
            outcome = False, str(refusal)
        except Exception as error:
            outcome = False, f"reading a row raised {type(error).__name__}: {error}"[:300]
        with os.fdopen(writing, "w", encoding="utf-8") as file:
            json.dump(outcome, file)
        status = 0
    finally:
        # Neither the script's exit handlers nor its `finally` blocks must run.
        os._exit(status)


def _wait_for(child: int, reading: int, deadline_s: float) -> Any:
    """Waits for a child, and returns its result.

    Raises:
        ChangeRefusedError: It refused, was late, or died.
    """
    import select

    pieces = []
    # Not `select`, which fails where a script has more than 1024 open files.
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    try:
        while True:
            left = deadline_s - time.perf_counter()
            if left <= 0 or not poller.poll(1e3 * left):
                raise ChangeRefusedError("its rows were not read in time")
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            pieces.append(piece)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        is_done, value = json.loads(b"".join(pieces))
    except ValueError as error:
        raise ChangeRefusedError("the process that read its rows died") from error
    if not is_done:
        raise ChangeRefusedError(value)
    return value


def result_of_child(torch: Any, loader: Any, work: Callable[[], Any], seconds: float) -> Any:
    """Runs `work` in a child, and returns its result.

    Raises:
        ChangeRefusedError: It refused, was late, or died.
    """
    return _wait_for(*_start(torch, loader, work), time.perf_counter() + seconds)


def fault_in_child(torch: Any, loader: Any, work: Callable[[], str], seconds: float) -> str:
    """Returns the fault that a child finds; empty if it finds none."""
    try:
        return str(result_of_child(torch, loader, work, seconds))
    except ChangeRefusedError as refusal:
        return str(refusal)


def results_of_children(
    torch: Any, loader: Any, works: Sequence[Callable[[], Any]], seconds: float
) -> list[Any]:
    """Runs children in parallel, and returns their results.

    Raises:
        ChangeRefusedError: One of them refused, was late, or died.
    """
    deadline_s = time.perf_counter() + seconds
    children, values = [], []
    faults: list[ChangeRefusedError] = []
    try:
        for work in works:
            children.append(_start(torch, loader, work))
    except ChangeRefusedError as refusal:
        # Those that have started are ended at once.
        faults.append(refusal)
        deadline_s = 0.0
    for child in children:
        try:
            values.append(_wait_for(*child, deadline_s))
        except ChangeRefusedError as refusal:
            faults.append(refusal)
    for fault in faults:
        raise fault
    return values
