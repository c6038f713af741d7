"""Reads a pipeline's options, and what is worth searching, from its source without running it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.modules import PACKAGE, check_defines, find, import_paths, shipped_pipelines
from sweeper.errors import UserError, did_you_mean

TABLES = ("DATA", "MODEL", "SPACE")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """A pipeline's options, as in its source.

    Attributes:
        module: Its dotted name.
        summary: The first line of its docstring.
        about_data: What the docstring of `prepare` says about its argument.
        data: The options of `prepare`, with their defaults.
        model: The options of the model, with their defaults.
        space: Values worth searching, by dotted name.
        unread: Tables that exist, but are not literals of the right form.
    """

    module: str
    summary: str = ""
    about_data: str = ""
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    space: Mapping[str, Sequence[Scalar]]
    unread: tuple[str, ...] = ()

    def default(self, name: str) -> Any:
        """Returns the default of `model.NAME` or `data.NAME`; None if the module has none."""
        section, _, key = name.partition(".")
        return {"model": self.model, "data": self.data}.get(section, {}).get(key)


def pipeline_options(name: str) -> PipelineOptions:
    """Returns the options of the pipeline `name`: a dotted name, or `x` for `pipelines.x`.

    Raises:
        UserError: There is no such module, or it is not Python or not a pipeline.
    """
    module, path = _locate(name)
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: {error.msg}. It is not valid Python.") from None
    bound = dict(_bindings(tree))
    check_defines(module, bound)
    read = {table: _table(table, bound[table]) for table in TABLES if table in bound}
    tables = {table: read.get(table) or {} for table in TABLES}
    prepare = bound["prepare"]
    return PipelineOptions(
        module=module,
        summary=(ast.get_docstring(tree) or "").partition("\n")[0],
        about_data=_describe_data(prepare) if isinstance(prepare, ast.FunctionDef) else "",
        data=tables["DATA"],
        model=tables["MODEL"],
        space=tables["SPACE"],
        unread=tuple(table for table, options in read.items() if options is None),
    )


def _locate(name: str) -> tuple[str, Path]:
    """Returns the dotted name and the file of the module."""
    if _NAME.fullmatch(name):
        for module in (name, f"{PACKAGE}.{name}"):
            if source := find(module, import_paths()):
                return module, source.path
    raise UserError(
        "`PIPELINE` must name a module below the current folder, a pipeline that ships with sweeper, or a "
        f"module of an installed package, but got {name!r}.{did_you_mean(name, _modules())}"
    )


def _modules() -> Iterator[str]:
    """Yields names to suggest: modules here, and those of `pipelines` with and without that prefix."""
    for root in map(Path, import_paths()):
        for folder, prefixes in ((root, ("",)), (root / PACKAGE, ("", f"{PACKAGE}."))):
            for path in sorted(folder.glob("*")):
                module = f"{prefixes[-1]}{path.stem}"
                is_named = _NAME.fullmatch(path.stem) and not path.stem.startswith("_")
                if is_named and find(module, import_paths()):
                    yield from (f"{prefix}{path.stem}" for prefix in prefixes)
    for name in shipped_pipelines():
        yield from (name.removeprefix(f"{PACKAGE}."), name)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields the names that a module defines, each with the node that it is bound to."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)


def _table(name: str, node: ast.AST) -> dict[str, Any] | None:
    """Returns a table of options, or of values by dotted name; None if it is not such a literal."""
    try:
        table = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        return None
    if name == "SPACE" and not all(map(_is_choice, table.values())):
        return None
    return table


def _is_choice(values: Any) -> bool:
    listed = isinstance(values, tuple | list) and len(values) > 0
    return listed and all(isinstance(value, Scalar) for value in values)


def _describe_data(prepare: ast.FunctionDef) -> str:
    """Returns what the docstring's `Args` say about the first argument, on one line."""
    text = inspect.cleandoc(ast.get_docstring(prepare) or "")
    names = [argument.arg for argument in prepare.args.args]
    if not names:
        return ""
    match = re.search(rf"^ +{re.escape(names[0])}: (.*(?:\n {{5,}}.*)*)", text, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""
