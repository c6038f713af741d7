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

from .augmentation_workers import AugmentationWorkers
from .batch_size import BatchSize
from .change import CLOSE, EXACT, ORIGINAL, Change
from .collector import Collector
from .ddp import Ddp
from .environment import Allocator, Malloc, Pages, Spinning, Threads
from .exchange import Exchange
from .gpu import Cudnn, Pinned, Tf32
from .images import Images
from .loader import LoaderChange
from .model import Compiled, Layout, Precision
from .optimizer import Fused
from .persistent_workers import PersistentWorkers
from .worker_threads import WorkerThreads

CHANGES_VARIABLE = "SWEEPER_CHANGES"
"""Environment variable with the changes to make: `loader=gathered optimizer=fused`."""

FILE_VARIABLE = "SWEEPER_CHANGES_FILE"
"""Environment variable that names a user's file with more changes, in a list `CHANGES`."""

BATCH_SIZE = BatchSize()
# Workers that live on come first, since other changes say how many there are; then images and augmentation
# workers, since a gathered loader does not ask for them.
_ALL = (
    PersistentWorkers(),
    WorkerThreads(),
    Images(),
    AugmentationWorkers(),
    LoaderChange(),
    Pinned(),
    Collector(),
    Fused(),
    Compiled(),
    Layout(),
    Precision(),
    Ddp(),
    Exchange(),
    Tf32(),
    Cudnn(),
    BATCH_SIZE,
    Malloc(),
    Threads(),
    Spinning(),
    Allocator(),
    Pages(),
)
CHANGES: Mapping[str, Change] = {change.name: change for change in _ALL}
"""All changes that come with sweeper, by the name of their parameter, in the order in which they are made."""


def is_original(name: str, value: str) -> bool:
    """Returns whether a value of a change leaves the script as it is."""
    return value == ORIGINAL or (name == BATCH_SIZE.name and BATCH_SIZE.is_own(value))


def takes_long(name: str) -> bool:
    """Returns whether a change takes so long to make, as compiling does, that it is tried last."""
    return name in CHANGES and CHANGES[name].limit_seconds > 0


def load_changes(path: str = "") -> dict[str, Change]:
    """Returns all changes by name, those of a user's file included.

    Raises:
        ValueError: The file has no list `CHANGES` of changes that can be verified.
    """
    if not path:
        return dict(CHANGES)
    spec = importlib.util.spec_from_file_location("sweeper_changes", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wanted = ("name", "choices", "kind", "why", "apply")
    listed = getattr(module, "CHANGES", None)
    if not isinstance(listed, (list, tuple)) or not all(
        hasattr(change, name) for change in listed for name in wanted
    ):
        raise ValueError(f"{path} must have a list CHANGES of objects with {', '.join(wanted)}")
    changes = [_with_defaults(change) for change in listed]
    for change in changes:
        if change.kind not in (EXACT, CLOSE):
            raise ValueError(f"the kind of {change.name} must be {EXACT} or {CLOSE}, but is {change.kind!r}")
        if change.rounding <= 0:
            raise ValueError(f"the rounding of {change.name} must be above 0, but is {change.rounding!r}")
    return {**CHANGES, **{change.name: change for change in changes}}


def _with_defaults(change: Any) -> Change:
    """Returns a user's change with the attributes and methods of `Change` that it lacks.

    Its file derives from no class of sweeper's, which the script's interpreter may not have.
    """
    kind = type(change)
    if not isinstance(change, Change):
        # A new object will not do: only the file knows how to make one, and its code may refer to this one.
        change.__class__ = type(kind.__name__, (kind, Change), {"__module__": kind.__module__})
    derived: Change = change
    return derived


def parse_changes(text: str, changes: Mapping[str, Change] = CHANGES) -> dict[str, str]:
    """Returns the changes that the variable's text names.

    Raises:
        ValueError: One of them is unknown.
    """
    values = {}
    changes = {name: change for name, change in changes.items() if not change.is_of_environment}
    for word in text.split():
        name, _, value = word.partition("=")
        if name == BATCH_SIZE.name and BATCH_SIZE.accepts(value):
            if not BATCH_SIZE.is_own(value):
                values[name] = value
            continue
        if name not in changes or value not in (ORIGINAL, *changes[name].choices):
            listed = ", ".join(
                f"{name}={value}" for name, change in changes.items() for value in change.choices
            )
            raise ValueError(f"{CHANGES_VARIABLE} must name known changes ({listed}), but has {word!r}")
        if value != ORIGINAL:
            values[name] = value
    return {name: values[name] for name in changes if name in values}


def variable_of(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variable that names some changes; empty without any."""
    text = " ".join(f"{name}={value}" for name, value in changes.items())
    return {CHANGES_VARIABLE: text} if text else {}


def apply(torch: Any, text: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Makes the changes that the variable's text names.

    Args:
        tell: Called for each change with whether it is in effect and, if not, the reason.

    Raises:
        ValueError: One of them is unknown.
    """
    if not text.strip():
        return
    changes = load_changes(os.environ.get(FILE_VARIABLE, ""))
    for name, value in parse_changes(text, changes).items():

        def report(
            is_applied: bool, why: str = "", /, name: str = name, *, was_applied: bool = False
        ) -> None:
            change = {"name": name, "applied": is_applied, "why": why}
            tell({"change": {**change, "given_up": True} if was_applied else change})

        try:
            changes[name].apply(torch, value, report)
        except Exception as error:
            report(False, f"{type(error).__name__}: {error}")


def complain(message: Mapping[str, Any]) -> None:
    """Prints to standard error that a change is not in effect, for a run that reports to no one else."""
    change = message["change"]
    if change.get("given_up"):
        print(f"sweeper: `{change['name']}` is off from here on: {change['why']}.", file=sys.stderr)
    elif not change["applied"]:
        print(f"sweeper: `{change['name']}` is not applied: {change['why']}.", file=sys.stderr)
