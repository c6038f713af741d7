"""Gives the verdict on a change: its speed, its training, and whether both are as required."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.core.metrics import joules_per_sample
from sweeper.core.units import GIB
from sweeper.judging import losses, speed
from sweeper.judging.arms import Arm
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.judging.whole import WholeRun, run_whole
from sweeper.race.tally import LEVEL
from sweeper.results.formatting import rate
from sweeper.script.run.failure import is_for_want_of_room
from sweeper.script.run.scratch import scratch_folder
from sweeper.system.memory import available_bytes

SCHEMA = 1
MEMORY, MEMORY_SHARE = "tree_mem_gib", 0.8
"""Telemetry of a version's memory in GiB, and share of the free memory that two may take."""


class RequiredSpeed(StrEnum):
    """The speed that `--require` asks for."""

    FASTER = "faster"
    NOT_SLOWER = "not-slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of judging a change.

    Attributes:
        whole: How both versions ended; None if they did not run to their end.
    """

    arms: tuple[Arm, Arm]
    speed: SpeedComparison
    training: LossComparison
    whole: tuple[WholeRun, WholeRun] | None = None

    def meets(self, required: RequiredSpeed) -> bool:
        """Returns whether the change is as fast as required, and trains the same."""
        is_faster = self.speed.answer is Speed.FASTER
        fast = is_faster if required is RequiredSpeed.FASTER else self.speed.is_not_slower
        return fast and self.training.is_same

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as plain values (docs/judge.md)."""
        comparison = self.speed
        return {
            "schema": SCHEMA,
            "speed": str(comparison.answer),
            "ratio": comparison.ratio,
            "low": comparison.low,
            "high": comparison.high,
            "level": LEVEL,
            "rounds": len(comparison.before),
            "quiet": None if comparison.quiet is None else dataclasses.asdict(comparison.quiet),
            "busy": None if comparison.busy is None else dataclasses.asdict(comparison.busy),
            "stopped": comparison.is_stopped,
            "losses": str(self.training.answer),
            "losses_why": self.training.why,
            "covers": self.training.covers,
            "before": _describe(self.arms[0], comparison.before),
            "after": _describe(self.arms[1], comparison.after),
            **({"whole": [dataclasses.asdict(whole) for whole in self.whole]} if self.whole else {}),
        }


def judge(
    arms: tuple[Arm, Arm], minutes: float, say: Callable[[str], None], *, whole: bool = False
) -> Verdict:
    """Compares two versions of a training within some minutes.

    Args:
        say: Function that is called with a line for each finding.
        whole: Whether both run to their end afterwards, however long that takes.

    Raises:
        TrialFailedError: A version cannot be measured; the message names it.
        UserError: A version cannot be started.
    """
    with scratch_folder() as scratch:
        cache = scratch / "cache"
        cache.mkdir()
        before, after = (dataclasses.replace(arm, cache=cache) for arm in arms)
        verdict = _compare((before, after), 60 * minutes, say)
        if not whole or verdict.speed.is_stopped:
            return verdict
        say("  running both to their end")
        try:
            ends = run_whole((before, after), at_once=_has_room(verdict.speed))
            if any(is_for_want_of_room("", end.failure) for end in ends):
                # Both listen on the same port.
                ends = run_whole((before, after), at_once=False)
        except KeyboardInterrupt:
            say("  stopped before their end")
            return verdict
        return dataclasses.replace(verdict, whole=ends)


def _compare(arms: tuple[Arm, Arm], seconds: float, say: Callable[[str], None]) -> Verdict:
    trained: list[LossComparison] = []

    def train(*first: Measurement) -> None:
        for arm, measurement in zip(arms, first, strict=True):
            say(f"  {arm.name}: {rate(measurement.throughput)}")
        trained.append(losses.compare(arms, *first))
        say(f"  losses: {words(trained[0])}")

    compared = speed.compare(arms, seconds, say, train)
    if not trained:
        # Ctrl-C ended it before both had trained.
        raise KeyboardInterrupt
    return Verdict(arms=arms, speed=compared, training=trained[0])


def _has_room(speed: SpeedComparison) -> bool:
    """Returns whether both versions may run at the same time."""
    measured = [*speed.before, *speed.after]
    needed = sum(
        max((one.telemetry[MEMORY].p95 for one in side if MEMORY in one.telemetry), default=math.inf)
        for side in (speed.before, speed.after)
    )
    has_memory = needed < MEMORY_SHARE * available_bytes() / GIB
    return has_memory and not any(one.trains_on_gpu for one in measured)


def words(training: LossComparison) -> str:
    """Returns the comparison of two trainings in words."""
    if training.answer is LossAgreement.EQUAL:
        return f"equal in every bit over {training.covers}"
    if training.answer is LossAgreement.CLOSE:
        return f"equal up to rounding over {training.covers}"
    return f"{training.answer}: {training.why}"


def _describe(arm: Arm, measurements: Sequence[Measurement]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": arm.name,
        "command": list(arm.command),
        "throughput": [measurement.throughput for measurement in measurements],
        "step_ms": statistics.fmean(measurement.step_ms for measurement in measurements),
    }
    for key, name in (("memory_gib", MEMORY), ("gpu_memory_gib", "gpu_mem_used_gib")):
        values = [
            measurement.telemetry[name].p95 for measurement in measurements if name in measurement.telemetry
        ]
        described[key] = max(values) if values else None
    described["joules_per_sample"] = _joules(measurements)
    return described


def _joules(measurements: Sequence[Measurement]) -> float | None:
    """Returns the mean energy per sample, of the GPUs or the processors; None if their power is unknown."""
    joules = (
        joules_per_sample(measurement, int(measurement.observed.get("ranks", 1)))
        for measurement in measurements
    )
    values = [value for value in joules if value is not None]
    return statistics.fmean(values) if values else None
