"""sweeper: finds the training configuration that makes your GPU busy, and proves it."""

__version__ = "0.1.0"
