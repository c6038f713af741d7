"""Finds a pipeline's modules by file: the current folder's, then sweeper's, then those of installed packages.

`pipelines.stocks` is the file in the current folder if there is one, and otherwise
`sweeper.pipelines.stocks`, whether sweeper is a wheel, an editable install or a checkout. This is
decided per module: a user's own `pipelines/mine.py` works next to the shipped `pipelines.stocks`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from sweeper.errors import UserError, did_you_mean

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


_of_job: list[str] = []


def import_paths() -> tuple[str, ...]:
    """Returns the folders of the user's own modules: the current one, or in a job's process the job's."""
    return tuple(_of_job) or (os.getcwd(),)


def set_import_paths(folders: Sequence[str]) -> None:
    """Makes `folders` those of this process, which runs a job; without any, it is the current folder."""
    _of_job[:] = folders


def search_first(folders: Sequence[str]) -> None:
    """Lets this process import modules from `folders`, which come before all others.

    The console script, the server and a sampler's process do not have the current folder on their path.
    """
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def find(name: str, folders: Sequence[str]) -> Module | None:
    """Returns the module called `name`, or None if there is none; imports nothing.

    Args:
        folders: Where to look for the user's own modules.
    """
    return find_uninstalled(name, folders) or _find_installed(name)


def find_uninstalled(name: str, folders: Sequence[str]) -> Module | None:
    """Returns the user's own or the shipped module `name`, ignoring installed packages."""
    if name.partition(".")[0] != "sweeper":
        for folder in folders:
            if path := _file(Path(folder), name):
                return Module(name, path)
    short = name.removeprefix("sweeper.")
    if _is_in(short, PACKAGE) and (path := _file(shipped_folder(PACKAGE).parent, short)):
        return Module(f"sweeper.{short}", path)
    return None


def find_pipeline(name: str) -> Module:
    """Returns the module of a pipeline.

    Raises:
        UserError: There is none.
    """
    if module := find(name, import_paths()):
        return module
    raise UserError(
        "`pipeline` must name a module below the current folder, one that ships with sweeper, or one of an "
        f"installed package, but got {name!r}: there is no {name.replace('.', os.sep)}.py in {os.getcwd()}."
        f"{did_you_mean(name, shipped_pipelines())}"
    )


def check_pipeline(name: str) -> None:
    """Checks that a module may be a pipeline, by its source; imports nothing.

    Raises:
        UserError: There is no such module, or it does not define what a pipeline does.
    """
    module = find_pipeline(name)
    try:
        names = set(_names_in(ast.parse(module.path.read_bytes())))
    except (SyntaxError, ValueError):
        # Whoever reads all of its modules says where.
        return
    if "*" not in names:
        check_defines(name, names)


def check_defines(name: str, names: Container[str]) -> None:
    """Checks that the `names` that a module defines are those of a pipeline.

    Raises:
        UserError: Some are missing.
    """
    if missing := [function for function in ("prepare", "build") if function not in names]:
        raise UserError(f"{name} must define `{'` and `'.join(missing)}`; see docs/pipelines.md.")


def _names_in(tree: ast.AST) -> Iterator[str]:
    """Yields all names that a module may define, and `*` if it imports those of another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name):
            yield node.id


def shipped_pipelines() -> list[str]:
    """Returns the names of the pipelines that ship with sweeper."""
    names = {path.stem for path in shipped_folder(PACKAGE).glob("[a-z]*") if path.suffix in ("", ".py")}
    return sorted(f"{PACKAGE}.{name}" for name in names)


def _find_installed(name: str) -> Module | None:
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top) if top != "sweeper" else None
    except ValueError:
        # It has no name, or was made by other means than an import.
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    is_python = spec is not None and spec.has_location and str(spec.origin).endswith(".py")
    return Module(name, Path(str(spec.origin))) if spec and is_python else None


@cache
def belongs_to(filename: str, pipeline: str, folders: tuple[str, ...]) -> bool:
    """Returns whether a file belongs to the top-level package of an installed pipeline."""
    module = None if find_uninstalled(pipeline, folders) else _find_installed(pipeline)
    if module is None:
        return False
    depth = module.name.count(".") + (module.path.name == "__init__.py")
    top = (module.path, *module.path.parents)[depth]
    path = Path(os.path.realpath(filename))
    return Path(os.path.realpath(top)) in (path, *path.parents)


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
    if not any(isinstance(finder, _PipelineFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PipelineFinder())


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _file(folder: Path, name: str) -> Path | None:
    relative = Path(*name.split("."))
    for path in (folder / relative / "__init__.py", (folder / relative).with_suffix(".py")):
        # os.path.isfile also returns False for names that no file can have.
        if name.strip(".") and os.path.isfile(path):
            return path
    return None


class _PipelineFinder(MetaPathFinder):
    """Finds modules of `pipelines` by `find_uninstalled`; `pipelines.x` is a shipped one's second name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (_is_in(name, PACKAGE) or _is_in(name, SHIPPED)):
            return None
        if name == PACKAGE and (spec := _without_init()):
            return spec
        module = find_uninstalled(name, sys.path)
        if module is None:
            return None
        if module.name != name:
            return ModuleSpec(name, _SecondName(module.name))
        inside = [str(module.path.parent)] if module.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, module.path, submodule_search_locations=inside)


def _without_init() -> ModuleSpec | None:
    """Returns the spec of the user's package if it exists without an `__init__.py`, else None."""
    folders = [folder for path in sys.path if os.path.isdir(folder := os.path.join(path, PACKAGE))]
    if not folders or any(os.path.exists(os.path.join(folder, "__init__.py")) for folder in folders):
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
