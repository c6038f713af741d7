"""`sweeper init`: writes a first search space for a pipeline or a command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.screen import console, say
from sweeper.errors import UserError
from sweeper.results.formatting import rate, seconds
from sweeper.scaffold.command_space import help_of, propose
from sweeper.scaffold.command_yaml import yaml_of
from sweeper.scaffold.pipeline_options import pipeline_options
from sweeper.scaffold.pipeline_space import first_space, machine_here, name_of, searched_names
from sweeper.schema.rules import leads_elsewhere
from sweeper.script.run.command_line import CommandLine, parse_command
from sweeper.script.run.first_look import FirstLook, look_at
from sweeper.system.files import STDOUT, check_out, write_atomic, writing


def init(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="A pipeline's module, or `x` for `pipelines.x`.", metavar="PIPELINE"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help="Instead of a pipeline: the command line of your training script, in quotes."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; `-` prints. Default: NAME.yaml."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    watch: Annotated[
        bool, typer.Option(help="Run the command for a few seconds to see its options' current values.")
    ] = True,
) -> None:
    """Write a first search space for a pipeline or for a training script.

    The space fits this machine's device.

    The options and the values worth searching are read from a pipeline's source (DATA, MODEL, SPACE),
    or from a script's command line, its --help and a few seconds of its training.

    Example: sweeper init tabular --out first.yaml
    """
    if pipeline is not None and command is None:
        init_pipeline(pipeline, out, force=force)
    elif command is not None and pipeline is None:
        init_script(command, out, force=force, watch=watch)
    else:
        both = f"{pipeline!r} and --command" if pipeline else "neither"
        raise UserError(f"`sweeper init` needs a PIPELINE or a --command, but got {both}.")


def init_pipeline(name: str, out: Path | None, *, force: bool) -> None:
    """Writes a search space for a pipeline and this machine's device; prints the next steps.

    Args:
        name: A module's dotted name, or `x` for `pipelines.x`.
        out: The file, `-` for standard output; named after the pipeline by default.
        force: Whether to overwrite an existing file.

    Raises:
        UserError: It is not a pipeline, or the file exists or cannot be written.
        EnvironmentStopError: The device cannot be probed.
    """
    offer = pipeline_options(name)
    default = Path(f"{name_of(offer)}.yaml")
    path = _check_free(out or default, force=force)
    machine = machine_here()
    shown = shlex.quote(str(default if path == STDOUT else path))
    if _write(path, first_space(offer, machine, shown)):
        searches = _names(searched_names(offer, machine))
        _say(path, [f"Written to {path}, for {machine.line}: it searches {searches}."])


def init_script(command: str, out: Path | None, *, force: bool, watch: bool = True) -> None:
    """Writes a search space for a command line; prints the next steps.

    Args:
        watch: Whether the command runs for a few seconds to see the values of its options.
        out: The file, `-` for standard output; named after the script by default.
        force: Whether to overwrite an existing file.

    Raises:
        UserError: It is not a command line, its script does not exist, or the file exists or
            cannot be written.
    """
    line = parse_command(command)
    if line.script.endswith(".py") and not Path(line.script).is_file():
        raise UserError(
            f"`--command` must name an existing script, but {line.script!r} is not in"
            f" {str(Path.cwd())!r}. Change to its folder, or give its path."
        )
    path = _check_free(out or Path(f"{propose(line).name}.yaml"), force=force)
    look = _look(line) if watch else None
    proposal = propose(line, help_of(line), look)
    if not _write(path, yaml_of(proposal)):
        return
    lines = [_describe(look)] if look else []
    lines.append(
        f"Written to {path}: it searches {_names(dimension.name for dimension in proposal.searched)}."
    )
    if proposal.undecided:
        lines.append(
            f"Commented out, for you to decide: {_names(dimension.name for dimension in proposal.undecided)}."
        )
    _say(path, lines)


def _look(line: CommandLine) -> FirstLook | None:
    screen = console(stderr=True)
    words = [*line.start, *(word for group in line.options for word in group)]
    if reason := leads_elsewhere(words):
        screen.print(f"The command is not run, because {reason}.")
        return None
    screen.print("Watching the command for a few seconds ...")
    return look_at(words, Path.cwd(), line.env)


def _describe(look: FirstLook) -> str:
    if look.failure is not None:
        return f"Its training could not be watched ({look.failure.message}). Check it before you sweep."
    startup = seconds(look.startup_seconds)
    return f"It trains at {rate(look.samples_per_s)}, reported by {look.source}; start-up {startup}."


def _write(path: Path, text: str) -> bool:
    """Writes `text`; returns False for standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
        return False
    with writing(path.parent):
        write_atomic(path, text)
    return True


def _say(path: Path, lines: list[str]) -> None:
    name = shlex.quote(str(path))
    say(console(), *lines, "Review it, then run:", f"  sweeper check {name} --deep", f"  sweeper run {name}")


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing yet"


def _check_free(path: Path, *, force: bool) -> Path:
    """Returns `path` if a file can be written there."""
    if path == STDOUT:
        return path
    check_out(path)
    if path.exists() and not force:
        raise UserError(
            f"`--out` must not exist yet, but {str(path)!r} does. Choose another file, or add --force."
        )
    return path
