"""Told: what a trial was to the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.config import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a trial was to the search, fixed when first told.

    Attributes:
        params: The value of every parameter of the space.
        values: One per objective; None where the trial says nothing (`fail`).
        constraints: Violation by name; at most 0 holds. The same names on every trial.
    """

    params: Mapping[str, Scalar]
    values: tuple[float, ...] | None
    constraints: Mapping[str, float]
