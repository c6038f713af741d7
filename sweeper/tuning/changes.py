"""The changes that a tune tries: at run time, and by the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.core.template import render
from sweeper.interventions import FILE_VARIABLE, OWN, VARIABLE, known
from sweeper.interventions.intervention import CLOSE, EXACT
from sweeper.scaffold.known_options import of_environment

MIN_GAIN = 1.02
"""What cannot bring that much, however good it is, is not tried."""

_KINDS = {"device.malloc": EXACT, "spinning": EXACT, "threads": CLOSE}
_WHY = {
    "device.malloc": "host memory is kept from step to step instead of given back",
    "spinning": "idle threads stop to wait actively, and leave their core to others",
    "threads": "fewer threads: small operations wait less for each other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that may be made to a script.

    Attributes:
        name: Its parameter.
        own: The value that leaves the script as it is.
        choices: The other values.
        kind: `exact` or `close`, as declared.
        why: What it saves, in a line.
        env: Environment variables for each choice; empty for a change at run time.
        refused: Why it is not tried.
        proof: What was proved of it.
    """

    name: str
    own: str
    choices: tuple[str, ...]
    kind: str
    why: str
    env: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    proof: str = ""

    @property
    def is_of_environment(self) -> bool:
        """Whether it needs nothing in the script's process."""
        return bool(self.env)


def possible(found: Measurement, file: Path | None = None) -> list[Change]:
    """Returns all changes; those that cannot pay are refused, with the reason.

    Args:
        found: The script as it was watched.
        file: The user's own changes (`sweeper.interventions.known`).
    """
    ceilings = dict(_ceilings(found))
    changes = []
    for each in known(str(file) if file else "").values():
        most, what = ceilings.get(each.name, (None, ""))
        refused = f"{what}: {most:.3g}x at most" if most is not None and most < MIN_GAIN else ""
        changes.append(
            Change(
                name=each.name,
                own=OWN,
                choices=tuple(each.choices),
                kind=each.kind,
                why=each.why,
                refused=refused,
            )
        )
    for name, (dimension, variables) in of_environment(found.observed).items():
        changes.append(
            Change(
                name=name,
                own=str(dimension.value),
                choices=tuple(str(c) for c in dimension.choices if c != dimension.value),
                kind=_KINDS[name],
                why=_WHY[name],
                env=variables,
            )
        )
    return changes


def _ceilings(found: Measurement) -> Iterator[tuple[str, tuple[float, str]]]:
    """Yields the most that a change could bring: the part of a step that it could save."""
    diagnosis, parts = found.diagnosis, found.breakdown
    if diagnosis is not None and diagnosis.device_samples_s and found.throughput:
        yield "loader", (diagnosis.device_samples_s / found.throughput, "on one batch, again and again")
    if parts.step_s:
        yield "optimizer", (parts.step_s / max(1e-9, parts.step_s - parts.optimizer_s), "without updates")


def environment(changes: Mapping[str, str], among: Mapping[str, Change], file: Path | None) -> dict[str, str]:
    """Returns the variables that make some changes, by name and value."""
    own = {each.name: each.own for each in among.values()}
    values: dict[str, Any] = {**own, **changes}
    found: dict[str, str] = {}
    words = []
    for name, value in changes.items():
        if among[name].is_of_environment:
            rendered = {key: render(text, values) for key, text in among[name].env.items()}
            found.update({key: text for key, text in rendered.items() if text})
        elif value != among[name].own:
            words.append(f"{name}={value}")
    if words:
        found[VARIABLE] = " ".join(words)
    if file:
        found[FILE_VARIABLE] = str(file.resolve())
    return found
