"""The meter: what it tells, and that it never costs a training anything."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.script import metering

MAX_SECONDS_A_STEP = 100e-6
"""20 us where nothing else runs."""


class Listener:
    """The sweep's end of the socket."""

    def __init__(self) -> None:
        self.name = f"sweeper-test-{os.getpid()}-{os.urandom(4).hex()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(b"\0" + self.name.encode())
        self.socket.setblocking(False)

    def messages(self) -> list[dict[str, Any]]:
        """What has come since it was asked last."""
        found = []
        while True:
            try:
                data = self.socket.recv(metering.MAX_BYTES)
            except BlockingIOError:
                return found
            found.append(json.loads(data, parse_constant=pytest.fail))

    def last(self) -> dict[str, Any]:
        return self.messages()[-1]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    listener = Listener()
    monkeypatch.setenv(metering.METER_VARIABLE, listener.name)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    yield listener
    listener.socket.close()
    with warnings.catch_warnings():
        # A meter's socket ends with the script.
        warnings.simplefilter("ignore", ResourceWarning)
        metering._reporting_meter.cache_clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metering, "time", SimpleNamespace(perf_counter=clock))
    return clock


@pytest.mark.parametrize("name", [None, ""])
def test_outside_of_a_sweep_nothing_is_done(monkeypatch, name):
    monkeypatch.delenv(metering.METER_VARIABLE, raising=False)
    if name is not None:
        monkeypatch.setenv(metering.METER_VARIABLE, name)
    monkeypatch.setattr(metering, "socket", None)
    meter = sweeper.meter()
    assert type(meter) is sweeper.Meter
    meter.step(samples=8, loss="not even looked at")
    with meter.pause():
        meter.evaluated("not even looked at")


def test_the_first_of_several_processes_speaks_for_all(monkeypatch, listener):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    sweeper.meter().step(samples=8)
    assert listener.messages() == []
    monkeypatch.setenv("RANK", "0")
    sweeper.meter().step(samples=8)
    assert listener.last()["samples"] == 32


def test_messages_say_all_since_the_beginning_and_are_few(listener, clock):
    meter = sweeper.meter()
    for _ in range(10):
        clock.wait(0.004)
        meter.step(samples=8)
    found = listener.messages()
    # The first step at once, the others when 10 ms have gone by.
    assert [message["steps"] for message in found] == [0, 1, 4, 7, 10]
    assert [message["samples"] for message in found] == [0, 8, 32, 56, 80]
    assert [message["t"] for message in found] == pytest.approx([100, 100.004, 100.016, 100.028, 100.04])
    assert all(message.keys() == {"t", "steps", "samples", "paused", "pausing"} for message in found)


def test_a_process_has_one_meter_however_often_it_is_asked_for(listener, clock):
    for _ in range(3):
        meter = sweeper.meter()
        clock.wait(1.0)
        meter.step(samples=8)
    assert [message["samples"] for message in listener.messages()] == [0, 8, 16, 24]


def test_samples_may_be_counted_by_numpy(listener):
    sweeper.meter().step(samples=np.int64(8))
    assert listener.last()["samples"] == 8


def test_a_listener_that_does_not_listen_misses_nothing_that_matters(listener, clock):
    meter = sweeper.meter()
    began = time.perf_counter()
    for _ in range(3000):
        clock.wait(1.0)
        meter.step(samples=8)
    assert time.perf_counter() - began < 1.0
    assert len(listener.messages()) < 3000
    clock.wait(1.0)
    meter.step(samples=8)
    assert listener.last()["steps"] == 3001


