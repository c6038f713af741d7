"""Runs modules of sweeper in new Python processes."""

from __future__ import annotations

import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that contains the package."""


def python_module(name: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of this very installation of sweeper.

    The current folder is not searched for modules: a project may contain a `queue.py`, or a clone named
    `sweeper`. The exception is a checkout of sweeper that runs from its own folder, installed or not.
    """
    options = ["-m"] if Path.cwd() == _CHECKOUT else ["-P", "-m"]
    return [sys.executable, *options, name, *arguments]
