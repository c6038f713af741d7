"""`sweeper train best.yaml`: the production run of an exported command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sweeper.cli.screen import console
from sweeper.core.errors import UserError
from sweeper.core.files import write_atomic
from sweeper.spec import read_yaml


def train_command(exported: Path, *, force: bool) -> NoReturn:
    """Writes the files of an exported command, and becomes it, in the current directory.

    Args:
        force: Files that differ are overwritten.

    Raises:
        UserError: It is no export of a command, or a file of another content is in the way.
    """
    value: Mapping[str, Any] = read_yaml(exported)
    # A search space has a command, too.
    if not isinstance(value, Mapping) or not {"command", "env", "files"} <= value.keys():
        raise UserError(
            "`sweeper train` needs what `sweeper export NAME` wrote for a `command`,"
            f" but got {str(exported)!r}."
        )
    for name, text in value["files"].items():
        path = Path(name)
        if path.exists() and path.read_text(encoding="utf-8") != text and not force:
            raise UserError(f"{name} is there already and differs; --force overwrites it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    command = [str(item) for item in value["command"]]
    console().print(f"Running {shlex.join(command)}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, **value["env"]})
    except OSError as error:
        raise UserError(f"the command cannot be run: {command[0]}: {error.strerror}.") from None
