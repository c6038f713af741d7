"""Restates a pipeline's imports as 0.1.0 had them, so that stored digests still hold.

Code that 0.1.0 could run stays as it is. Two things are restored: `from sweeper import Pipeline`,
and the relative imports of the shipped pipelines. isort puts relative imports last, so their order
is restored, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import groupby

from sweeper.core.modules import Module, find

HOMES = {
    "sweeper": {
        "Pipeline": "sweeper.trainer.pipeline",
        "Prepared": "sweeper.trainer.pipeline",
        "Samples": "sweeper.trainer.pipeline",
        "Source": "sweeper.trainer.pipeline",
        "TrialConfig": "sweeper.core.config",
        "UserError": "sweeper.core.errors",
    },
    "sweeper.errors": dict.fromkeys(
        (
            *("SweeperError", "UserError", "SweepConflictError", "NothingFeasibleError"),
            *("StorageError", "EnvironmentStopError", "did_you_mean"),
        ),
        "sweeper.core.errors",
    ),
}
"""By module, then by name: the module that 0.1.0 had it in."""

_Import = ast.Import | ast.ImportFrom


def source_of(node: ast.ImportFrom, package: str) -> str:
    """Returns the absolute name of the module that a `from ... import` in `package` refers to."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: 1 - node.level or None]
    return ".".join([*parents, *filter(None, [node.module])])


def as_of_0_1_0(tree: ast.Module, module: Module) -> ast.Module:
    """Returns the module's tree with its imports as 0.1.0 had them; the given tree is changed."""
    name = module.logical_name
    ships = find(f"sweeper.{name}", ()) is not None
    package = module.package.removeprefix("sweeper.") if ships else ""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                block[:] = list(_restated(block, package))
    return tree


def _restated(block: Sequence[ast.AST], package: str) -> Iterator[ast.AST]:
    for _, run in groupby(block, lambda node: isinstance(node, _Import)):
        nodes = list(run)
        imports = [each for each in nodes if isinstance(each, _Import)]
        yield from _imports(imports, package) if imports else nodes


def _imports(run: Sequence[_Import], package: str) -> Sequence[_Import]:
    """Returns consecutive imports as 0.1.0 had them."""
    relative = [each for each in run if package and isinstance(each, ast.ImportFrom) and each.level]
    moved = [each for each in run if isinstance(each, ast.ImportFrom) and _has_moved(each)]
    if not relative and not moved:
        return run
    own = sorted(
        (ast.ImportFrom(source_of(each, package), each.names, 0) for each in relative), key=_module_of
    )
    ours = [each for each in run if isinstance(each, ast.ImportFrom) and _is_ours(each)]
    rest = [each for each in run if each not in relative]
    at = rest.index(ours[0]) if ours else len(rest)
    others = [each for each in rest if each not in ours]
    return [*others[:at], *own, *(_merged(ours) if moved else ours), *others[at:]]


def _is_ours(node: ast.ImportFrom) -> bool:
    return not node.level and _module_of(node).split(".")[0] == "sweeper"


def _module_of(node: ast.ImportFrom) -> str:
    return node.module or ""


def _has_moved(node: ast.ImportFrom) -> bool:
    homes = HOMES.get(_module_of(node), {}) if not node.level else {}
    return any(alias.name in homes for alias in node.names)


def _merged(nodes: Sequence[ast.ImportFrom]) -> list[ast.ImportFrom]:
    """Returns one statement for each of 0.1.0's modules, in isort's order."""
    names: dict[str, dict[str, ast.alias]] = {}
    renamed = []
    for node in nodes:
        homes = HOMES.get(_module_of(node), {})
        for alias in node.names:
            home = homes.get(alias.name, _module_of(node))
            if alias.asname:
                renamed.append(ast.ImportFrom(home, [alias], 0))
            else:
                names.setdefault(home, {})[alias.name] = alias
    plain = [ast.ImportFrom(home, sorted(found.values(), key=_by_type), 0) for home, found in names.items()]
    return sorted([*renamed, *plain], key=_module_of)


def _by_type(alias: ast.alias) -> tuple[int, str]:
    """Returns the key of a sort by type: constants come first, then classes, then the rest."""
    name = alias.name
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name
