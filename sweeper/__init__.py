"""sweeper: finds the training configuration that makes your GPU busy, and proves it."""

from sweeper.metering import Meter, meter

__all__ = ["Meter", "meter"]
__version__ = "0.1.0"
