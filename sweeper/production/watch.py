"""Follows the history of a production run as it grows, and samples the machine."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sweeper.core.contamination import of_gpu
from sweeper.core.training import HISTORY
from sweeper.production.folder import SYSTEM, RunFolder
from sweeper.production.request import RunRequest
from sweeper.telemetry.probes import make_probes
from sweeper.telemetry.sampler import TIME, ProbeSampler

SYSTEM_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a production run.

    Attributes:
        epochs: Epochs completed so far, out of `total`.
        throughput: Samples per second of the latest block.
        ratio: `throughput` over the promised speed; None if nothing was promised.
        val_loss: The latest validation loss; None before the first.
        utilisation: Such as `GPU 91%`, or the CPU's; empty before the first reading.
        seconds_left: Estimated seconds to the end; None until they can be estimated.
    """

    epochs: float
    total: int
    throughput: float
    ratio: float | None
    loss: float
    val_loss: float | None
    utilisation: str
    seconds_left: float | None


class Watcher(Protocol):
    """Receives the progress of a run."""

    def line(self, text: str) -> None:
        """Receives a note for the user."""

    def state(self, now: RunState) -> None:
        """Receives the current state, a few times per second."""

    def validated(self, epoch: int, now: RunState, *, better: bool) -> None:
        """Receives the state after a validation; `better` if its loss is the lowest so far."""


class Watch:
    """Reads the trainer's history, samples the machine and informs a watcher."""

    def __init__(self, folder: RunFolder, wanted: RunRequest, watcher: Watcher) -> None:
        self.watcher = watcher
        self._folder, self._wanted = folder, wanted
        path = folder.path / HISTORY
        # Existing lines belong to an earlier attempt; each attempt starts a new file.
        self._inode, self._read = (path.stat().st_ino, path.stat().st_size) if path.exists() else (0, 0)
        self._sampler: ProbeSampler | None = None
        self._sampled_at = 0.0
        self._utilisation = ""
        self._now: RunState | None = None
        self._began: tuple[float, float] | None = None
        self._num_sampled = sum(1 for _ in folder.system())
        self._best = min(
            (line["val_loss"] for line in folder.history() if line.get("val_loss") is not None),
            default=math.inf,
        )

    def look(self) -> None:
        """Reads and reports new lines, and samples the machine when that is due."""
        for line in self._new_lines():
            if "pid" in line:
                self._start_sampling(line["pid"], line["device"]["uuid"])
            elif "loss" in line:
                self._now = self._state_of(line)
            elif self._now is not None:
                self._report_validation(line)
        if self._sampler is not None and time.monotonic() - self._sampled_at >= SYSTEM_SECONDS:
            self._sample(self._sampler)
        if self._now is not None:
            self.watcher.state(self._now)

    def close(self) -> None:
        """Reads the last lines, and ends sampling."""
        self.look()
        if self._sampler is not None:
            self._sample(self._sampler)
            self._sampler.stop()
            self._sampler = None

    def disturbed_seconds(self) -> dict[str, float]:
        """Returns the seconds in which something disturbed the GPU, by reason."""
        seconds: dict[str, float] = {}
        for line in self._folder.system():
            for flag in line["flags"]:
                seconds[flag] = seconds.get(flag, 0.0) + SYSTEM_SECONDS
        return seconds

    def _new_lines(self) -> list[dict[str, Any]]:
        path = self._folder.path / HISTORY
        if not path.exists():
            return []
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._read = inode, _last_begin(file.read())
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _state_of(self, line: Mapping[str, Any]) -> RunState:
        promise = self._wanted.promise
        total = self._wanted.training.epochs
        self._began = self._began or (line["seconds"], line["epochs"])
        since, done = line["seconds"] - self._began[0], line["epochs"] - self._began[1]
        return RunState(
            epochs=line["epochs"],
            total=total,
            throughput=line["throughput"],
            ratio=line["throughput"] / promise.throughput if promise else None,
            loss=line["loss"],
            val_loss=self._now.val_loss if self._now else None,
            utilisation=self._utilisation,
            seconds_left=since / done * (total - line["epochs"]) if done > 0 else None,
        )

    def _report_validation(self, line: Mapping[str, Any]) -> None:
        assert self._now is not None
        loss = line.get("val_loss")
        self._now = dataclasses.replace(self._now, val_loss=loss)
        better = loss is not None and loss < self._best
        self._best = loss if better else self._best
        self.watcher.validated(line["epoch"], self._now, better=better)

    def _start_sampling(self, pid: int, uuid: str) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self._sampler = ProbeSampler(make_probes())
        self._sampler.start(pid, uuid)
        self._sampler.request_slow_readings()
        self._sampled_at = time.monotonic()

    def _sample(self, sampler: ProbeSampler) -> None:
        self._sampled_at = time.monotonic()
        means = _means(sampler.drain())
        # The answer comes with the next sample.
        sampler.request_slow_readings()
        if not means:
            return
        self._utilisation = _utilisation(means)
        line = {
            "at": round(time.time(), 3),
            "seconds": self._num_sampled * SYSTEM_SECONDS,
            "means": {name: float(f"{value:.5g}") for name, value in means.items()},
            "flags": list(of_gpu(means)),
        }
        with open(self._folder.path / SYSTEM, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
        self._num_sampled += 1


def _last_begin(text: bytes) -> int:
    """Returns the offset at which the latest attempt begins; earlier lines belong to earlier attempts."""
    return text.rfind(b"\n", 0, text.rfind(b'"pid"')) + 1


def _means(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    means = {}
    for name, values in columns.items():
        numbers = [value for value in values if not math.isnan(value)]
        if name != TIME and numbers:
            means[name] = statistics.fmean(numbers)
    return means


def _utilisation(means: Mapping[str, float]) -> str:
    for name, label in (("gpu_util_pct", "GPU"), ("cpu_util_pct", "CPU")):
        if name in means:
            return f"{label} {means[name]:.0f}%"
    return ""
