"""Runs modules of sweeper in new Python processes."""

from __future__ import annotations

import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that contains the package."""


def python_module(name: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of sweeper, and of the sweeper that runs now.

    Files in the current folder do not stand in for modules: a project may have a `queue.py`, or a clone
    named `sweeper`. Only a checkout that runs from its own folder is found there, installed or not.
    """
    options = ["-m"] if Path.cwd() == _CHECKOUT else ["-P", "-m"]
    return [sys.executable, *options, name, *arguments]
