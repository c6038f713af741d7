"""Finds parts by name: built-in ones in a table, all others by an import string such as `my_module:NAME`.

The string is the part's name everywhere: in the configuration, the journal, the fingerprint and MLflow.
Nothing is registered, so nothing is scanned, and a trial imports only what it uses. The supervisor imports
the modules with the rows, so these should not import torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from sweeper.core.modules import import_paths, search_first
from sweeper.errors import UserError, did_you_mean

T = TypeVar("T")


def resolve(path: str) -> Any:
    """Returns the object that the import string `module:name` names.

    Raises:
        UserError: It cannot be imported.
    """
    module, _, name = path.partition(":")
    if not module.startswith("sweeper."):
        search_first(import_paths())
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    # A script that is imported may end the process.
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": .")
        raise UserError(
            f"an import string must name `module:name`, but {path!r} cannot be imported: {message}. "
            "Correct it, or install its package."
        ) from error


class Registry(Generic[T]):
    """The parts that one setting can name.

    Args:
        setting: The setting, as it begins messages.
        expects: The class of these parts.
        builtin: The built-in parts by name.
        classes: Whether the parts are classes derived from `expects` instead of its instances.
    """

    def __init__(
        self, setting: str, expects: type, builtin: Mapping[str, T], *, classes: bool = False
    ) -> None:
        self._setting, self._expects, self._classes = setting, expects, classes
        self.builtin = builtin
        self._gone: set[tuple[str, ...]] = set()

    def get(self, name: object) -> T:
        """Returns the part that `name` stands for.

        Raises:
            UserError: It is neither built in nor the import string of such a part.
        """
        if isinstance(name, str) and name in self.builtin:
            return self.builtin[name]
        if not isinstance(name, str) or ":" not in name:
            near = did_you_mean(str(name), self.builtin)
            names = "a built-in name or " if near else f"one of {', '.join(self.builtin)}, or "
            choices = f"{names if self.builtin else ''}an import string `module:name`"
            raise UserError(f"{self._setting} must be {choices}, but got {name!r}.{near}")
        try:
            part = resolve(name)
        except UserError as error:
            raise UserError(f"{self._setting}: {error}") from error
        is_class = isinstance(part, type)
        if self._classes != is_class or not (issubclass if is_class else isinstance)(part, self._expects):
            raise UserError(
                f"{self._setting} must name {'a subclass' if self._classes else 'an instance'} of "
                f"`{self._expects.__name__}`, but {name!r} is "
                + (f"the class `{part.__name__}`." if is_class else f"of type `{type(part).__name__}`.")
            )
        self._gone.discard((name, *import_paths()))
        wanted: T = part
        return wanted

    def look_up(self, name: str) -> T | None:
        """Returns the part that `name` stands for; None if it cannot be used here.

        A sweep's folder may name a part that is gone: the sweep can still be listed and shown. An import that
        has failed is not repeated, since a sweep may have thousands of trials.
        """
        if name in self.builtin:
            return self.builtin[name]
        key = (name, *import_paths())
        if key not in self._gone:
            try:
                return self.get(name)
            except UserError:
                self._gone.add(key)
        return None
