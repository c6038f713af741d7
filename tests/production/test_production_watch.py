"""Watching: each line once, whatever becomes of the attempts that write them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from productions import block, commit, validation, write

from sweeper.core.training import HISTORY
from sweeper.production import watch as watching
from sweeper.production.folder import RunFolder
from sweeper.production.watch import RunState, Watch
from sweeper.system.files import write_atomic
from sweeper.telemetry.sampler import TIME


class Seen:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.nows: list[RunState] = []
        self.epochs: list[tuple[int, float | None, bool]] = []

    def line(self, text: str) -> None:
        raise AssertionError(text)

    def state(self, now: RunState) -> None:
        self.nows.append(now)

    def validated(self, epoch: int, now: RunState, *, better: bool) -> None:
        self.epochs.append((epoch, now.val_loss, better))


class Still:
    """A sampler that reads nothing."""

    begun: list[int]

    def __init__(self, probes: Any) -> None:
        self.read: dict[str, list[float]] = {}

    def start(self, pid: int, uuid: str) -> None:
        self.begun.append(pid)

    def request_slow_readings(self) -> None:
        """Asks for what others do on the GPU, which is read between windows only."""

    def drain(self) -> dict[str, list[float]]:
        found, self.read = self.read, {}
        return found

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> type[Still]:
    Still.begun = []
    monkeypatch.setattr(watching, "ProbeSampler", Still)
    return Still


def attempt(folder: RunFolder, pid: int) -> None:
    """Begins one, as the trainer does: with the committed part of the history, in a file of its own."""
    path = folder.path / HISTORY
    kept = path.read_text()[: folder.committed_bytes()] if path.exists() else ""
    begin = {"at": 1.0, "steps": 0, "seconds": 0.0, "pid": pid, "device": {"uuid": ""}}
    write_atomic(path, kept + json.dumps(begin) + "\n")


def test_each_line_is_told_once(folder: RunFolder, ask: Any, still: type[Still]):
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    watch.look()
    assert seen.nows == []
    attempt(folder, 11)
    watch.look()
    assert still.begun == [11]
    write(folder, block(10, 4.0), validation(20, 8.0, 0.5))
    watch.look()
    watch.look()
    assert seen.epochs == [(1, 0.5, True)]
    write(folder, block(30, 12.0), validation(40, 16.0, 0.6), block(45, 18.0), validation(60, 24.0, 0.4))
    watch.look()
    assert seen.epochs == [(1, 0.5, True), (2, 0.6, False), (3, 0.4, True)]
    now = seen.nows[-1]
    assert (now.epochs, now.total, now.loss, now.val_loss) == (2.25, 3, 1 / 46, 0.4)
    assert now.throughput == 9503.0
    assert now.ratio == pytest.approx(0.9503)
    # From 0.5 epochs at 4 s to 2.25 at 18 s: 8 s an epoch.
    assert now.seconds_left == pytest.approx(6.0)


def test_a_line_half_written_is_waited_for(folder: RunFolder, ask: Any):
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    attempt(folder, 11)
    line = json.dumps(block(10, 4.0))
    with open(folder.path / HISTORY, "a") as file:
        file.write(line[:25])
        file.flush()
        watch.look()
        assert seen.nows == []
        file.write(line[25:] + "\n")
    watch.look()
    assert seen.nows[-1].epochs == 0.5


@pytest.mark.parametrize("more", [1, 40], ids=["shorter", "longer"])
def test_after_an_attempt_was_lost_the_next_one_is_followed(
    more: int, folder: RunFolder, ask: Any, still: type[Still]
):
    """It is tried again, beside the same watch, and may have written less or more than the lost one."""
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    attempt(folder, 11)
    write(folder, block(10, 4.0), validation(20, 8.0, 0.5))
    commit(folder)
    write(folder, *(block(20 + i, 9.0) for i in range(10)))
    watch.look()
    attempt(folder, 22)
    write(folder, *(block(21 + i, 10.0) for i in range(more)), validation(40, 16.0, 0.6))
    # A checkpoint there already must not hide what this attempt began with.
    commit(folder)
    watch.look()
    assert still.begun == [11, 22]
    assert seen.epochs == [(1, 0.5, True), (2, 0.6, False)]
    assert seen.nows[-1].epochs == (20 + more) / 20


def test_what_an_earlier_run_wrote_is_not_told_again(folder: RunFolder, ask: Any, still: type[Still]):
    attempt(folder, 11)
    write(folder, block(10, 4.0), validation(20, 8.0, 0.5))
    commit(folder)
    write(folder, block(25, 9.0))
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    folder.forget_uncommitted()
    watch.look()
    assert (seen.nows, still.begun) == ([], [])
    attempt(folder, 22)
    write(folder, block(30, 12.0), validation(40, 16.0, 0.6))
    watch.look()
    assert still.begun == [22]
    # The best loss of before is known.
    assert seen.epochs == [(2, 0.6, False)]


def test_a_loss_that_is_no_number_is_never_the_best(folder: RunFolder, ask: Any):
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    attempt(folder, 11)
    write(
        folder, block(10, 4.0), validation(20, 8.0, None), validation(40, 9.0, 0.0), validation(60, 10.0, 1.0)
    )
    watch.look()
    assert seen.epochs == [(1, None, False), (2, 0.0, True), (3, 1.0, False)]


def test_the_machine_is_read_beside_it(folder: RunFolder, ask: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watching, "SYSTEM_SECONDS", 0.0)
    watch = Watch(folder, ask(), Seen())
    attempt(folder, 11)
    watch.look()
    nan = float("nan")
    for busy in (80.0, 40.0):
        assert isinstance(watch._sampler, Still)
        watch._sampler.read = {
            TIME: [1.0, 2.0],
            "cpu_util_pct": [busy, nan],
            "gpu_foreign_processes": [1.0, 1.0],
            "gone": [nan, nan],
        }
        watch.look()
        watch.look()
    first, second = folder.system()
    assert first["means"] == {"cpu_util_pct": 80.0, "gpu_foreign_processes": 1.0}
    assert second["means"]["cpu_util_pct"] == 40.0
    assert first["flags"] == ["other processes used the GPU"]


def test_readings_are_numbered_through_all_attempts(
    folder: RunFolder, ask: Any, monkeypatch: pytest.MonkeyPatch
):
    for pid in (11, 22):
        watch = Watch(folder, ask(), Seen())
        attempt(folder, pid)
        watch.look()
        monkeypatch.setattr(watching, "SYSTEM_SECONDS", 0.0)
        for _ in range(2):
            assert isinstance(watch._sampler, Still)
            watch._sampler.read = {TIME: [1.0], "gpu_foreign_processes": [1.0]}
            monkeypatch.setattr(watching, "SYSTEM_SECONDS", 5.0)
            watch._sample(watch._sampler)
        watch.close()
    assert [line["seconds"] for line in folder.system()] == [0.0, 5.0, 10.0, 15.0]
    assert watch.disturbed_seconds() == {"other processes used the GPU": 20.0}


def test_a_real_process_is_really_read(
    folder: RunFolder, ask: Any, here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    monkeypatch.chdir(here)
    monkeypatch.setattr(watching, "SYSTEM_SECONDS", 0.0)
    seen = Seen()
    watch = Watch(folder, ask(), seen)
    attempt(folder, os.getpid())
    write(folder, block(10, 4.0))
    deadline = time.monotonic() + 30
    while not list(folder.system()) and time.monotonic() < deadline:
        watch.look()
        write(folder, block(11, 5.0))
        time.sleep(0.01)
    watch.look()
    watch.close()
    means = next(iter(folder.system()))["means"]
    assert means["tree_mem_gib"] > 0
    assert seen.nows[-1].utilisation.endswith("%")
