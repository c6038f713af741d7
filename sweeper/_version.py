"""The version. Packaging reads it from here."""

__version__ = "0.2.0"
