"""Lists the changes that a tune tries: changes at run time, and environment variables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.core.measurement import Measurement
from sweeper.errors import UserError
from sweeper.race.verify import Claim
from sweeper.results.verdict.bottleneck import launch_share
from sweeper.scaffold.known_options import variables_of
from sweeper.script.changes import load_changes
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT, ORIGINAL, SINGLE, Change, SpeedupCeiling, Step

NEEDS_PERMISSION = "its rows would draw other random numbers; --allow-other-draws permits that"
"""Why a change is not tried that may well help."""
UNKNOWN_CEILING = 1.05
"""Ratio that is assumed of a change which could save a part of anything, such as memory calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeValue:
    """One value of a change, and what a tune knows about it.

    Attributes:
        name: Name of the parameter.
        value: The value.
        original: The parameter's value that leaves the script as it is.
        kind: `exact`, `close` or `other draws`, as declared.
        why: One line on what it saves.
        rounding: Relative difference that rounding may cause in the first steps.
        env: Environment variables that make the change; empty for a change at run time.
        keeps_arithmetic: Whether what is computed with a batch stays as it is.
        ceiling: Largest ratio to the script's own speed that it may reach; infinite if that is unknown.
        refused: Why it is not tried; empty if it is.
    """

    name: str
    value: str
    kind: str
    original: str = ORIGINAL
    why: str = ""
    rounding: float = SINGLE
    env: Mapping[str, str] = field(default_factory=dict)
    keeps_arithmetic: bool = False
    ceiling: float = math.inf
    refused: str = ""

    @property
    def is_of_environment(self) -> bool:
        """Whether environment variables alone make it."""
        return bool(self.env)

    @property
    def word_of_arm(self) -> str:
        """The change as an arm of a race names it."""
        return f"{self.name}={self.value}"

    def __str__(self) -> str:
        """Returns its name and value."""
        return f"{self.name} {self.value}"


def known_changes(file: Path | None) -> Mapping[str, Change]:
    """Returns the built-in changes and the user's own, by name.

    Args:
        file: File with the user's own changes.

    Raises:
        UserError: It cannot be read as one.
    """
    try:
        return load_changes(str(file) if file else "")
    except (ValueError, OSError, SyntaxError, ImportError) as error:
        raise UserError(f"`--changes` must be a file of changes: {error}.") from error


def list_changes(
    measurement: Measurement,
    file: Path | None = None,
    *,
    allow_other_draws: bool = False,
) -> list[ChangeValue]:
    """Returns all changes; those that cannot pay off, or are not allowed, are refused with the reason.

    Args:
        measurement: Measurement of the unchanged script.
        file: File with the user's own changes (`sweeper.script.changes.load_changes`).
        allow_other_draws: Whether changes that make rows draw other random numbers are tried, too.
    """
    values = []
    for change in known_changes(file).values():
        for value in change.choices:
            ceiling = ceiling_of(change, value, measurement)
            refused = change.refusal(value, measurement.observed) or _ceiling_refusal(ceiling)
            if not refused and change.kind == DRAWS and not allow_other_draws:
                refused = NEEDS_PERMISSION
            values.append(
                ChangeValue(
                    name=change.name,
                    value=value,
                    original=change.original,
                    kind=change.kind,
                    why=change.why,
                    rounding=change.tolerance(measurement.observed),
                    env=variables_of(change, measurement.observed),
                    keeps_arithmetic=change.keeps_arithmetic,
                    ceiling=_assumed_ceiling(change) if ceiling is None else ceiling.ratio,
                    refused=refused,
                )
            )
    return values


def _assumed_ceiling(change: Change) -> float:
    """Returns the ceiling of a change whose ceiling is not known."""
    return UNKNOWN_CEILING if change.is_of_environment else math.inf


def _ceiling_refusal(ceiling: SpeedupCeiling | None) -> str:
    if ceiling is None or ceiling.ratio >= ceiling.min_ratio:
        return ""
    faster = f"only {ceiling.ratio:.3g}x as fast" if ceiling.ratio >= 1.005 else "no faster"
    return f"even {ceiling.without}, it would be {faster}"


def ceiling_of(change: Change, value: str, measurement: Measurement) -> SpeedupCeiling | None:
    """Returns the largest possible speedup of a change's value; None if it is unknown.

    Args:
        measurement: Measurement of the unchanged script.
    """
    parts, diagnosis = measurement.breakdown, measurement.diagnosis
    if not parts.step_s:
        return None
    on_one_batch = (diagnosis and diagnosis.device_samples_s) or 0.0
    launching = launch_share(measurement)
    step = Step(
        seconds=parts.step_s,
        data=parts.data_s,
        compute=parts.compute_s,
        optimizer=parts.optimizer_s,
        collecting=measurement.observed.get("collector_share", 0.0) * parts.step_s,
        launching=None if launching is None else launching * parts.step_s,
        one_batch_ratio=on_one_batch / measurement.throughput if measurement.throughput else 0.0,
        shares_cores=bool(measurement.observed.get("num_workers")) and not measurement.trains_on_gpu,
        is_rough=diagnosis is None and measurement.trains_on_gpu,
    )
    return change.ceiling(value, step)


def claim_of(changes: Sequence[ChangeValue]) -> Claim:
    """Returns how a script with changes is to train: as with the roughest of them."""
    kinds = (EXACT, CLOSE, DRAWS)
    return Claim(
        kind=max((change.kind for change in changes), key=kinds.index, default=EXACT),
        rounding=max((change.rounding for change in changes), default=SINGLE),
        keeps_arithmetic=all(change.keeps_arithmetic for change in changes),
    )