def test_a_listener_that_has_gone_is_not_missed(listener, clock):
    meter = sweeper.meter()
    listener.socket.close()
    for _ in range(3):
        clock.wait(1.0)
        meter.step(samples=8, loss=1.0)
    with meter.pause():
        meter.evaluated(1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_told_as_null(listener, clock, value):
    meter = sweeper.meter()
    meter.step(samples=8, loss=value)
    assert listener.last()["loss"] is None
    meter.evaluated(value)
    assert listener.last()["val"] == [8, None]


def test_losses_are_means_since_the_last_message(listener, clock):
    meter = sweeper.meter()
    meter.step(samples=8, loss=5.0)
    for loss in (1.0, 2.0, 6.0):
        clock.wait(0.004)
        meter.step(samples=8, loss=loss)
    clock.wait(0.02)
    meter.step(samples=8)
    found = listener.messages()
    assert [message.get("loss") for message in found] == [None, 5.0, 3.0, None]


def test_a_pause_counts_once_however_it_is_told(listener, clock):
    meter = sweeper.meter()
    meter.step(samples=8)
    clock.wait(0.001)
    meter.step(samples=8)
    listener.messages()

    # Nothing was told of the second step: it is, as of its own moment, before the pause begins.
    clock.wait(1.0)
    with meter.pause():
        last = listener.last()
        assert last == {"t": 100.001, "steps": 2, "samples": 16, "paused": 0.0, "pausing": True}
        clock.wait(5.0)
        meter.evaluated(2.5)
        assert listener.last()["val"] == [16, 2.5]
        with meter.pause():
            clock.wait(2.0)
        meter.evaluated(2.5)
        assert listener.last()["pausing"]
    last = listener.last()
    assert (last["paused"], last["pausing"]) == (pytest.approx(7.0), False)

    # At once after a pause there is nothing left to be left out.
    meter.evaluated(2.4)
    assert listener.last()["paused"] == pytest.approx(7.0)
    clock.wait(0.5)
    meter.step(samples=8)
    last = listener.last()
    assert (last["paused"], last["t"], last["val"]) == (pytest.approx(7.0), pytest.approx(108.501), [16, 2.4])


def test_an_evaluation_outside_of_a_pause_takes_the_time_since_the_last_step(listener, clock):
    meter = sweeper.meter()
    meter.step(samples=8)
    clock.wait(0.001)
    meter.step(samples=8)
    clock.wait(3.0)
    meter.evaluated(2.5)
    untold, told = listener.messages()[-2:]
    assert (untold["t"], untold["steps"], untold["paused"]) == (100.001, 2, 0.0)
    assert "val" not in untold
    assert (told["paused"], told["val"]) == (pytest.approx(3.0), [16, 2.5])
    clock.wait(1.0)
    meter.evaluated(2.5)
    assert listener.last()["paused"] == pytest.approx(4.0)


def test_a_pause_that_fails_is_over(listener, clock):
    meter = sweeper.meter()

    def fails() -> None:
        with meter.pause():
            clock.wait(2.0)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    clock.wait(1.0)
    meter.evaluated(1.0)
    assert listener.last()["paused"] == pytest.approx(3.0)


class OnGpu:
    """A tensor that must not be waited for."""

    is_cuda, shape, device = True, (1,), "cuda:1"

    def __init__(self, value: float) -> None:
        self.value = value

    def detach(self) -> OnGpu:
        return self

    def __float__(self) -> float:
        pytest.fail("this waits for the GPU")


class Copied:
    """What `torch.empty` gives: memory of the host, with nothing in it until the copy has come."""

    def copy_(self, source: OnGpu, non_blocking: bool) -> None:
        assert non_blocking
        self.source = source

    def __float__(self) -> float:
        return self.source.value


class Event:
    made: list[Event]

    def __init__(self) -> None:
        self.has_come = False
        self.made.append(self)

    def record(self, stream: str) -> None:
        assert stream == "the stream of cuda:1"

    def query(self) -> bool:
        return self.has_come


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    torch = ModuleType("torch")

    def empty(shape: tuple[int, ...], dtype: str, device: str, pin_memory: bool) -> Copied:
        # Only memory of the host can be pinned, whatever the script's default device is.
        assert (shape, dtype, device, pin_memory) == ((1,), "float32", "cpu", True)
        return Copied()

    cuda = SimpleNamespace(Event=Event, current_stream=lambda device: f"the stream of {device}")
    torch.__dict__.update(float32="float32", empty=empty, cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(Event, "made", [], raising=False)
    return Event.made


def test_a_loss_on_a_gpu_is_told_once_it_has_come(listener, clock, events):
    meter = sweeper.meter()
    for loss in (1.0, 3.0, 8.0):
        meter.step(samples=8, loss=OnGpu(loss))
        clock.wait(0.02)
    assert [message.get("loss") for message in listener.messages()] == [None] * 4
    events[0].has_come = events[1].has_come = True
    for _ in range(2):
        meter.step(samples=8)
        clock.wait(0.02)
    assert [message.get("loss") for message in listener.messages()] == [2.0, None]
    events[2].has_come = True
    meter.step(samples=8)
    assert listener.last()["loss"] == 8.0


def test_losses_do_not_pile_up_for_a_gpu_that_is_behind(listener, clock, events):
    meter = sweeper.meter()
    for _ in range(1000):
        meter.step(samples=8, loss=OnGpu(1.0))
    assert len(events) < 100


def test_a_real_tensor_with_a_history_is_read(listener):
    import torch

    meter = sweeper.meter()
    loss = torch.ones(1, requires_grad=True) * 3
    meter.step(samples=8, loss=loss)
    assert listener.last()["loss"] == 3.0
    meter.evaluated(loss)
    assert listener.last()["val"] == [8, 3.0]


def test_a_step_costs_little_with_nobody_listening(listener):
    meter = sweeper.meter()
    blocks = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(500):
            meter.step(samples=8, loss=0.5)
        blocks.append((time.perf_counter() - began) / 500)
    assert statistics.median(blocks) <= MAX_SECONDS_A_STEP


IMPORT = """
import sys, time
before, began = set(sys.modules), time.perf_counter()
import sweeper
print(time.perf_counter() - began, *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_the_import_is_the_standard_library_alone_and_quick():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True, env=environment
        )
        took, *names = done.stdout.split()
        assert "sweeper" in names
        assert set(names) <= {"sweeper", *sys.stdlib_module_names}
        seconds.append(float(took))
    assert min(seconds) < 0.2
