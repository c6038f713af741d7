"""One change to a script in words, and a list of changes as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import Scalar
from sweeper.core.template import shown


@dataclass(frozen=True, slots=True)
class Advice:
    """A change to make at one place in a script.

    Attributes:
        line: Its number, from 1.
        found: The source there, on one line, shortened.
        change: What to write instead.
        why: The reason.
    """

    line: int
    found: str
    change: str
    why: str


def because(wanted: Mapping[str, Scalar], names: Iterable[str]) -> str:
    """Returns the configuration's values that call for a change."""
    return "the configuration has " + ", ".join(f"`{name}: {shown(wanted[name])}`" for name in names)


def rendered_advice(advices: Sequence[Advice], filename: str) -> str:
    """Returns advice as plain text, three lines each; one line if there is none."""
    if not advices:
        return f"{filename}: found nothing to change.\n"
    return "\n".join(
        f"{filename}:{each.line}  {each.found}\n    -> {each.change}\n    because {each.why}\n"
        for each in advices
    )
