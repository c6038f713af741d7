"""`sweeper init`: a first search space for a command line, written to a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.text import Text

from sweeper.cli.screen import console
from sweeper.core.errors import UserError
from sweeper.core.files import write_atomic
from sweeper.script.command_line import parted
from sweeper.script.known_options import Dimension
from sweeper.script.proposed_yaml import rendered
from sweeper.script.proposing import help_of, propose
from sweeper.sweep.opening import cannot_write

STDOUT = Path("-")


def init_command(command: str, out: Path | None, *, force: bool) -> None:
    """Writes a search space for a command line, and says what to do with it.

    Args:
        out: The file, `-` for standard output; by default it is called after the script.
        force: A file that is there already is overwritten.

    Raises:
        UserError: It is no command line, its script is not there, or the file cannot be one or is in the way.
    """
    line = parted(command)
    if line.script.endswith(".py") and not Path(line.script).is_file():
        raise UserError(
            f"`--command` must name a script that is there, but {line.script!r} is not in"
            f" {str(Path.cwd())!r}. Go to its folder first, or name it with its path."
        )
    path = out or Path(f"{propose(line).name}.yaml")
    if path != STDOUT:
        _require_free(path, force=force)
    proposal = propose(line, help_of(line))
    text = rendered(proposal)
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        write_atomic(path, text)
    except OSError as error:
        raise cannot_write(error, path.parent) from error
    name = shlex.quote(str(path))
    said = [f"Written to {path}: it searches {_names(proposal.searched) or 'nothing yet'}."]
    if proposal.undecided:
        said.append(f"In comments, for you to decide: {_names(proposal.undecided)}.")
    said += ["Look it over, and then:", f"  sweeper check {name} --deep", f"  sweeper run {name}"]
    for each in said:
        console().print(Text(each), soft_wrap=True)


def _names(dimensions: tuple[Dimension, ...]) -> str:
    return ", ".join(each.name for each in dimensions)


def _require_free(path: Path, *, force: bool) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"`--out` must be a file in a folder that exists, but got {str(path)!r}.")
    if path.exists() and not force:
        raise UserError(
            f"`--out` must not be there yet, but {str(path)!r} is. Name another file, or add --force."
        )
