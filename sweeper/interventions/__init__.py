"""Changes a training script at run time, without editing it.

The changes are applied inside the script's process once torch has been imported, before the script uses it.
They use only the standard library and the script's torch, and run on Python 3.8, since a script brings its
own interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .batch import BatchSize
from .ddp import Ddp
from .fused import Fused
from .gpu import Cudnn, Pinned, Tf32
from .intervention import CLOSE, EXACT, SINGLE, Intervention
from .loader import Loader
from .model import Compiled, Layout, Precision
from .pictures import Pictures
from .readers import Readers

VARIABLE = "SWEEPER_CHANGES"
"""Environment variable with the changes to make: `loader=gathered optimizer=fused`."""

FILE_VARIABLE = "SWEEPER_CHANGES_FILE"
"""Environment variable that names a user's file with more changes, in a list `CHANGES`."""

OWN = "own"
"""Value of a change that leaves everything as the script has it."""

OF_ENVIRONMENT: Mapping[str, str] = {
    "device.malloc": EXACT,
    "spinning": EXACT,
    "pages": EXACT,
    "allocator": EXACT,
    "threads": CLOSE,
}
"""Kinds of the changes that are made by environment variables alone."""

BATCH_SIZE = BatchSize()
# Pictures and readers come before loaders, since a gathered loader does not ask for them.
_ALL = (
    Pictures(),
    Readers(),
    Loader(),
    Pinned(),
    Fused(),
    Compiled(),
    Layout(),
    Precision(),
    Ddp(),
    Tf32(),
    Cudnn(),
    BATCH_SIZE,
)
INTERVENTIONS: Mapping[str, Intervention] = {each.name: each for each in _ALL}
"""All changes that come with sweeper, by the name of their parameter, in the order in which they are made."""


def is_exact(name: str) -> bool:
    """Returns whether a change is declared to leave every bit of the training as it is."""
    change = INTERVENTIONS.get(name)
    return (change.kind if change is not None else OF_ENVIRONMENT.get(name)) == EXACT


def known(path: str = "") -> dict[str, Intervention]:
    """Returns all changes by name, those of a user's file included.

    Raises:
        ValueError: The file has no list `CHANGES` of changes that can be proved.
    """
    if not path:
        return dict(INTERVENTIONS)
    spec = importlib.util.spec_from_file_location("sweeper_changes", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "CHANGES", None)
    wanted = ("name", "choices", "kind", "why", "apply")
    if not isinstance(found, (list, tuple)) or not all(hasattr(e, n) for e in found for n in wanted):
        raise ValueError(f"{path} must have a list CHANGES of objects with {', '.join(wanted)}")
    for each in found:
        if each.kind not in (EXACT, CLOSE):
            raise ValueError(f"the kind of {each.name} must be {EXACT} or {CLOSE}, but is {each.kind!r}")
        if getattr(each, "rounding", SINGLE) <= 0:
            raise ValueError(f"the rounding of {each.name} must be above 0, but is {each.rounding!r}")
    return {**INTERVENTIONS, **{each.name: each for each in found}}


def chosen(text: str, among: Mapping[str, Intervention] = INTERVENTIONS) -> dict[str, str]:
    """Returns the changes that the variable's text names.

    Raises:
        ValueError: One of them is unknown.
    """
    found = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name == BATCH_SIZE.name and BATCH_SIZE.accepts(value):
            if not BATCH_SIZE.is_own(value):
                found[name] = value
            continue
        if name not in among or value not in (OWN, *among[name].choices):
            listed = ", ".join(f"{each.name}={value}" for each in among.values() for value in each.choices)
            raise ValueError(f"{VARIABLE} must name known changes ({listed}), but has {word!r}")
        if value != OWN:
            found[name] = value
    return {name: found[name] for name in among if name in found}


def apply(torch: Any, text: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Makes the changes that the variable's text names.

    Args:
        tell: Called for each change with whether it is in effect and, if not, the reason.

    Raises:
        ValueError: One of them is unknown.
    """
    if not text.strip():
        return
    among = known(os.environ.get(FILE_VARIABLE, ""))
    for name, value in chosen(text, among).items():

        def report(
            is_applied: bool, why: str = "", /, name: str = name, *, was_applied: bool = False
        ) -> None:
            change = {"name": name, "applied": is_applied, "why": why}
            tell({"change": {**change, "given_up": True} if was_applied else change})

        try:
            among[name].apply(torch, value, report)
        except Exception as error:
            report(False, f"{type(error).__name__}: {error}")


def complain(message: Mapping[str, Any]) -> None:
    """Prints to standard error that a change is not in effect, for a run that reports to no one else."""
    change = message["change"]
    if change.get("given_up"):
        print(f"sweeper: `{change['name']}` is given up here: {change['why']}.", file=sys.stderr)
    elif not change["applied"]:
        print(f"sweeper: `{change['name']}` is not changed here: {change['why']}.", file=sys.stderr)
