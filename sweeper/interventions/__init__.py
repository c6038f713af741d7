"""Changes that are made to a training script at run time, with nothing edited.

They are applied inside the script's own process once torch has been imported, before its first use of it.
Standard library and the script's torch alone, and Python 3.8: a script brings its own interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .fused import Fused
from .gathered import Gathered
from .intervention import Intervention

VARIABLE = "SWEEPER_CHANGES"
"""Environment variable with the changes to make: `loader=gathered optimizer=fused`."""

OWN = "own"
"""The value that leaves everything as the script has it."""

INTERVENTIONS: Mapping[str, Intervention] = {each.name: each for each in (Gathered(), Fused())}
"""All of them, by the name of their parameter."""


def chosen(text: str) -> dict[str, str]:
    """Returns the changes that the variable's text names.

    Raises:
        ValueError: One of them is unknown.
    """
    found = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in INTERVENTIONS or value not in (OWN, *INTERVENTIONS[name].choices):
            known = ", ".join(
                f"{each.name}={value}" for each in INTERVENTIONS.values() for value in each.choices
            )
            raise ValueError(f"{VARIABLE} must name known changes ({known}), but has {word!r}")
        if value != OWN:
            found[name] = value
    return found


def apply(torch: Any, text: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Makes the changes that the variable's text names.

    Args:
        tell: Is called with what became of each: whether it is in effect, and why not.

    Raises:
        ValueError: One of them is unknown.
    """
    for name, value in chosen(text).items():

        def report(is_applied: bool, why: str = "", /, name: str = name) -> None:
            tell({"change": {"name": name, "applied": is_applied, "why": why}})

        try:
            INTERVENTIONS[name].apply(torch, value, report)
        except Exception as error:
            report(False, f"{type(error).__name__}: {error}")
