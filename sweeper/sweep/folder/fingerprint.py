"""Computes the digests of a fingerprint, its differences, and the folder of prepared data.

`fingerprint` itself is in `sweeper/sweep/workloads/__init__.py`: it asks the kind of work for its parts. The
code that a digest is of is collected in `code.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.config import FIELDS
from sweeper.core.modules import find_pipeline
from sweeper.schema.data_path import existing_path
from sweeper.schema.sections import Measure, ScriptOptions
from sweeper.schema.space import Section
from sweeper.sweep.folder.code import collect_trees, dump_trees
from sweeper.system import remote_data

MAX_BYTES_OF_CODE = 1024 * 1024
_SECTIONS: Mapping[str, type[Section]] = {"measure": Measure, "script": ScriptOptions}
"""The sections whose settings are in a fingerprint only where they are not the defaults."""


def digest_of_command(command: Sequence[str], files: Mapping[str, str]) -> str:
    """Returns a digest of the files that a command line names, and of those that are written for it.

    Args:
        files: Texts by path.

    Raises:
        UserError: A file whose name ends in `.py` is not Python.
    """
    return _sha(_to_json([digest_of_files_named(command), files]))


def digest_of_files_named(command: Sequence[str]) -> str:
    """Returns a digest of the files that a command line names; Python files count by their syntax trees.

    Raises:
        UserError: A file whose name ends in `.py` is not Python.
    """
    contents: dict[str, str] = {}
    for item in files_named(command):
        path = Path(item)
        if path.suffix == ".py":
            contents.update(dump_trees(collect_trees(".".join(path.with_suffix("").parts), path)))
        elif path.stat().st_size <= MAX_BYTES_OF_CODE:
            contents[item] = _sha(path.read_bytes().hex())
    return _to_json(contents)


def digest_of_scripts(command: Sequence[str]) -> str:
    """Returns a digest of the Python scripts that a command line names, without its options."""
    return _sha(digest_of_files_named([item for item in files_named(command) if item.endswith(".py")]))


def files_named(command: Sequence[str], folder: Path | str = "") -> Iterator[str]:
    """Yields the files that a command line names, also as modules: `-m package.train`.

    Args:
        folder: Folder that the command runs in; the current one by default.
    """
    for before, item in itertools.pairwise(["", *command]):
        names = [item]
        if before == "-m":
            base = item.replace(".", os.sep)
            names = [f"{base}.py", os.path.join(base, "__main__.py")]
        files = (name for name in names if os.path.isfile(os.path.join(folder, name)))
        yield from itertools.islice(files, 1)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns one line per key in which two fingerprints differ."""
    walked = ((key, _value_at(key, a), _value_at(key, b)) for key, a, b in _walk("", old, new))
    return [f"{key}: {_shorten(a)} -> {_shorten(b)}" for key, a, b in walked if _to_json(a) != _to_json(b)]


def _value_at(key: str, value: Any) -> Any:
    """Returns the value at a key of a fingerprint; the default of a setting that it lacks."""
    section, _, name = key.partition(".")
    if value is None and section == "config" and name in FIELDS:
        return FIELDS[name].default
    if value is None and section in _SECTIONS and name in _SECTIONS[section].model_fields:
        return encode(_SECTIONS[section].model_fields[name].get_default(call_default_factory=True))
    return value


def settings_of(section: Section) -> dict[str, Any]:
    """Returns the settings of a section that differ from their defaults, as JSON values.

    A setting that is added later thus leaves earlier fingerprints as they are.
    """
    settings: dict[str, Any] = encode(section.model_dump(exclude_defaults=True))
    return settings


def _walk(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _walk(f"{path}.{key}" if path else str(key), old.get(key), new.get(key))
    else:
        yield path, old, new


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def _shorten(value: Any) -> str:
    text = "absent" if value is None else _to_json(value)
    return text if len(text) <= 60 else text[:57] + "..."


def prepared_folder(home: Path, pipeline: str, data: Mapping[str, Any]) -> Path:
    """Returns the folder of a pipeline's prepared data, named by a digest of everything it is made from.

    Args:
        data: The data section, as JSON values.
    """
    made_from = [pipeline, digest_of_code(pipeline), data, digest_of_files(data)]
    return home.resolve() / "cache" / _sha(_to_json(made_from))


def digest_of_files(data: Mapping[str, Any]) -> str:
    """Returns a digest of the names, sizes and change times of the files under `data.path`.

    Raises:
        UserError: The path does not exist, or cannot be reached.
    """
    if not data.get("path"):
        return ""
    if remote_data.is_remote(str(data["path"])):
        return remote_data.digest(str(data["path"]))
    root = existing_path(str(data["path"]))
    files = sorted(_files_below(root)) if root.is_dir() else [root]
    listed = []
    for path in files:
        about = path.stat()
        listed.append((str(path.relative_to(root)), about.st_size, about.st_mtime_ns))
    return _sha(_to_json([str(root.resolve()), listed]))


def _files_below(root: Path) -> Iterator[Path]:
    """Yields the files in a folder and its subfolders, which may be links to folders elsewhere."""
    seen = set[tuple[int, int]]()
    for folder, subfolders, names in os.walk(root, followlinks=True):
        about = os.stat(folder)
        if (about.st_dev, about.st_ino) in seen:
            # A link may lead to a folder above it.
            subfolders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        # In the same order each time, as the first of two links to a folder counts.
        subfolders.sort()
        yield from (path for name in names if (path := Path(folder, name)).is_file())


def digest_of_code(pipeline: str) -> str:
    """Returns a digest of the syntax trees of the pipeline and of the neighbouring modules that it imports.

    It does not depend on the location of the files.

    Raises:
        UserError: There is no such module, or it is not Python.
    """
    find_pipeline(pipeline)
    return _sha(_to_json(dump_trees(collect_trees(pipeline))))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
