"""Collects a script's reports from torch, its meter, MLflow and its output, and uses the most trusted.

The hook and the meter send datagrams with their totals since the start, so that a lost one costs nothing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.core.quantities import COUNTS
from sweeper.core.script import Script
from sweeper.core.template import render
from sweeper.errors import UserError
from sweeper.script.metering import MAX_BYTES, METER_VARIABLE
from sweeper.script.run.events import MIN_COUNTS, EventStream, Sizes
from sweeper.script.run.mlflow_store import MlflowStore
from sweeper.script.run.patterns import Lines, Patterns, is_evaluation
from sweeper.script.run.timeline import Stretch, Timeline
from sweeper.script.run.watched import WatchedTraining

TORCH = "torch"
JUMP = 100.0
"""Ratio to the usual speed beyond which a speed must be in another unit."""
DISAGREE = 3.0
"""Largest plausible ratio between the printed speed and the speed of the counts."""
TOLERANCE = 0.03
"""Relative difference between two sources above which it is reported."""
KEPT_LINES, SHOWN_LINES = 400, 10
PARSED_AT_ONCE = 100
"""Lines parsed per read, so that a script that prints endlessly does not take up the processor."""
STORE_SECONDS = 0.25


class Listener:
    """Collects what a script reports.

    Attributes:
        watched: Reports from torch.
        examples: For each quantity in the output, its first value and the line it came from.
        num_lines: Number of lines of output so far.
        last_lines: The latest lines of output.
        is_pausing: Whether its training pauses, as the hook or the meter has reported last.
    """

    def __init__(self, script: Script, config: TrialConfig, folder: Path, only: str = "") -> None:
        """Starts to listen.

        Args:
            only: The only source to use, as `source` names it; empty for the most trusted.
        """
        self._only, self._nothing = _kind(only), Timeline()
        self._script, self._per_step = script, samples_per_step(script, config)
        sizes = Sizes(
            per_step=self._per_step, per_epoch=script.samples_per_epoch, tokens=script.tokens_per_sample
        )
        self.watched = WatchedTraining(self._per_step)
        self._meter, self._logged, self._printed = Timeline(), EventStream(sizes), EventStream(sizes)
        self._name = f"sweeper-{os.getpid()}-{os.urandom(8).hex()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(b"\0" + self._name.encode())
        self.socket.setblocking(False)
        self._store = (
            MlflowStore(Path(script.mlflow_store), script.mlflow_run, folder) if script.mlflow_store else None
        )
        self._store_due = 0.0
        self._patterns, self._names = Patterns(script.patterns), Patterns()
        self._streams: dict[int, Lines] = {}
        self.examples: dict[str, tuple[float, str]] = {}
        self.num_lines = 0
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._last_heard_s, self.is_pausing = time.perf_counter(), False

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that the script needs in order to report."""
        return {METER_VARIABLE: self._name, **(self._store.environment if self._store else {})}

    @property
    def last_heard_s(self) -> float:
        """Time of the last report; the current time during a reported pause."""
        return time.perf_counter() if self.is_pausing else self._last_heard_s

    @property
    def timeline(self) -> Timeline:
        """The timeline of the most trusted source that has reported anything."""
        return self._best_source()[1]

    @property
    def source(self) -> str:
        """The trusted source; empty if nothing was reported."""
        name, timeline = self._best_source()
        return name if timeline.stretches else ""

    def _sources(self) -> Sequence[tuple[str, Timeline]]:
        """Returns all sources with their timelines, the most trusted first."""
        torch = (self.watched.by, self.watched.timeline)
        others = (
            ("the meter", self._meter),
            (f"MLflow ({self._logged.by})", self._logged.timeline),
            (f"the output ({self._printed.by})", self._printed.timeline),
        )
        # Steps of unknown size come last: they are only better than nothing.
        return (torch, *others) if self.watched.knows_samples else (*others, torch)

    def _best_source(self) -> tuple[str, Timeline]:
        for name, timeline in self._sources():
            # The name is compared last, since this runs for every message.
            if timeline.stretches and (not self._only or _kind(name) == self._only):
                return name, timeline
        return "", self._nothing

    def other_source(self) -> str:
        """Returns a source that reports a speed where the required one does not; empty if none does."""
        if not self._only or self.source:
            return ""
        return next((name for name, timeline in self._sources() if timeline.stretches), "")

    def losses(self) -> Timeline:
        """Returns the most trusted timeline that has losses."""
        timelines = [self.timeline, *(timeline for _, timeline in self._sources())]
        return next(
            (timeline for timeline in timelines if timeline.losses or timeline.val_losses), self.timeline
        )

    def val_losses(self) -> Timeline:
        """Returns the most trusted timeline that has validation losses, or else that of `losses`."""
        return next((timeline for _, timeline in self._sources() if timeline.val_losses), self.losses())

    def listen(self) -> None:
        """Reads the pending messages of the hook and the meter, and the logged metrics.

        Raises:
            TrialFailedError: A loss is not a number.
        """
        while True:
            try:
                data = self.socket.recv(MAX_BYTES)
            except BlockingIOError:
                break
            self._add_message(json.loads(data))
        if self._store is not None and time.perf_counter() >= self._store_due:
            self._store_due = time.perf_counter() + STORE_SECONDS
            self._read_store(self._store)

    def _add_message(self, message: Mapping[str, Any]) -> None:
        if message.get("by") == "hook":
            self.watched.add(message)
            if "steps" in message and "part" not in message:
                self._last_heard_s, self.is_pausing = time.perf_counter(), message["pausing"]
            return
        meter = self._meter
        self._last_heard_s, self.is_pausing = time.perf_counter(), message["pausing"]
        meter.count(message["t"], message["samples"], message["steps"], message["paused"])
        if "loss" in message:
            meter.add_loss("loss", message["loss"], message["samples"])
        if "val" in message:
            at, value = message["val"]
            if not meter.val_losses or meter.val_losses[-1][0] != at:
                meter.add_loss("val_loss", value, at)

    def _read_store(self, store: MlflowStore) -> None:
        for metric in store.read():
            text = f"{metric.name}: {'nan' if metric.value is None else metric.value}"
            values = self._names.read(text)
            is_val = "val_loss" in values or is_evaluation(metric.name)
            if self._script.mlflow == "steps":
                values.setdefault("step", metric.step)
            elif self._script.samples_per_epoch:
                values.setdefault("samples", metric.step * self._script.samples_per_epoch)
            self._logged.add(values, metric.moment, is_evaluation=is_val)

    def read_output(self, stream: int, data: bytes, moment: float) -> None:
        """Reads a piece of an output stream; an empty piece marks its end.

        Raises:
            TrialFailedError: A loss is not a number.
        """
        lines = self._streams.setdefault(stream, Lines())
        complete = lines.feed(data) if data else lines.rest()
        self.num_lines += len(complete)
        self.last_lines.extend(complete)
        if complete:
            self._last_heard_s = moment
        for line in complete[-PARSED_AT_ONCE:]:
            values = self._patterns.read(line)
            for name, value in values.items():
                self.examples.setdefault(name, (value, line))
            if values:
                # A validation's progress bar has counts too, but they are not training.
                is_val = "loss" not in values and "val_loss" not in values and is_evaluation(line)
                self._printed.add(values, moment, is_evaluation=is_val)

    def missing_setting(self) -> str:
        """Returns a message about a missing setting that is needed to use the output; empty if none is."""
        names, script = {*self._printed.names, *self._logged.names}, self._script
        if not self._per_step and names & {"step", "s_per_step", "ms_per_step", "steps_per_s"}:
            return (
                "`script.samples_per_step` is required: the output reports steps, and no parameter is called"
                " `batch_size`. Name the parameters that make it up, such as `{bs}*{accumulate}`."
            )
        if "epoch_seconds" in names and not script.samples_per_epoch:
            return "`script.samples_per_epoch` is required: the output reports epoch times."
        if "tokens_per_s" in names and not script.tokens_per_sample:
            return "`script.tokens_per_sample` is required: the output reports tokens."
        return ""

    def check_plausible(self, since_s: float) -> None:
        """Checks that the reported speed is plausible.

        Args:
            since_s: Start of the period to check, since the first steps may be far slower.

        Raises:
            TrialFailedError: The speed jumped implausibly, or the output contradicts itself.
        """
        rated = self._printed.rated
        speeds = _speeds(rated, since_s)
        if len(speeds) < MIN_COUNTS:
            return
        median = statistics.median(speeds)
        odd = next((speed for speed in speeds if not median / JUMP < speed < median * JUMP), None)
        if self.timeline is rated and odd is not None:
            raise TrialFailedError(
                FailureKind.IMPLAUSIBLE,
                f"the output reports {odd:.3g} samples/s instead of the usual {median:.3g}, probably in"
                " another unit. Name the unit with `script.patterns`.",
            )
        counted = _speeds(self._printed.counted, since_s)
        if self.timeline is self._printed.counted and counted:
            seen = statistics.median(counted)
            if not seen / DISAGREE < median < seen * DISAGREE:
                raise TrialFailedError(
                    FailureKind.IMPLAUSIBLE,
                    f"the output reports {median:.3g} samples/s, but its counts give {seen:.3g}. Name its"
                    " unit with `script.patterns`, or the samples per step with"
                    " `script.samples_per_step`.",
                )

    def disagreement(self) -> str:
        """Returns a sentence on how another source disagrees with the trusted one; empty if none does.

        The two are compared over the period of the other source's second half of stretches.
        """
        trusted, timeline = self._best_source()
        for name, other in self._sources():
            late = _second_half(other.stretches)
            if other is timeline or len(late) < MIN_COUNTS:
                continue
            stretches = [e for e in timeline.stretches if late[0].start_s < e.end_s <= late[-1].end_s]
            mine, theirs = _rate(stretches), _rate(late)
            if mine and theirs and abs(theirs / mine - 1) > TOLERANCE:
                return f"{name} reports {theirs:,.0f} samples/s, but {trusted} {mine:,.0f}, which is used"
        return ""

    def report(self) -> dict[str, Any]:
        """Returns a summary of what was understood, for the user to check."""
        late = _second_half(self._printed.timeline.stretches)
        # Both rates cover the same period, since a machine's speed varies.
        meant = [e for e in self._meter.stretches if late and late[0].start_s < e.end_s <= late[-1].end_s]
        return {
            "source": self.source,
            "disagreement": self.disagreement(),
            "processes": list(self.watched.programs.values()),
            "unwatched": self.watched.failures,
            "samples_per_step": self._per_step,
            "num_lines": self.num_lines,
            "understood": {name: list(example) for name, example in self.examples.items()},
            "output_samples_per_s": _rate(late),
            "meter_samples_per_s": _rate(meant or _second_half(self._meter.stretches)),
            "last_lines": list(self.last_lines)[-SHOWN_LINES:],
        }

    def close(self) -> None:
        """Stops listening."""
        self.socket.close()


