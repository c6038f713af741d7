"""Writes an export as YAML, as JSON or as a command line, or in any format of the table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.export_formats import FORMATS
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.exports.document import origin, promise
from sweeper.exports.flags import flags
from sweeper.exports.reading import variables_of
from sweeper.schema import to_yaml
from sweeper.script import inside
from sweeper.script.run.command_line import without_search_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Inputs that a format may need besides the export.

    Attributes:
        flags: The script's own flags by dotted name (`sweeper.exports.flags`).
        runs: The exported file that a job script trains from.
        reasons: The measured effect of a setting, by dotted name.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    runs: str = "best.yaml"
    reasons: Mapping[str, str] = field(default_factory=dict)


def as_yaml(value: Mapping[str, Any], options: Options) -> str:
    """Returns an export as YAML with a readable header."""
    return "".join(f"# {line}\n" for line in _header(value)) + to_yaml(value)


def _header(value: Mapping[str, Any]) -> Iterator[str]:
    yield f"A training configuration found by sweeper: {origin(value)}."
    yield f"Written by:  sweeper export {value['provenance']['sweep']} --trial {value['provenance']['trial']}"
    yield f"Promised:    {promise(value)}"
    for warning in value["warnings"]:
        yield f"Warning:     {' '.join(warning.split())}"
    yield "Run it:      sweeper train FILE (the name of this file)"


def as_json(value: Mapping[str, Any], options: Options) -> str:
    """Returns an export as JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def as_arguments(value: Mapping[str, Any], options: Options) -> str:
    """Returns a shell command line, preceded by commands that write the files it needs.

    If a file already exists, it is kept and the command does not run.

    Raises:
        UserError: `--map` is given for a script, or names an unknown setting.
    """
    if "command" not in value:
        return shlex.join(flags(value, options.flags)) + "\n"
    if options.flags:
        raise UserError(
            "`--map` is for the sweep of a pipeline, but this one runs a `command`, whose templates "
            "already hold its flags. Leave it out."
        )
    lines = []
    for path, text in value["files"].items():
        folder, end = path.rpartition("/")[0], "SWEEPER"
        while end in text.splitlines():
            end += "_"
        make = f"mkdir -p -- {shlex.quote(folder)} && " if folder else ""
        if text.endswith("\n"):
            lines += [f"( set -C; {make}cat > {shlex.quote(path)} ) <<'{end}' &&", text[:-1], end]
        else:
            # A here-document would add a newline.
            lines.append(f"( set -C; {make}printf %s {shlex.quote(text)} > {shlex.quote(path)} ) &&")
    command, searched = without_search_path(value["command"])
    return "\n".join([*lines, " ".join([*_assignments(value, searched), shlex.join(command)])]) + "\n"


def _assignments(value: Mapping[str, Any], searched: str | None) -> Iterator[str]:
    """Yields the variables of a script for a shell, with those that make its changes at run time.

    Args:
        searched: PYTHONPATH as the command sets it; None if it does not.
    """
    env = {**variables_of(value), **({} if searched is None else {"PYTHONPATH": searched})}
    hook = inside.environment(env, inside.EXECUTE) if value["changes"] else {}
    for name, text in {**env, **hook}.items():
        # The hook is found through the path, and what the shell has in it stays.
        rest = '"${PYTHONPATH:+:$PYTHONPATH}"' if name == "PYTHONPATH" and name not in env else ""
        yield f"{name}={shlex.quote(text)}{rest}"


def render_export(value: Mapping[str, Any], form: str, options: Options | None = None) -> str:
    """Returns an export as text.

    Raises:
        UserError: The format is unknown, does not apply to this export, or is a third party's and fails.
    """
    render = resolve(FORMATS.get(form).render)
    try:
        text: str = render(value, options or Options())
    except UserError:
        raise
    except Exception as error:
        if form in FORMATS.builtin:
            raise
        raise UserError(
            f"`--format {form}` failed: {type(error).__name__}: {error}. Fix it, or use another format."
        ) from error
    return text
