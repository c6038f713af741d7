"""Versions that take turns: one window each, in random order, and an end for every fault."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import parts
import psutil
import pytest
from parts.noop import synthetic

from sweeper.core.measurement import Measurement
from sweeper.judging import alternating
from sweeper.judging.alternating import Measure, Turns, alternated
from sweeper.judging.arms import Arm
from sweeper.judging.speed import log_ratio, one_round

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def taking(number: int, said: list[int], most: int = 1000, fault: Exception | None = None) -> Measure:
    def measure(turns: Turns) -> Measurement:
        taken = 0
        while taken < most and turns.wait(taken):
            said.append(number)
            taken += 1
        if fault is not None:
            raise fault
        return synthetic(float(number + 1))

    return measure


def test_each_takes_a_window_in_each_turn():
    said: list[int] = []
    found = alternated({0: taking(0, said), 1: taking(1, said)}, [1, 0], 6, random.Random(0))
    assert [each.throughput for each in found.values()] == [1.0, 2.0]
    assert [sorted(said[at : at + 2]) for at in range(0, 12, 2)] == [[0, 1]] * 6
    assert len({tuple(said[at : at + 2]) for at in range(0, 12, 2)}) == 2


def test_a_training_that_is_short_ends_the_turns():
    said: list[int] = []
    alternated({0: taking(0, said, most=2), 1: taking(1, said)}, [0, 1], 6, random.Random(0))
    assert said.count(0) == 2
    assert said.count(1) in (2, 3)


def test_a_fault_ends_all():
    threads: list[threading.Thread] = []

    def seen(measure: Measure) -> Measure:
        def measured(turns: Turns) -> Measurement:
            threads.append(threading.current_thread())
            return measure(turns)

        return measured

    broken = taking(1, [], most=1, fault=ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        alternated({0: seen(taking(0, [])), 1: seen(broken)}, [0, 1], 6, random.Random(0))
    assert len(threads) == 2
    assert not any(each.is_alive() for each in threads)


def test_without_room_one_follows_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alternating, "_has_room", lambda *_: False)
    said: list[int] = []
    alternated({0: taking(0, said), 1: taking(1, said)}, [1, 0], 3, random.Random(0))
    assert said == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("now", "is_beside"), [(1.05, True), (1.5, False)])
def test_what_uses_a_gpu_runs_alone(monkeypatch: pytest.MonkeyPatch, now: float, is_beside: bool):
    """A stopped process's queue would go on filling it."""
    found = iter([{"GPU-1": 1.0}, {"GPU-1": now}])
    monkeypatch.setattr(alternating, "_used_gib", lambda: next(found))
    said: list[int] = []
    alternated({0: taking(0, said), 1: taking(1, said)}, [1, 0], 3, random.Random(0))
    assert (said[:3] != [1, 1, 1]) == is_beside


def test_what_uses_cuda_runs_alone_where_nvml_lists_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    device = tmp_path / "nvidia-uvm"
    device.touch()
    monkeypatch.setattr(alternating, "_used_gib", dict)
    monkeypatch.setattr(alternating, "CUDA", str(device))
    turns = Turns()
    turns.started(os.getpid())
    assert alternating._has_room(turns, {})
    with device.open():
        assert not alternating._has_room(turns, {})


# -- with real scripts ------------------------------------------------------------------------------


def arms(*words: str) -> tuple[Arm, Arm]:
    first, second = (
        Arm(name=name, command=(sys.executable, "train.py", each), folder=HERE)
        for name, each in zip("ab", words, strict=True)
    )
    return first, second


@pytest.mark.soak
def test_stopped_scripts_measure_what_they_take_when_they_run():
    stopped: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            with contextlib.suppress(psutil.NoSuchProcess):
                states = [each.status() for each in scripts(os.getpid())]
                if len(states) == 2:
                    stopped.append(states.count(psutil.STATUS_STOPPED))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        found = one_round(arms("0.004", "0.002"), random.Random(0), 2)
    finally:
        is_over.set()
        looking.join()
    assert stopped.count(1) > 0.8 * len(stopped) > 10
    assert [len(each.windows) for each in found] == [2, 2]
    assert 0.4 < log_ratio(found) < 0.8
    starts = sorted((w.start_s, w.start_s + w.seconds) for each in found for w in each.windows)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(starts))
    # Each has its own memory, though one process watches both.
    assert all(each.telemetry["tree_mem_gib"].p95 < 1.0 for each in found)


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_running():
    code = (
        "import random, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_alternating import arms\n"
        "from sweeper.judging.speed import one_round\n"
        "print('begun', flush=True)\n"
        "one_round(arms('0.004', '0.004'), random.Random(0), 1000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(HERE), parts.FOLDER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 60
    while len(scripts(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    left = scripts(process.pid)
    assert len(left) == 2
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    process.stdout.close()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert alive == []


def scripts(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [each for each in children if "train.py" in " ".join(each.cmdline())]
