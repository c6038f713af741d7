"""The formats of an export, and what each needs besides it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.errors import UserError, did_you_mean
from sweeper.export.flags import flags
from sweeper.export.job_script import job_script
from sweeper.export.python_lines import python_lines
from sweeper.export.words import origin, promise
from sweeper.spec import to_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a format may need besides the export.

    Attributes:
        flags: One's own flags by dotted name (`sweeper.export.flags`).
        runs: The file that a job script trains from.
        reasons: What was measured of a value, by dotted name.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    runs: str = "best.yaml"
    reasons: Mapping[str, str] = field(default_factory=dict)


def _as_yaml(value: Mapping[str, Any], options: Options) -> str:
    return "".join(f"# {line}\n" for line in _header(value)) + to_yaml(value)


def _header(value: Mapping[str, Any]) -> Iterator[str]:
    yield f"A training configuration found by sweeper: {origin(value)}."
    yield f"Written by:  sweeper export {value['provenance']['sweep']} --trial {value['provenance']['trial']}"
    yield f"Promised:    {promise(value)}"
    for warning in value["warnings"]:
        yield f"Warning:     {' '.join(warning.split())}"
    yield "Run it:      sweeper train FILE, with the name of this file"


def _as_json(value: Mapping[str, Any], options: Options) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _as_arguments(value: Mapping[str, Any], options: Options) -> str:
    """Returns a command line as a shell takes it, the files it needs in comments before it."""
    if "command" not in value:
        return shlex.join(flags(value, options.flags)) + "\n"
    if options.flags:
        raise UserError(
            "`--map` must be for the sweep of a pipeline, but this one is of a `command`, whose own "
            "templates say how its flags are written. Leave it out."
        )
    lines = []
    for path, text in value["files"].items():
        shown = path if path.isprintable() else repr(path)
        lines += [f"# {shown}:", *(f"#   {line}" for line in text.splitlines())]
    own = [f"{name}={shlex.quote(text)}" for name, text in value["env"].items()]
    return "\n".join([*lines, " ".join([*own, shlex.join(value["command"])])]) + "\n"


FORMATS: Mapping[str, Callable[[Mapping[str, Any], Options], str]] = {
    "yaml": _as_yaml,
    "json": _as_json,
    "args": _as_arguments,
    "sbatch": lambda value, options: job_script(value, options.runs),
    "python": lambda value, options: python_lines(value, options.reasons),
}
"""The formats of `sweeper export`; a new one is a line here."""


def check_format(form: str) -> None:
    """Raises a UserError where there is no such format."""
    if form not in FORMATS:
        raise UserError(
            f"`--format` must be one of {', '.join(FORMATS)}, but got {form!r}.{did_you_mean(form, FORMATS)}"
        )


def rendered(value: Mapping[str, Any], form: str, options: Options | None = None) -> str:
    """Returns an export as text.

    Raises:
        UserError: The format is unknown, or is none for this export.
    """
    check_format(form)
    return FORMATS[form](value, options or Options())
