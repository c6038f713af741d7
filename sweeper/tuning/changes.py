"""Lists the changes that a tune tries: changes at run time, and environment variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.analysis.bottleneck import launch_share
from sweeper.core.measurement import Measurement
from sweeper.core.template import render
from sweeper.interventions import BATCH_SIZE, FILE_VARIABLE, VARIABLE, known
from sweeper.interventions.batch import FACTORS
from sweeper.interventions.change import CHANGES_TRAINING, DRAWS, ORIGINAL, SINGLE, Ceiling, Change, Step
from sweeper.scaffold.known_options import variables_of

UNKNOWN_CEILING = 1.05
"""Ratio that is assumed of a change which could save a part of anything, such as memory calls."""

TOO_LITTLE_TIME = "there is too little time"
"""Beginning of the reason why a change is not tried that more time would remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeValue:
    """One value of a change, and what a tune knows about it.

    Attributes:
        name: Name of the parameter.
        value: The value.
        original: The parameter's value that leaves the script as it is.
        kind: `exact`, `close`, `other draws` or `changes training`, as declared.
        why: One line on what it saves.
        rounding: Relative difference that rounding may cause in the first steps.
        is_fallback: Whether it is tried only if no earlier value of its parameter is possible.
        env: Environment variables that make the change; empty for a change at run time.
        ceiling: Largest ratio to the script's own speed that it may reach; infinite if that is unknown.
        refused: Why it is not tried; empty if it is.
        proof: The result of its proof in words; empty if it is not proved.
    """

    name: str
    value: str
    kind: str
    original: str = ORIGINAL
    why: str = ""
    rounding: float = SINGLE
    is_fallback: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    ceiling: float = math.inf
    refused: str = ""
    proof: str = ""

    @property
    def is_of_environment(self) -> bool:
        """Whether environment variables alone make it."""
        return bool(self.env)

    @property
    def changes_training(self) -> bool:
        """Whether it changes the training itself, so that no proof can show it to be harmless."""
        return self.kind == CHANGES_TRAINING

    @property
    def stored(self) -> str:
        """The value as `sweeper.interventions` takes it."""
        return f"{self.value}/{self.original}" if self.name == BATCH_SIZE.name else self.value

    @property
    def word(self) -> str:
        """The change as it is written in the environment variable of `sweeper.interventions`."""
        return f"{self.name}={self.stored}"

    @property
    def word_of_arm(self) -> str:
        """The change as an arm of a race names it."""
        return f"{self.name}={self.value}"

    def __str__(self) -> str:
        """Returns its name and value."""
        return f"{self.name} {self.value}"


def possible(
    found: Measurement,
    file: Path | None = None,
    *,
    allow_batch_size: bool = False,
    allow_other_draws: bool = False,
) -> list[ChangeValue]:
    """Returns all changes; those that cannot pay off, or are not allowed, are refused with the reason.

    Args:
        found: Measurement of the unchanged script.
        file: File with the user's own changes (`sweeper.interventions.known`).
        allow_batch_size: Whether larger batches are tried, too.
        allow_other_draws: Whether changes that make rows draw other random numbers are tried, too.
    """
    values = []
    for change in known(str(file) if file else "").values():
        for rank, value in enumerate(change.choices):
            ceiling = ceiling_of(change, value, found)
            refused = change.refusal(value, found.observed) or _too_little(ceiling)
            if not refused and change.kind == DRAWS and not allow_other_draws:
                refused = "its rows would draw other random numbers; to allow that, add --allow-other-draws"
            values.append(
                ChangeValue(
                    name=change.name,
                    value=value,
                    original=change.original,
                    kind=change.kind,
                    why=change.why,
                    rounding=change.tolerance(found.observed),
                    is_fallback=rank > 0 and change.are_ranked,
                    env=variables_of(change, found.observed),
                    ceiling=_assumed(change) if ceiling is None else ceiling.ratio,
                    refused=refused,
                )
            )
    return [*values, *(_batches(found) if allow_batch_size else ())]


def _assumed(change: Change) -> float:
    """Returns the ceiling of a change whose ceiling is not known."""
    return UNKNOWN_CEILING if change.is_of_environment else math.inf


def _too_little(ceiling: Ceiling | None) -> str:
    if ceiling is None or ceiling.ratio >= ceiling.least:
        return ""
    faster = f"only {ceiling.ratio:.3g}x as fast" if ceiling.ratio >= 1.005 else "no faster"
    return f"even {ceiling.without}, it would be {faster}"


def _batches(found: Measurement) -> Iterator[ChangeValue]:
    own = int(found.observed.get("batch_size") or 0)
    for factor in FACTORS:
        yield ChangeValue(
            name=BATCH_SIZE.name,
            value=str(own * factor),
            original=str(own),
            kind=BATCH_SIZE.kind,
            why=BATCH_SIZE.why,
            refused=BATCH_SIZE.refusal("", found.observed),
        )


def ceiling_of(change: Change, value: str, found: Measurement) -> Ceiling | None:
    """Returns the largest possible speedup of a change's value; None if it is unknown.

    Args:
        found: Measurement of the unchanged script.
    """
    parts, diagnosis = found.breakdown, found.diagnosis
    if not parts.step_s:
        return None
    on_one_batch = (diagnosis and diagnosis.device_samples_s) or 0.0
    launching = launch_share(found)
    step = Step(
        seconds=parts.step_s,
        data=parts.data_s,
        compute=parts.compute_s,
        optimizer=parts.optimizer_s,
        launching=None if launching is None else launching * parts.step_s,
        one_batch_ratio=on_one_batch / found.throughput if found.throughput else 0.0,
        shares_cores=bool(found.observed.get("num_workers")) and not found.trains_on_gpu,
        is_rough=diagnosis is None and found.trains_on_gpu,
    )
    return change.ceiling(value, step)


def environment(changes: Sequence[ChangeValue], file: Path | None) -> dict[str, str]:
    """Returns the environment variables that make some changes, at most one for each parameter."""
    found: dict[str, str] = {}
    words = []
    for each in changes:
        if each.is_of_environment:
            rendered = {key: render(text, {each.name: each.value}) for key, text in each.env.items()}
            found.update({key: text for key, text in rendered.items() if text})
        else:
            words.append(each.word)
    if words:
        found[VARIABLE] = " ".join(words)
    if file:
        found[FILE_VARIABLE] = str(file.resolve())
    return found
