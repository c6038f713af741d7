"""Finds a pipeline's modules by file: the current folder's, then sweeper's, then other distributions'.

`pipelines.stocks` is the file in the current folder if there is one, and otherwise
`sweeper.pipelines.stocks`, whether sweeper is a wheel, an editable install or a checkout. This is
decided per module: a user's own `pipelines/mine.py` works next to the shipped `pipelines.stocks`.

A distribution adds a pipeline with an entry point in `sweeper.pipelines` that names its module:

    [project.entry-points."sweeper.pipelines"]
    spirals = "acme_nets.spirals"
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from sweeper.core.registry import import_strings

PACKAGE = "pipelines"
SHIPPED = f"sweeper.{PACKAGE}"
"""The installed name of the package with the shipped pipelines."""

_SWEEPER = Path(__file__).resolve().parents[1]


def shipped_folder(name: str) -> Path:
    """Returns the folder of the shipped package `name`: in sweeper, or next to it in a checkout."""
    inside = _SWEEPER / name
    return inside if inside.is_dir() else _SWEEPER.parent / name


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a pipeline.

    Attributes:
        name: Its import name, which begins with `sweeper.` if it ships with sweeper.
    """

    name: str
    path: Path

    @property
    def is_shipped(self) -> bool:
        """Whether it ships with sweeper."""
        return _is_in(self.name, SHIPPED)

    @property
    def logical_name(self) -> str:
        """Its name regardless of where its file is: `pipelines.stocks`."""
        return self.name.removeprefix("sweeper.")

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def find(name: str, folders: Sequence[str]) -> Module | None:
    """Returns the module called `name`, or None if there is none.

    Args:
        name: A module's name, or the entry point's for a third-party pipeline.
        folders: Where to look for the user's own modules.
    """
    return find_uninstalled(name, folders) or _of_distribution(name)


def find_uninstalled(name: str, folders: Sequence[str]) -> Module | None:
    """Returns the user's own or the shipped module `name`, ignoring other distributions."""
    if name.partition(".")[0] != "sweeper":
        for folder in folders:
            if path := _file(Path(folder), name):
                return Module(name, path)
    short = name.removeprefix("sweeper.")
    if _is_in(short, PACKAGE) and (path := _file(shipped_folder(PACKAGE).parent, short)):
        return Module(f"sweeper.{short}", path)
    return None


def added_pipelines() -> tuple[str, ...]:
    """Returns the names of the pipelines that other distributions add."""
    return tuple(sorted(import_strings("pipelines")))


@cache
def is_added_pipeline(filename: str) -> bool:
    """Returns whether a file belongs to a package that adds pipelines."""
    path = Path(os.path.realpath(filename))
    specs = filter(None, map(importlib.util.find_spec, _added_packages()))
    places = [place for spec in specs for place in spec.submodule_search_locations or [spec.origin or ""]]
    return any(Path(os.path.realpath(place)) in (path, *path.parents) for place in places if place)


def _added_packages() -> set[str]:
    return {module.partition(".")[0] for module in import_strings("pipelines").values()}


def _of_distribution(name: str) -> Module | None:
    """Returns a module of a package that adds pipelines, without importing it."""
    name = import_strings("pipelines").get(name, name)
    top, *rest = name.split(".")
    if top not in _added_packages():
        return None
    spec = importlib.util.find_spec(top)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return Module(name, Path(spec.origin)) if spec and spec.origin and spec.has_location else None


@cache
def is_sweepers(filename: str) -> bool:
    """Returns whether a file is sweeper's own code; a shipped pipeline counts as the user's."""
    return _SWEEPER in Path(os.path.realpath(filename)).parents and not is_shipped_pipeline(filename)


@cache
def is_shipped_pipeline(filename: str) -> bool:
    """Returns whether a file belongs to a pipeline that ships with sweeper."""
    return shipped_folder(PACKAGE) in Path(os.path.realpath(filename)).parents


def make_importable() -> None:
    """Lets `import pipelines.x` find a shipped module where the user has none of that name."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _file(folder: Path, name: str) -> Path | None:
    relative = Path(*name.split("."))
    for path in (folder / relative / "__init__.py", (folder / relative).with_suffix(".py")):
        # os.path.isfile also returns False for names that no file can have.
        if name.strip(".") and os.path.isfile(path):
            return path
    return None


class _Finder(MetaPathFinder):
    """Finds the modules of `pipelines` as `find` does; `pipelines.x` is a second name of a shipped one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (_is_in(name, PACKAGE) or _is_in(name, SHIPPED)):
            return None
        if name == PACKAGE and (spec := _without_init()):
            return spec
        found = find(name, sys.path)
        if found is None:
            return None
        if found.name != name:
            return ModuleSpec(name, _SecondName(found.name))
        inside = [str(found.path.parent)] if found.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, found.path, submodule_search_locations=inside)


def _without_init() -> ModuleSpec | None:
    """Returns the spec of the user's package if it exists without an `__init__.py`, else None."""
    folders = [folder for each in sys.path if os.path.isdir(folder := os.path.join(each, PACKAGE))]
    if not folders or any(os.path.exists(os.path.join(each, "__init__.py")) for each in folders):
        return None
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


class _SecondName(Loader):
    """Loads a module under its first name, so that it exists once and its objects pickle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced it with the second name's spec.
        module.__spec__ = self._spec
