"""Finds built-in parts by name and third-party parts by entry point.

Each seam of sweeper (`loaders`, `launchers`, ...) has one `Registry`. A third party adds a name to it with an
entry point in the group `sweeper.<seam>`:

    [project.entry-points."sweeper.loaders"]
    turbo = "turbo_loader:TRAITS"

Entry points are scanned only when a name is not built in or when all names are listed: a scan reads
the metadata of every installed distribution, and a trial's process must not wait for that.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sweeper.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def resolve(path: str) -> Any:
    """Returns the object that the import string `module:attribute` names.

    Raises:
        UserError: It cannot be imported.
    """
    module, _, attribute = path.partition(":")
    try:
        return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:
        raise UserError(
            f"an import string must name `module:attribute`, but {path!r} cannot be imported: "
            f"{_said(error)}. Install or repair the package that provides it."
        ) from error


def import_strings(seam: str) -> Mapping[str, str]:
    """Returns the import string of each entry point of `sweeper.<seam>` by name; imports nothing.

    Raises:
        UserError: Two distributions have an entry point of the same name.
    """
    group = f"sweeper.{seam}"
    found = _scanned(group, tuple(sys.path))
    return {name: _only(name, group, points).value for name, points in found.items()}


class Registry(Generic[T]):
    """The names of one seam, with the object that each stands for.

    Args:
        seam: The entry-point group is `sweeper.<seam>`.
        setting: The setting that takes one of its names, for messages: `loader.kind`.
        expects: The type of these objects.
        builtin: An import string for each built-in name, or the object itself if it is cheap to
            make.
        name_of: Function that returns the name inside an object; its entry point must have the same name.
    """

    def __init__(
        self,
        seam: str,
        setting: str,
        expects: type[T],
        builtin: Mapping[str, str | T],
        name_of: Callable[[T], str] | None = None,
    ) -> None:
        self._name_of = name_of
        self.group, self.setting, self.expects, self.builtin = f"sweeper.{seam}", setting, expects, builtin

    def names(self) -> tuple[str, ...]:
        """Returns all names, the built-in ones first.

        Raises:
            UserError: An entry point has the name of a built-in one.
        """
        return (*self.builtin, *sorted(self._added()))

    def check(self, name: object) -> None:
        """Checks that `name` is one of the registry's.

        Raises:
            UserError: It is not, or an entry point has the name of a built-in one.
        """
        if isinstance(name, str) and (name in self.builtin or name in self._added()):
            return
        known = self.names()
        raise UserError(
            f"`{self.setting}` must be one of {', '.join(known)}, but got {name!r}."
            + did_you_mean(str(name), known)
        )

    def get(self, name: str) -> T:
        """Returns the object that `name` stands for.

        Raises:
            UserError: There is no such name, or its entry point cannot be loaded, is one of several, has the
                name of a built-in one, or provides something else.
        """
        self.check(name)
        if name in self.builtin:
            found = self.builtin[name]
            return resolve(found) if isinstance(found, str) else found
        first = _only(name, self.group, self._added()[name])
        try:
            loaded = first.load()
        except Exception as error:
            raise UserError(
                f"`{self.setting}: {name}` comes from {_owner(first)}, but its entry point {first.value!r} "
                f"cannot be loaded: {_said(error)}. Repair or uninstall that distribution."
            ) from error
        if not isinstance(loaded, self.expects):
            raise UserError(
                f"an entry point in `{self.group}` must provide a {self.expects.__name__}, but "
                f"{first.value!r} of {_owner(first)} provides {loaded!r}."
            )
        if self._name_of is not None and (given := self._name_of(loaded)) != name:
            raise UserError(
                f"an entry point in `{self.group}` must have the name of what it provides, but `{name}` "
                f"of {_owner(first)} provides `{given}`. Rename one of them."
            )
        return loaded

    def provider(self, name: str) -> str:
        """Returns the distribution that adds `name`, with its version; empty where none does."""
        found = () if name in self.builtin else self._added().get(name, ())
        return ", ".join(map(_owner, found))

    def _added(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        added = _scanned(self.group, tuple(sys.path))
        for name in added.keys() & self.builtin.keys():
            raise UserError(
                f"an entry point in `{self.group}` must not reuse a built-in name, but `{name}` of "
                f"{_owner(added[name][0])} does. Rename it, or uninstall that distribution."
            )
        return added


@functools.cache
def _scanned(group: str, paths: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Returns the entry points of `group` by name; `paths` is sys.path, on which the answer depends."""
    # Not at the top: the import costs milliseconds that most processes need not spend.
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in entry_points(group=group):
        found[each.name] = (*found.get(each.name, ()), each)
    return found


def _only(name: str, group: str, points: Sequence[EntryPoint]) -> EntryPoint:
    if len(points) > 1:
        owners = ", ".join(map(_owner, points))
        raise UserError(
            f"`{name}` in `{group}` must have one provider, but got {owners}. Uninstall all but one."
        )
    return points[0]


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")
