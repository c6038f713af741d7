"""sweeper: finds the training configuration that makes your GPU busy, and proves it."""

from typing import Any

from sweeper.metering import Meter, meter

__all__ = ["Meter", "load", "meter"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `load` (`sweeper.tables`) where it is used: a script that only meters needs none of it."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    # By its name: nothing below may seem to rest on it.
    return importlib.import_module("sweeper.tables").load
