"""Refuses secrets in a specification: all of it goes to the sweep's folder, to MLflow and to reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.core.environment import MIN_SECRET_LENGTH, is_secret_name
from sweeper.core.secrets import kind_of, struck
from sweeper.spec.mistakes import Mistake, Path, dotted, show

_REMEDY = (
    "Everything here is logged: put it into an environment variable, name that in"
    " `execution.pass_env: [NAME]`, and read it in your code."
)


def held_secrets(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each text that has a secret's shape, and for each secret in `script.env`."""
    options = tree.get("script")
    own = options.get("env") if isinstance(options, Mapping) else None
    for name, value in own.items() if isinstance(own, Mapping) else ():
        # A template's value comes from the space, which is looked at itself.
        given = isinstance(value, str) and len(value) >= MIN_SECRET_LENGTH and "{" not in value
        if given and is_secret_name(str(name)) and not kind_of(value):
            yield Mistake(
                ("script", "env", name), f"`script.env.{name}` must hold no secret, but got ***. {_REMEDY}"
            )
    yield from _in(tree, ())


def _in(value: Any, path: Path) -> Iterator[Mistake]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            # The message must not say it either.
            if kind := kind_of(str(key)):
                yield Mistake((*path, key), f"A key must hold no secret, but got {kind}. {_REMEDY}", True)
            else:
                yield from _in(each, (*path, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _in(each, (*path, index))
    elif isinstance(value, str) and (kind := kind_of(value)):
        text = f"`{dotted(path)}` must hold no secret, but got {kind}, {show(struck(value))}. {_REMEDY}"
        yield Mistake(path, text)
