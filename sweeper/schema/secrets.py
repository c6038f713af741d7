"""Refuses secrets in a specification, since it is logged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sweeper.schema.mistakes import Mistake, Path, dotted_name, show
from sweeper.system.environment import MIN_SECRET_LENGTH, is_secret_name
from sweeper.system.secrets import kind_of, strike

SECRET_REMEDY = (
    "Everything here is logged. Put it into an environment variable, add that to"
    " `execution.pass_env: [NAME]`, and read it in your code."
)
_STORAGE_REMEDY = (
    "Its password is read from PGPASSWORD or ~/.pgpass (for MySQL: `?read_default_file=~/.my.cnf`)."
)
_ENV: Path = ("script", "env")
_PASSWORD = re.compile(r"PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY", re.IGNORECASE)
"""Pattern of keys that hold only secrets, unlike `sort_key` and `pad_token`."""


def secret_in(text: str, secrets: Collection[str]) -> str:
    """Returns the kind of secret that a text holds: one of `secrets`, or one by its shape; empty if none."""
    if any(value in text for value in secrets):
        return "the value of a secret environment variable"
    return kind_of(text)


def held_secrets(tree: Mapping[str, Any], secrets: Collection[str]) -> Iterator[Mistake]:
    """Yields a mistake for each text that is a secret: by its shape, by its name, or one of `secrets`."""
    yield from _in(tree, (), secrets)


def _in(value: Any, path: Path, secrets: Collection[str]) -> Iterator[Mistake]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            place = (*path, key)
            # The message must not repeat the secret.
            if kind := secret_in(str(key), secrets):
                yield Mistake(place, f"A key must hold no secret, but got {kind}. {SECRET_REMEDY}", True)
            elif _is_named(place, child) and not secret_in(child, secrets):
                yield Mistake(
                    place, f"`{dotted_name(place)}` must hold no secret, but got ***. {SECRET_REMEDY}"
                )
            else:
                yield from _in(child, place, secrets)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _in(child, (*path, index), secrets)
    elif isinstance(value, str) and (kind := secret_in(value, secrets)):
        shown = show(strike(value, secrets))
        remedy = _STORAGE_REMEDY if path == ("storage",) else SECRET_REMEDY
        text = f"`{dotted_name(path)}` must hold no secret, but got {kind}, {shown}. {remedy}"
        yield Mistake(path, text)


def _is_named(place: Path, value: Any) -> bool:
    """Returns whether the name of the key shows that the text is a secret."""
    # A template's value comes from the space, which is checked as well.
    if not isinstance(value, str) or len(value) < MIN_SECRET_LENGTH or "{" in value:
        return False
    name = str(place[-1])
    return is_secret_name(name) if place[:-1] == _ENV else bool(_PASSWORD.search(name))
