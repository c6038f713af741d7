"""What makes two runs of a sweep the same sweep, and where prepared data is kept."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.errors import UserError
from sweeper.spec import SweepSpec

MOST_BYTES_OF_CODE = 1024 * 1024


def import_paths() -> tuple[str, ...]:
    """Returns where pipelines are looked for: the current directory."""
    return (os.getcwd(),)


def fingerprint(spec: SweepSpec, device: str) -> dict[str, Any]:
    """Returns the parts that must be equal for a sweep to be continued.

    Comments and layout of the pipeline's code do not count, its syntax tree does.
    """
    tree = spec.to_dict()
    parts = {key: tree[key] for key in ("space", "fix", "baseline", "also_try", "objectives", "constraints")}
    return {
        **parts,
        **_subject(spec, tree),
        "measure": tree["measure"],
        "seed": spec.search.seed,
        "device": device,
        "torch": importlib.metadata.version("torch"),
    }


def _subject(spec: SweepSpec, tree: Mapping[str, Any]) -> dict[str, Any]:
    if spec.command:
        script = spec.script_in(Path.cwd())
        assert script is not None
        return {
            "command": tree["command"],
            "script": tree["script"],
            "code": _sha(_plain([_digest_of_files_named(spec.command), script.files])),
        }
    return {
        "pipeline": spec.pipeline,
        "code": digest_of_code(spec.pipeline),
        "data": {"options": tree["data"], "files": digest_of_files(spec.data)},
    }


def _digest_of_files_named(command: Sequence[str]) -> str:
    """Returns a digest of the files that a command line names: Python by its syntax trees.

    Raises:
        UserError: One of them is not Python, though it is called so.
    """
    found: dict[str, str] = {}
    for item in command:
        path = Path(item)
        if not os.path.isfile(path):
            continue
        if path.suffix == ".py":
            found.update(_trees(".".join(path.with_suffix("").parts), path))
        elif path.stat().st_size <= MOST_BYTES_OF_CODE:
            found[item] = _sha(path.read_bytes().hex())
    return _plain(found)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns one line per key in which two fingerprints differ."""
    return [
        f"{key}: {_short(a)} -> {_short(b)}" for key, a, b in _walk("", old, new) if _plain(a) != _plain(b)
    ]


def _walk(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _walk(f"{path}.{key}" if path else str(key), old.get(key), new.get(key))
    else:
        yield path, old, new


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def _short(value: Any) -> str:
    text = "absent" if value is None else _plain(value)
    return text if len(text) <= 60 else text[:57] + "..."


def prepared_folder(home: Path, pipeline: str, data: Mapping[str, Any]) -> Path:
    """Returns where a pipeline's prepared data is kept: under a digest of all it is made from.

    Args:
        data: The data section, as JSON values.
    """
    made_from = [pipeline, digest_of_code(pipeline), data, digest_of_files(data)]
    return home.resolve() / "cache" / _sha(_plain(made_from))


def digest_of_files(data: Mapping[str, Any]) -> str:
    """Returns a digest of the names, sizes and change times of the files under `data.path`.

    Raises:
        UserError: The path does not exist.
    """
    if "path" not in data:
        return ""
    # os.path, since a name that can be no file's is one that is not there.
    root = Path(os.path.expanduser(str(data["path"])))
    if not os.path.exists(root):
        raise UserError(
            f"`data.path` must exist, but got {str(data['path'])!r} (looked for {root.absolute()})."
        )
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    listed = []
    for path in files:
        about = path.stat()
        listed.append((str(path.relative_to(root)), about.st_size, about.st_mtime_ns))
    return _sha(_plain([str(root.resolve()), listed]))


def digest_of_code(pipeline: str) -> str:
    """Returns a digest of the syntax trees of the pipeline and of what it imports from beside it.

    Raises:
        UserError: There is no such module, or it is not Python.
    """
    if file_of(pipeline) is None:
        raise UserError(
            f"`pipeline` must name a module under the current directory, but got {pipeline!r}: "
            f"there is no {pipeline.replace('.', os.sep)}.py in {os.getcwd()}."
        )
    return _sha(_plain(_trees(pipeline)))


def code_of(pipeline: str) -> dict[str, str]:
    """Returns the text of the pipeline and of what it imports from beside it, by path below its root."""
    root = Path(import_paths()[0])
    paths = {path for path, _ in _found(pipeline, None).values()}
    packages = {parent / "__init__.py" for path in paths for parent in path.parents if root in parent.parents}
    files = [path for path in sorted(paths | packages) if path.exists()]
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in files}


def _trees(module: str, first: Path | None = None) -> dict[str, str]:
    """Returns the syntax trees of a module and of what it imports from beside it, by their names.

    Args:
        first: The module's file, where it is not found by its name.
    """
    return {name: ast.dump(tree) for name, (_, tree) in _found(module, first).items()}


def _found(module: str, first: Path | None) -> dict[str, tuple[Path, ast.Module]]:
    trees: dict[str, tuple[Path, ast.Module]] = {}
    waiting = [module]
    beside = () if first is None else (str(first.parent),)
    while waiting:
        name = waiting.pop()
        path = first if first is not None and name == module else file_of(name, beside)
        if path is None or name in trees:
            continue
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except SyntaxError as error:
            raise UserError(f"{path}:{error.lineno}: {error.msg}; it is not Python.") from None
        trees[name] = path, tree
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = _source(node, name if path.name == "__init__.py" else name.rpartition(".")[0])
                waiting += [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return trees


def _source(node: ast.ImportFrom, package: str) -> str:
    """Returns the absolute name of the module that `from ... import` in a module of `package` means."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: 1 - node.level or None]
    return ".".join([*parents, *filter(None, [node.module])])


def file_of(module: str, beside: Sequence[str] = ()) -> Path | None:
    """Returns the file of a module of the user's; None where there is none.

    Args:
        beside: Folders to look into before the current directory.
    """
    relative = Path(*module.split("."))
    for root in map(Path, (*beside, *import_paths())):
        for path in (root / relative / "__init__.py", (root / relative).with_suffix(".py")):
            # The installed package is not the user's code; its version is not part of a sweep.
            if os.path.exists(path) and relative.parts[0] != "sweeper":
                return path
    return None


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
