"""sweeper: finds the training configuration that makes your GPU busy, and proves it."""

from typing import Any

from sweeper._version import __version__
from sweeper.metering import Meter, meter

__all__ = ["Meter", "__version__", "load", "meter"]


def __getattr__(name: str) -> Any:
    """Imports `load` where it is used: a script that only meters needs none of it."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sweeper.tables import load

    return load
