"""Finds the code of a pipeline or a script: the files that are sent to workers, and their syntax trees."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from pathlib import Path

from sweeper.core.modules import PACKAGE, Module, find, find_uninstalled, import_paths
from sweeper.errors import UserError


def code_of(pipeline: str) -> dict[str, str]:
    """Returns the text of the pipeline and of the neighbouring modules that it imports, by relative path.

    Shipped pipelines are included like the user's. If both have a file of the same name, only the
    user's files are sent: the receiving sweeper has the shipped ones, under another name.
    """
    modules = set(collect_trees(pipeline))
    above = {name for module in modules for name in _parent_packages(module.name)}
    modules |= {module for name in above if (module := find(name, import_paths())) and module.name == name}
    shipped = {_relative_path(module): module.path for module in modules if module.is_shipped}
    user_files = {_relative_path(module): module.path for module in modules if not module.is_shipped}
    both = shipped.keys() & user_files.keys() - {os.path.join(PACKAGE, "__init__.py")}
    files = user_files if both else {**shipped, **user_files}
    return {path: files[path].read_text(encoding="utf-8") for path in sorted(files)}


def _parent_packages(name: str) -> list[str]:
    """Returns the names of a module's parent packages, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _relative_path(module: Module) -> str:
    """Returns the path of a module's file below the folder of its top-level package."""
    base = os.path.join(*module.logical_name.split("."))
    return os.path.join(base, "__init__.py") if module.path.name == "__init__.py" else f"{base}.py"


def collect_trees(module: str, script: Path | None = None) -> dict[Module, ast.Module]:
    """Returns a module and the neighbouring modules that it imports, with their syntax trees.

    Args:
        script: The module's file if it is a script: its folder is searched first, and shipped modules are
            left out.

    Raises:
        UserError: One of them is not Python.
    """
    trees: dict[Module, ast.Module] = {}
    folders = import_paths() if script is None else (str(script.parent), *import_paths())
    first = find(module, folders) if script is None else Module(module, script)
    # Of what is installed, only the package of the pipeline itself counts.
    is_installed = script is None and find_uninstalled(module, folders) is None
    package = module.partition(".")[0]
    waiting = [first]
    while waiting:
        importer = waiting.pop()
        if importer is None or importer in trees or (script is not None and importer.is_shipped):
            continue
        try:
            tree = trees[importer] = ast.parse(importer.path.read_bytes(), str(importer.path))
        except SyntaxError as error:
            raise UserError(
                f"{importer.path}:{error.lineno}: {error.msg}; the file must be Python."
            ) from None
        except ValueError as error:
            # Before Python 3.12, null bytes raise it, as a file in UTF-16 has them.
            raise UserError(f"{importer.path}: {error}; the file must be Python.") from None
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = _source_of(node, importer.package)
                names = [source, *(f"{source}.{alias.name}" for alias in node.names)]
            for name in names:
                is_own = is_installed and name.partition(".")[0] == package
                waiting.append((find if is_own else find_uninstalled)(name, folders))
    return trees


def _source_of(node: ast.ImportFrom, package: str) -> str:
    """Returns the absolute name of the module that a `from ... import` in `package` refers to."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: 1 - node.level or None]
    return ".".join([*parents, *filter(None, [node.module])])


def dump_trees(trees: Mapping[Module, ast.Module]) -> dict[str, str]:
    """Returns the syntax trees of modules as text, by their names."""
    user_names = {module.name for module in trees if not module.is_shipped}
    names = {
        module: module.name
        if module.is_shipped and module.logical_name in user_names
        else module.logical_name
        for module in trees
    }
    return {names[module]: ast.dump(tree) for module, tree in trees.items()}
