"""The exit codes of the commands (docs/commands.md). The errors have theirs, 2 to 6, in `sweeper.errors`."""

from __future__ import annotations

FAILED = 1
"""The check that was asked for did not hold, a script cannot be measured, or it does not train the same."""
PENDING = 7
"""Done, but some runs are not in MLflow yet."""
BUG = 70
"""A bug in sweeper."""
HUNG_UP = 129
"""The terminal was closed; the same command continues."""
INTERRUPTED = 130
"""Ctrl-C; the same command continues."""
TERMINATED = 143
"""SIGTERM; the same command continues."""
