"""Lists the changes that a tune tries: changes at run time, and environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.core.measurement import Measurement
from sweeper.core.template import render
from sweeper.interventions import BATCH_SIZE, FILE_VARIABLE, OF_ENVIRONMENT, OWN, VARIABLE, known
from sweeper.interventions.batch import FACTORS
from sweeper.interventions.intervention import CHANGES_TRAINING, DRAWS, SINGLE
from sweeper.scaffold.known_options import of_environment

TOO_LITTLE_TIME = "there is too little time"
"""Beginning of the reason why a change is not tried that more time would remove."""

MIN_GAIN = 1.02
"""A change is tried only if its largest possible speedup is at least this."""

ARITHMETIC = ("precision", "compile", "layout", "tf32", "cudnn", "threads")
"""Changes of how the model computes."""
_WHY = {
    "device.malloc": "freed host memory is kept for the next step instead of being returned to the system",
    "spinning": "idle threads stop spinning and free their core for others",
    "pages": "host memory is in huge pages, which are faster to look up and vary less between processes",
    "allocator": "blocks of GPU memory can grow, so that varying sizes leave fewer gaps",
    "threads": "with fewer threads, small operations spend less time on synchronization",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value of a parameter of a script's training, other than the value that leaves it as it is.

    Attributes:
        name: Name of the parameter.
        value: The value.
        own: The parameter's value that leaves the script as it is.
        kind: `exact`, `close`, `other draws` or `changes training`, as declared.
        why: One line on what it saves.
        rounding: Relative difference that rounding may cause in the first steps.
        is_fallback: Whether it is tried only if no earlier value of its parameter is possible.
        env: Environment variables that make the change; empty for a change at run time.
        refused: Why it is not tried; empty if it is.
        proof: The result of its proof in words; empty if it is not proved.
    """

    name: str
    value: str
    kind: str
    own: str = OWN
    why: str = ""
    rounding: float = SINGLE
    is_fallback: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
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
    def word(self) -> str:
        """The change as it is written in the environment variable of `sweeper.interventions`."""
        value = f"{self.value}/{self.own}" if self.name == BATCH_SIZE.name else self.value
        return f"{self.name}={value}"

    def __str__(self) -> str:
        """Returns its name and value."""
        return f"{self.name} {self.value}"


def possible(
    found: Measurement,
    file: Path | None = None,
    *,
    allow_batch_size: bool = False,
    allow_other_draws: bool = False,
) -> list[Change]:
    """Returns all changes; those that cannot pay off, or are not allowed, are refused with the reason.

    Args:
        found: Measurement of the unchanged script.
        file: File with the user's own changes (`sweeper.interventions.known`).
        allow_batch_size: Whether larger batches are tried, too.
        allow_other_draws: Whether changes that make rows draw other random numbers are tried, too.
    """
    limits, changes = ceilings(found), []
    for each in known(str(file) if file else "").values():
        most, what = limits.get(each.name, (None, ""))
        for rank, value in enumerate(each.choices):
            refused = each.refusal(value, found.observed) if hasattr(each, "refusal") else ""
            if not refused and most is not None and most < MIN_GAIN:
                refused = f"even {what}, it would be only {most:.3g}x as fast"
            if not refused and each.kind == DRAWS and not allow_other_draws:
                refused = "its rows would draw other random numbers; to allow that, add --allow-other-draws"
            changes.append(
                Change(
                    name=each.name,
                    value=value,
                    kind=each.kind,
                    why=each.why,
                    rounding=getattr(each, "rounding", SINGLE),
                    is_fallback=rank > 0 and getattr(each, "are_ranked", False),
                    refused=refused,
                )
            )
    for name, (dimension, variables) in of_environment(found.observed).items():
        for choice in dimension.choices:
            if choice != dimension.value:
                changes.append(
                    Change(
                        name=name,
                        value=str(choice),
                        own=str(dimension.value),
                        kind=OF_ENVIRONMENT[name],
                        why=_WHY[name],
                        env=variables,
                    )
                )
    return [*changes, *(_batches(found) if allow_batch_size else ())]


def _batches(found: Measurement) -> Iterator[Change]:
    own = int(found.observed.get("batch_size") or 0)
    for factor in FACTORS:
        yield Change(
            name=BATCH_SIZE.name,
            value=str(own * factor),
            own=str(own),
            kind=BATCH_SIZE.kind,
            why=BATCH_SIZE.why,
            refused=BATCH_SIZE.refusal("", found.observed),
        )


def ceilings(found: Measurement) -> Mapping[str, tuple[float, str]]:
    """Returns the largest possible speedup of each change, and the part of a step that it could save.

    The speedup is that of a step without this part. Changes that could save anything are left out.
    """
    return dict(_ceilings(found))


def _ceilings(found: Measurement) -> Iterator[tuple[str, tuple[float, str]]]:
    diagnosis, parts = found.diagnosis, found.breakdown
    if not parts.step_s:
        return
    if diagnosis is not None and diagnosis.device_samples_s and found.throughput:
        # The larger of two estimates: a busy machine distorts one, and workers take cores in the other.
        without_data = parts.step_s / max(1e-9, parts.step_s - parts.data_s)
        on_one_batch = diagnosis.device_samples_s / found.throughput
        for name in ("loader", "pictures", "readers"):
            yield name, (max(without_data, on_one_batch), "without its loader")
    yield "optimizer", (parts.step_s / max(1e-9, parts.step_s - parts.optimizer_s), "without updates")
    without_arithmetic = parts.step_s / max(1e-9, parts.step_s - parts.compute_s)
    for name in ARITHMETIC:
        yield name, (without_arithmetic, "without its arithmetic")


def environment(changes: Sequence[Change], file: Path | None) -> dict[str, str]:
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
