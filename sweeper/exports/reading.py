"""Reads an export back in order to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core import schema_1
from sweeper.core.codec import DecodeError, decode, encode
from sweeper.core.config import OPEN_SECTIONS, TrialConfig, check_value
from sweeper.errors import UserError, did_you_mean
from sweeper.exports.schema import SCHEMA, OfPipeline, OfScript, blocks, kinds
from sweeper.schema import read_yaml
from sweeper.script.changes import variable_of

_BLOCKS = dict.fromkeys(blocks(), Mapping)
_LARGER = 256
"""Factor for the size limits: an export holds the files of a script, whose templates may have 1 MiB each."""


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns an export (YAML or JSON, of this schema or an older one) as the plain values that were written.

    Args:
        overrides: `key=value` pairs from the command line, applied to these values.

    Raises:
        UserError: It cannot be read, is not an export, has a newer schema, or was edited into an
            invalid configuration.
    """
    value = read_yaml(path, overrides, times=_LARGER)
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is not int or schema < 1:
        raise _no_export(path, "has no `schema`")
    if schema > SCHEMA:
        raise UserError(
            f"an export must have schema {SCHEMA} or older, but {str(path)!r} has {schema}. "
            "Use the version of sweeper that wrote it, or a newer one."
        )
    if schema < SCHEMA:
        value = {**schema_1.export(value), "schema": SCHEMA}
    subject = OfScript if "command" in value else OfPipeline
    for name, kind in {**kinds(subject), **_BLOCKS}.items():
        if not isinstance(value.get(name), kind):
            raise _no_export(path, f"has no `{name}`")
    if "config" in value:
        _check_config(value["config"], path)
    export: dict[str, Any] = value
    return export


def variables_of(value: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment variables of a script's export, with the one that names its changes."""
    variables = {name: str(text) for name, text in value["env"].items()}
    return {**variables, **variable_of(value["changes"])}


def pass_env(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the environment variables that an export's run gets in addition to the usual ones.

    Raises:
        UserError: They are not a list of names.
    """
    section = value.get("execution") or {}
    names = section.get("pass_env", []) if isinstance(section, Mapping) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            "`execution.pass_env` must be a list of environment variable names, but got something else."
            " Write it like `execution: {pass_env: [AWS_PROFILE]}`."
        )
    return tuple(names)


def _no_export(path: Path, why: str) -> UserError:
    return UserError(
        f"the file must be one that `sweeper export` wrote, but {str(path)!r} {why}. "
        "Write one with `sweeper export NAME --out FILE`."
    )


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    try:
        decoded = decode(TrialConfig, config)
        check_value("loader.kind", decoded.loader.kind)
    except (DecodeError, UserError) as error:
        raise UserError(f"{path}: `config`: {error}") from error
    fields = encode(decoded)
    for name, near in _unknown_names(config, fields):
        raise UserError(f"{path}: `config.{name}` must be a field of a trial.{near}")


def _unknown_names(
    config: Mapping[str, Any], fields: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, str]]:
    """Yields unknown names, each with a suggestion."""
    for name, value in config.items():
        if name not in fields:
            yield above + name, did_you_mean(name, fields)
        elif isinstance(value, Mapping) and name not in (*OPEN_SECTIONS, "args"):
            yield from _unknown_names(value, fields[name], f"{above}{name}.")
