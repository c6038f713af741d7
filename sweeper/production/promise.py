"""Compares the speed a production run reached with the speed the sweep promised, and explains it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.production.request import Promise

TOLERANCE = 0.05
"""Of what was promised: a run that is short of it by less has kept it."""

DISTURBED = 0.05
"""Of the time: what may be disturbed before it is said to be the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of the promise.

    Attributes:
        reached: Samples per second of training once it was steady; None where it was too short.
        ratio: `reached` over what was promised; None where nothing was.
        reasons: What is not as it was when it was promised, or disturbed the run.
    """

    reached: float | None
    promised: float | None
    ratio: float | None
    reasons: tuple[str, ...]

    @property
    def words(self) -> str:
        """The verdict in one line."""
        if self.reached is None:
            return "too short to tell its speed: it ended before it was steady"
        if self.ratio is None:
            return f"{self.reached:,.0f} samples/s; nothing was promised for it"
        share = f"{self.reached:,.0f} samples/s, {self.ratio:.2f} of the promised {self.promised:,.0f}"
        if self.ratio < 1 - TOLERANCE:
            return f"missed: {share}"
        return f"kept: {share}" if self.ratio <= 1 + TOLERANCE else f"exceeded: {share}"


def judged(
    values: Mapping[str, Any], promise: Promise | None, gpu_disturbed: Mapping[str, float]
) -> Judgement:
    """Returns the judgement of a run.

    Args:
        values: What the run reported.
        gpu_disturbed: Seconds in which something disturbed its GPU, by the reason.
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
        reasons = [*_other_conditions(values, promise.holds_for), *reasons]
    return Judgement(
        reached=reached,
        promised=promised,
        ratio=reached / promised if reached and promised else None,
        reasons=tuple(reasons),
    )


def _other_conditions(values: Mapping[str, Any], holds_for: Mapping[str, Any]) -> list[str]:
    """Returns in what the run differs from what the promise holds for."""
    found = []
    device, there = values["device"]["name"], str(holds_for.get("device") or "")
    # `2 x NVIDIA A10, 22.5 GiB`, which is no A100.
    if there and not re.search(rf"(^|x ){re.escape(device)}(,| \(|$)", there):
        found.append(f"it ran on {device}, and was promised for {there}")
    for name in ("torch", "cuda"):
        was, is_now = holds_for.get(name), values["versions"].get(name)
        if was and is_now and was != is_now:
            found.append(f"{name} is {is_now}, and was {was}")
    samples, were = values["train_samples"], holds_for.get("train_samples")
    if were and samples != were:
        found.append(f"the data has {samples:,} training samples, and had {were:,}")
    return found
