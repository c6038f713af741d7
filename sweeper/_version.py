"""Holds the version, which packaging reads from here."""

__version__ = "0.3.0.dev0"