def _speeds(timeline: Timeline, since_s: float) -> list[float]:
    return [stretch.samples / stretch.seconds for stretch in timeline.stretches if stretch.end_s > since_s]


def _second_half(stretches: Sequence[Stretch]) -> Sequence[Stretch]:
    """Returns the second half of the stretches, in which a script runs at full speed."""
    return stretches[len(stretches) // 2 :]


def _rate(stretches: Sequence[Stretch]) -> float | None:
    return (
        sum(stretch.samples for stretch in stretches) / sum(stretch.seconds for stretch in stretches)
        if stretches
        else None
    )


def _kind(source: str) -> str:
    """Returns a source without its details; printed speeds are marked, since counted ones do not compare."""
    name, _, details = source.partition(" (")
    is_count = not details or name == TORCH or not {*COUNTS}.isdisjoint(details.rstrip(")").split(", "))
    return name if is_count else f"{name}, speeds"


_FACTOR = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def samples_per_step(script: Script, config: TrialConfig) -> float:
    """Returns the samples of a training step; 0 if unknown.

    Raises:
        UserError: `samples_per_step` is not a product of numbers.
    """
    if not script.samples_per_step:
        return float(config.global_batch) if "batch_size" in (config.args or {}) else 0.0
    text = render(script.samples_per_step, config.args or {})
    product = 1.0
    for factor in text.split("*"):
        if not _FACTOR.fullmatch(factor.strip()):
            raise UserError(f"`script.samples_per_step` must be a product of numbers, but got {text!r}.")
        product *= float(factor)
    return product
