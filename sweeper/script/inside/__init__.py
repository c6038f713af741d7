"""Watches a training from inside the user's process, and neither edits nor prints anything.

`environment` puts a folder in front of the interpreter's path. Its `sitecustomize` waits for torch to
be imported, then loads `hook` under a private name, so that a user's module `sweeper` is not replaced.

Uses only the standard library, and runs on Python 3.8, since a script brings its own interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "SWEEPER_HOOK"
"""Environment variable that turns the hook on; its value is a mode."""

LOSSES_VARIABLE = "SWEEPER_HOOK_LOSSES"
"""Environment variable; `all` makes every loss count, since the mean of a few is too rough for a limit."""

FOLDER_VARIABLE = "SWEEPER_HOOK_FOLDER"
"""Environment variable that names the trial's folder, in which the script may write."""

OUTSIDE_VARIABLE = "SWEEPER_HOOK_OUTSIDE"
"""Environment variable; if it is set, what the script does outside of its folder is reported, too."""

WATCH, RECORD, EXECUTE = "watch", "record", "execute"
"""Modes: count steps, samples and losses; record a seeded run bit for bit first; or make changes and watch
nothing."""

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""Folder on PYTHONPATH that contains only `sitecustomize`."""


def environment(
    environ: Mapping[str, str], mode: str = WATCH, folder: str = "", *, all_losses: bool = False
) -> dict[str, str]:
    """Returns the variables that bring the hook into Python processes started with `environ`.

    The hook's messages go to the socket that `sweeper.script.metering.VARIABLE` names.

    Args:
        folder: Folder that the script may write to; the working directory by default.
        all_losses: Whether every loss is read, which takes one or two microseconds per step.
    """
    path = environ.get("PYTHONPATH", "")
    searched = f"{SITE}{os.pathsep}{path}" if path else SITE
    variables = {VARIABLE: mode, FOLDER_VARIABLE: folder, "PYTHONPATH": searched}
    return {**variables, LOSSES_VARIABLE: "all"} if all_losses else variables
