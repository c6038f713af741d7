"""Defines the exceptions that a caller can handle, with the exit code of each.

SweeperError
├── UserError (also ValueError)      2   the input is wrong; nothing was started
├── SweepConflictError               3   another process holds the sweep, or its spec has changed
├── NothingFeasibleError             4   even the baseline failed, or nothing to export
├── StorageError                     5   a required storage or tracking server cannot be reached
└── EnvironmentStopError             6   disk full, device lost, the same user error three times
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SweeperError(Exception):
    """A failure in one line: what happened, what was kept, what to do next."""

    exit_code = 70


class UserError(SweeperError, ValueError):
    """The user's input breaks a rule; the message gives rule, value and remedy."""

    exit_code = 2


class SweepConflictError(SweeperError):
    """The sweep is held by another process, or its specification has changed."""

    exit_code = 3


class NothingFeasibleError(SweeperError):
    """Even the baseline failed, or there is no feasible trial to export."""

    exit_code = 4


class StorageError(SweeperError):
    """A required storage or tracking server cannot be reached."""

    exit_code = 5


class EnvironmentStopError(SweeperError):
    """The environment ended the sweep: disk full, device lost, a repeated user error."""

    exit_code = 6


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns `` Did you mean `x`?`` for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.55)
    return f" Did you mean `{near[0]}`?" if near else ""
