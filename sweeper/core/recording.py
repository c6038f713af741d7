"""Defines how the beginning of a run is recorded, so that it can be compared with that of another one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The terms of a record (`script.inside.recorder`). Runs that share all but `shift` are comparable.

    Attributes:
        seed: Seed of torch, numpy and Python.
        shift: Added to the seed, and to the seeds that the script sets itself.
        batches: Number of batches in each pass over a loader, the first ones and the last, if passes are cut
            short, so that the record has the ends of two passes; 0 if they stay whole.
        steps: Number of steps after which the record ends, if passes stay whole.
        seconds: Seconds after which the record is cut off, from its first step on; 0 for no limit.
        deterministic: Whether torch's deterministic algorithms are requested.
        limit_seconds: Seconds from the start of the script after which a record must be complete; 0 for no
            limit.
    """

    seed: int = 20
    shift: int = 0
    batches: int = 0
    steps: int = 0
    seconds: float = 0.0
    deterministic: bool = False
    limit_seconds: float = 0.0
