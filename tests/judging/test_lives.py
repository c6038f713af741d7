"""Processes of scripts that take turns: one runs at a time, and there is an end for every fault."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import parts
import psutil
import pytest
from parts.noop import synthetic

from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.progress import TrialFailedError
from sweeper.judging import lives
from sweeper.judging.arms import Arm
from sweeper.judging.lives import CrowdedError, Measure, ScriptLives, TurnRequests
from sweeper.judging.speed import compare
from sweeper.race import race
from sweeper.race.log import Event, rounds_of
from sweeper.race.policy import Policy, Start
from sweeper.telemetry import room

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def taking(number: int, said: list[int], most: int = 1000, fault: Exception | None = None) -> Measure:
    def measure(turns: TurnRequests, seconds: float) -> Measurement:
        found = synthetic(float(number + 1))
        taken = 0
        while taken < most and turns.wait(found.windows[:1] * taken):
            said.append(number)
            taken += 1
        if fault is not None:
            raise fault
        return dataclasses.replace(found, windows=found.windows[:1] * taken)

    return measure


class OneRound(Policy):
    """A race whose answer is clear after a round."""

    def is_clear(self, complete: object) -> bool:
        return True


def raced(*measures: Measure) -> list[Event]:
    log: list[Event] = []
    with ScriptLives(measures) as processes:
        race.run(OneRound(arms=tuple(range(len(measures))), seconds=60.0), processes, log)
    return log


def test_each_takes_a_window_in_each_turn():
    said: list[int] = []
    (found,) = rounds_of(raced(taking(0, said), taking(1, said)))
    assert [len(life.turns) for life in found.lives.values()] == [3, 3]
    speeds = {arm: life.turns[0].samples / life.turns[0].seconds for arm, life in found.lives.items()}
    assert speeds == {0: 1.0, 1: 2.0}
    assert [sorted(said[at : at + 2]) for at in range(0, 6, 2)] == [[0, 1]] * 3


def test_a_training_that_is_short_ends_the_round():
    said: list[int] = []
    (found,) = rounds_of(raced(taking(0, said, most=2), taking(1, said)))
    assert said.count(0) == 2
    assert said.count(1) in (2, 3)
    assert len(found.lives[0].turns) == 2


def test_the_windows_of_a_training_that_takes_no_turn_count():
    def at_once(turns: TurnRequests, seconds: float) -> Measurement:
        return synthetic(5.0)

    (found,) = rounds_of(raced(taking(0, []), at_once))
    assert len(found.lives[1].turns) == len(synthetic(5.0).windows)


def test_a_fault_ends_all():
    threads: list[threading.Thread] = []

    def seen(measure: Measure) -> Measure:
        def measured(turns: TurnRequests, seconds: float) -> Measurement:
            threads.append(threading.current_thread())
            return measure(turns, seconds)

        return measured

    broken = taking(1, [], most=1, fault=ValueError("broken"))
    with pytest.raises(ValueError, match="broken"), ScriptLives([seen(taking(0, [])), seen(broken)]) as both:
        race.run(Policy(arms=(0, 1), seconds=60.0), both, [])
    assert len(threads) == 2
    assert not any(each.is_alive() for each in threads)


def test_without_room_one_follows_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ScriptLives, "has_company", lambda _: False)
    said: list[int] = []
    raced(taking(0, said), taking(1, said))
    assert said in ([1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("now", "is_single", "is_beside"),
    [(1.05, True, True), (5.0, False, True), (5.0, True, False), (5.4, False, True), (5.5, False, False)],
)
def test_what_uses_a_gpu_has_company_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, now: float, is_single: bool, is_beside: bool
):
    """Of 11 GiB, another program has 1, and a second process needs a quarter more than the first."""
    monkeypatch.setattr(room, "name_and_memory_gib", lambda _: ("A10", 11.0))
    monkeypatch.setattr(room, "is_exclusive", lambda _: is_single)
    found = itertools.chain([{"GPU-1": 1.0}, {"GPU-1": now}], itertools.repeat({"GPU-1": 1.0}))
    monkeypatch.setattr(lives, "gpu_memory_gib", lambda: next(found))
    said: list[int] = []
    raced(taking(0, said), taking(1, said))
    assert (len(set(said[:3])) == 2) == is_beside


def test_what_uses_cuda_runs_alone_where_nvml_lists_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    device = tmp_path / "nvidia-uvm"
    device.touch()
    monkeypatch.setattr(lives, "gpu_memory_gib", dict)
    monkeypatch.setattr(lives, "CUDA", str(device))

    def here(turns: TurnRequests, seconds: float) -> Measurement:
        turns.started(os.getpid())
        turns.wait([])
        return synthetic(1.0)

    for is_open in (False, True):
        with ScriptLives([here]) as alone, device.open() if is_open else contextlib.nullcontext():
            alone.start(0, Start(arm=0, round=0, turn_seconds=1.0))
            assert alone.has_company() != is_open
            alone.end(0)


def test_what_fails_beside_another_for_a_port_is_crowded_out():
    taken = TrialFailedError(FailureKind.USER_ERROR, "OSError: [Errno 98] Address already in use")

    def failing(turns: TurnRequests, seconds: float) -> Measurement:
        raise taken

    with ScriptLives([taking(0, []), failing]) as both:
        with pytest.raises(TrialFailedError) as alone:
            both.start(0, Start(arm=1, round=0, turn_seconds=1.0))
        assert type(alone.value) is TrialFailedError
        del both._running[0]
        both.start(1, Start(arm=0, round=0, turn_seconds=1.0))
        with pytest.raises(CrowdedError):
            both.start(2, Start(arm=1, round=0, turn_seconds=1.0))
        both.kill()


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
        found = compare(arms("0.004", "0.002"), 60.0, lambda line: None)
    finally:
        is_over.set()
        looking.join()
    assert stopped.count(1) > 0.8 * len(stopped) > 10
    both = (*found.before, *found.after)
    assert [len(each.windows) for each in both] == [3, 3]
    assert 1.5 < found.ratio < 2.2
    starts = sorted((w.start_s, w.start_s + w.seconds) for each in both for w in each.windows)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(starts))
    # Each has its own memory, though one process watches both.
    assert all(each.telemetry["tree_mem_gib"].p95 < 1.0 for each in both)


def test_versions_that_listen_on_the_same_port_follow_each_other(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("helper.py", "train.py"):
        text = (HERE / name).read_text(encoding="utf-8")
        listens = f"import socket\nserver = socket.create_server(('127.0.0.1', {port}))\n"
        (tmp_path / name).write_text(listens + text if name == "train.py" else text, encoding="utf-8")
    first, second = (
        dataclasses.replace(arm, folder=tmp_path, command=(*arm.command[:1], "train.py", *arm.command[2:]))
        for arm in arms("0.004", "0.002")
    )
    said: list[str] = []
    found = compare((first, second), 15.0, said.append)
    assert said[0] == "  the versions cannot run side by side, so they run one after the other"
    assert 1.5 < found.ratio < 2.2


@pytest.mark.parametrize("num_started", [0, 1, 2])
def test_an_interrupt_leaves_nothing_running(num_started: int):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_lives import arms\n"
        "from sweeper.judging.speed import compare\n"
        "print('begun', flush=True)\n"
        "compare(arms('0.004', '0.004'), 1000.0, print)"
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
    while len(scripts(process.pid)) < num_started and time.monotonic() < deadline:
        time.sleep(0.02)
    left = scripts(process.pid)
    assert len(left) == num_started
    time.sleep(2 if num_started == 2 else 0.3)
    left += scripts(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert time.monotonic() - began < 10
    process.stdout.close()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert alive == []


def scripts(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [each for each in children if "train.py" in " ".join(each.cmdline())]
