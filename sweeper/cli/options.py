"""The options and arguments that several commands take.

`Unprotected` and `PassEnv` take effect as they are parsed, through environment variables; commands only
declare them.
"""

from __future__ import annotations

import math
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from sweeper.core.home import SHELL_URI
from sweeper.core.script import UNPROTECTED
from sweeper.errors import UserError
from sweeper.system.environment import PASS_ENV

MAX_SHOWN = 80
FOLDERS = ("sweeps", "train", "cache", "cache/compile")
"""Folders in a state folder, created when first needed."""


def _state_folder(home: Path) -> Path:
    """Returns a state folder that exists or can be created.

    Raises:
        UserError: It is not a folder, or a file blocks one of its folders.
    """
    try:
        if not home.exists() or home.is_dir():
            _check_folders(home)
            return home
        why = "which is not a folder"
    except OSError as error:
        why = f"which cannot be read: {error.strerror}"
    raise UserError(
        f"`--home` must be a folder, but got {str(home)[:MAX_SHOWN]!r}, {why}. Choose another one."
    )


def _check_folders(home: Path) -> None:
    for path in (home / name for name in FOLDERS):
        if os.path.lexists(path) and not path.is_dir():
            raise UserError(
                f"`{path}` must be a folder, but got a file. "
                "Move it away, or choose another folder with --home."
            )


def _space(given: Path) -> Path:
    """Returns the file of a search space (`sweeper.schema.shipped.space_file`)."""
    # Imported late: it needs pydantic, which would make help slow.
    from sweeper.schema.shipped import space_file

    return space_file(str(given))


def interpret(words: list[str] | None) -> list[str] | None:
    """Returns a command as it was meant, with a program whose environment has torch.

    Says so if that is another one than a shell would take (`sweeper.script.run.interpreter`).
    """
    if not words:
        return words
    from sweeper.script.run.command_line import as_typed
    from sweeper.script.run.interpreter import with_interpreter

    meant, line = with_interpreter(as_typed(words), Path.cwd())
    if line:
        print(line, file=sys.stderr)
    return meant


def export_unprotected(paths: list[str] | None) -> list[str] | None:
    """Lets the scripts of this command write to some places of the user's.

    Raises:
        UserError: One does not exist.
    """
    for path in paths or ():
        if not Path(path).exists():
            raise UserError(f"`--unprotected` must be a file or a folder, but {path!r} does not exist.")
    if paths:
        os.environ[UNPROTECTED] = "\n".join(map(os.path.abspath, paths))
    return paths


def export_pass_env(names: list[str] | None) -> list[str] | None:
    """Lets the scripts of this command see some variables of the environment that are held back.

    Raises:
        UserError: One is not set.
    """
    for name in names or ():
        if not any(fnmatchcase(variable, name) for variable in os.environ):
            raise UserError(
                f"`--pass-env` must name an environment variable, but {name!r} is not set. Export it first."
            )
    if names:
        os.environ[PASS_ENV] = "\n".join(names)
    return names


def gpu_index(device: str) -> str | None:
    """Returns the index of the GPU that `--device` names; None for the CPU.

    Raises:
        UserError: It names no device.
    """
    if device == "cpu":
        return None
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise UserError(f"`--device` must be `cpu` or `cuda:N` such as `cuda:0`, but got {device!r}.")
    return index or "0"


def positive_number(text: str) -> float:
    """Returns the number above 0 that an option names.

    Raises:
        UserError: It is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UserError(f"`--price` and `--epochs` must be numbers above 0, such as 2.5, but got {text!r}.")
    return number


_PATHS = {"--unprotected": ".", "--report": "sweeper-doctor.json"}
"""Options that may stand alone, and the path that they mean then."""


def with_paths(words: list[str]) -> list[str]:
    """Returns a command line in which options that need a path, but stand alone, have their usual one."""
    ours = words[: words.index("--")] if "--" in words else words
    complete = []
    for word, following in zip(ours, [*ours[1:], "-"], strict=False):
        complete.append(word)
        if word in _PATHS and following.startswith("-"):
            complete.append(_PATHS[word])
    return [*complete, *words[len(ours) :]]


Unprotected = Annotated[
    list[str] | None,
    typer.Option(
        "--unprotected",
        metavar="[PATH]",
        help="Let the script write there; without a path, run it in this folder itself. May be repeated.",
        callback=export_unprotected,
    ),
]
PassEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        metavar="NAME",
        help="Let the script see this environment variable, such as a token. May be repeated.",
        callback=export_pass_env,
    ),
]
_COMMAND = typer.Argument(
    metavar="-- COMMAND...", help="The command of the script.", show_default=False, callback=interpret
)
Command = Annotated[list[str], _COMMAND]
OptionalCommand = Annotated[list[str] | None, _COMMAND]
Home = Annotated[
    Path,
    typer.Option(
        "--home", envvar="SWEEPER_HOME", help="State folder.", show_default=True, callback=_state_folder
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price", metavar="P", help="Price of an hour, for the price of a run.", parser=positive_number
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        "--epochs", metavar="N", help="Epochs of a whole run, to say what it takes.", parser=positive_number
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Space = Annotated[
    Path,
    typer.Argument(
        help="The search space: a YAML file, or the name of one that comes with sweeper (`sweeper spaces`).",
        metavar="SPACE",
        callback=_space,
    ),
]
Name = Annotated[str, typer.Argument(help="Name of a sweep (see `sweeper list`).")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the YAML; may be repeated."),
]


def _tracking_uri(context: typer.Context, parameter: typer.CallbackParam, uri: str | None) -> str | None:
    """Returns the tracking URI, and says so if the shell's variable gives it.

    Raises:
        UserError: The variable is not a tracking URI.
    """
    source = context.get_parameter_source(parameter.name or "")
    if not uri or source is None or source.name != "ENVIRONMENT":
        return uri
    from sweeper.tracking.uri import TrackingPlace, is_folder

    home: Path = context.params["home"]
    if is_folder(uri):
        typer.echo(
            f"MLflow: the database in {home}. {SHELL_URI}={TrackingPlace(uri).shown} is a folder, to which"
            " MLflow no longer writes; --tracking-uri names another store.",
            err=True,
        )
        return None
    try:
        place = TrackingPlace.of(home, uri)
    except UserError as error:
        remedy = f"It is from {SHELL_URI}: correct or unset that, or use --tracking-uri."
        raise UserError(f"{error} {remedy}") from None
    if place.uri:
        home_is = f"`--tracking-uri ''` is the database in {home}"
        typer.echo(f"MLflow: {place.shown}, from {SHELL_URI}; {home_is}.", err=True)
    return uri


Uri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        envvar=SHELL_URI,
        metavar="URI",
        help="MLflow server or database. Default: the database in the state folder.",
        callback=_tracking_uri,
    ),
]
