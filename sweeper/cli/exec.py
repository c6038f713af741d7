"""`sweeper exec`: runs a training script with the changes that a tune found."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.cli.options import Command
from sweeper.cli.screen import console, say
from sweeper.errors import UserError
from sweeper.exports import read, variables_of
from sweeper.script import inside
from sweeper.script.changes.loader import COLLATED, LoaderChange
from sweeper.script.changes.rows.dataset_file import KEPT_VARIABLE
from sweeper.script.run.command_line import without_search_path
from sweeper.script.run.interpreter import torch_of
from sweeper.sweep.folder.fingerprint import digest_of_scripts


def exec(
    exported: Annotated[Path, typer.Argument(help="A file written by `sweeper tune`.", metavar="BEST.yaml")],
    command: Command,
) -> None:
    """Run a training script with the changes that a tune found, made at run time.

    The script runs in this folder and replaces this process; its files are not edited. A change that
    cannot be made is reported on standard error, and the script runs without it.

    Example: sweeper exec mlruns/sweeps/tune-train/best.yaml -- python train.py --epochs 30
    """
    value = read(exported)
    if "command" not in value:
        raise UserError(
            f"`sweeper exec` needs the export of a command, but {str(exported)!r} is a pipeline's."
        )
    say(console(stderr=True), *(f"sweeper: {difference}." for difference in differences(value, command)))
    sys.stdout.flush()
    command, searched = without_search_path(command)
    if searched is not None:
        os.environ["PYTHONPATH"] = searched
    try:
        os.execvpe(
            command[0], command, {**folder_variable(exported, value), **os.environ, **environment(value)}
        )
    except OSError as error:
        raise UserError(f"the command cannot be run: {command[0]}: {error.strerror}.") from None


def differences(value: Mapping[str, Any], command: Sequence[str]) -> Iterator[str]:
    """Yields the differences from the training that was measured and verified."""
    measured = value["conditions"].get("torch")
    # A build adds to its version what its metadata may lack: 2.14.1+cu130 is 2.14.1.
    if measured and (here := torch_of(command)) and _without_build(here) != _without_build(measured):
        yield f"measured with torch {measured}, but this is {here}"
    verified = value.get("verification")
    with contextlib.suppress(UserError):
        if verified and verified["code"] != digest_of_scripts(command):
            again = "`sweeper tune` verifies it again"
            yield f"the script has changed since it was verified and measured; {again}"


def _without_build(version: str) -> str:
    return version.partition("+")[0]


def folder_variable(exported: Path, value: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variable that names the folder of collated data sets, next to the export, if used."""
    if value["changes"].get(LoaderChange.name) not in COLLATED:
        return {}
    folder = exported.resolve().with_suffix(".batches")
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return {}
    return {KEPT_VARIABLE: str(folder)}


def environment(value: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment variables of an export, with those that make its changes at run time."""
    variables = variables_of(value)
    # If a hook already watches the script, it makes the changes.
    if not value["changes"] or inside.HOOK_VARIABLE in os.environ:
        return variables
    return {**variables, **inside.environment({**os.environ, **variables}, inside.EXECUTE)}
