"""Compares the speed of a production run with the speed that the sweep promised, and gives reasons."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.production.request import Promise

TOLERANCE = 0.05
"""Share of the promised speed by which a run may differ, if the sweep has no interval for it."""

DISTURBED = 0.05
"""Share of the time from which a disturbance counts as a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The speed that was reached, compared with the promise.

    Attributes:
        reached: Samples per second of steady training; None if the run was too short.
        ratio: `reached` over `promised`; None if nothing was promised.
        reasons: Conditions that differ from the promise's, and what disturbed the run.
        min_throughput: Lowest `reached` that keeps the promise.
        max_throughput: Highest `reached` that does not exceed the promise.
    """

    reached: float | None
    promised: float | None
    ratio: float | None
    reasons: tuple[str, ...]
    min_throughput: float = 0.0
    max_throughput: float = math.inf

    @property
    def words(self) -> str:
        """The verdict in one line."""
        if self.reached is None:
            return "too short to measure its speed: it ended before it was steady"
        if self.ratio is None:
            return f"{self.reached:,.0f} samples/s; no speed was promised"
        share = f"{self.reached:,.0f} samples/s, {self.ratio:.2f}x the promised {self.promised:,.0f}"
        if self.reached < self.min_throughput:
            return f"missed: {share}"
        return f"kept: {share}" if self.reached <= self.max_throughput else f"exceeded: {share}"


def assess(
    values: Mapping[str, Any], promise: Promise | None, gpu_disturbed: Mapping[str, float]
) -> Judgement:
    """Returns the judgement of a run.

    Args:
        values: Values of the run's report.
        gpu_disturbed: Seconds in which something disturbed its GPU, by reason.
    """
    seconds = values["timed_seconds"]
    reached = values["timed_samples"] / seconds if seconds else None
    promised = promise.throughput if promise else None
    disturbed = {**values["disturbed"], **gpu_disturbed}
    reasons = [
        f"{why}: {min(1.0, time / seconds):.0%} of the time"
        for why, time in disturbed.items()
        if seconds and time > DISTURBED * seconds
    ]
    if promise is not None:
        reasons = [*_other_conditions(values, promise.conditions), *reasons]
    return Judgement(
        reached=reached,
        promised=promised,
        ratio=reached / promised if reached and promised else None,
        reasons=tuple(reasons),
        min_throughput=(promise.low or promise.throughput * (1 - TOLERANCE)) if promise else 0.0,
        max_throughput=(promise.high or promise.throughput * (1 + TOLERANCE)) if promise else math.inf,
    )


def _other_conditions(values: Mapping[str, Any], conditions: Mapping[str, Any]) -> list[str]:
    """Returns how the run's conditions differ from those the promise holds for."""
    differences = []
    device, there = values["device"]["name"], str(conditions.get("device") or "")
    # Whole names only: an A10 must not match an A100. `there` may be `2 x NVIDIA A10, 22.5 GiB`.
    if there and not re.search(rf"(^|x ){re.escape(device)}(,| \(|$)", there):
        differences.append(f"it ran on {device}; the promise holds for {there}")
    cores, had = values.get("usable_cpus"), conditions.get("usable_cpus")
    if cores and had and cores < had:
        differences.append(f"it had {cores} cores; the promise holds for {had}")
    for name in ("torch", "cuda"):
        was, is_now = conditions.get(name), values["versions"].get(name)
        if was and is_now and was != is_now:
            differences.append(f"{name} is {is_now}, was {was}")
    samples, were = values["train_samples"], conditions.get("train_samples")
    if were and samples != were:
        differences.append(f"the data has {samples:,} training samples, had {were:,}")
    return differences
