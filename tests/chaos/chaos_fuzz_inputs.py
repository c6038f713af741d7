"""Specifications nobody should write: real ones mutated, wrong types, bombs, odd files, overrides."""

# ruff: noqa: E501 (many short values to a line)

from __future__ import annotations

import copy
import json
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from chaos_fuzz_values import NASTY_TEXTS, NASTY_VALUES, SCRIPT
from pydantic import BaseModel

from sweeper.core.config import FIELDS
from sweeper.schema import SweepSpec, read_yaml

REPOSITORY = Path(__file__).parents[2]
SPARSE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Input:
    """One input: a path (of a file written from `content`, where there is any) and overrides."""

    kind: str
    content: bytes | None = None
    path: Path | None = None
    overrides: tuple[str, ...] = ()


class Inputs:
    """Makes inputs in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Reads the real specifications, and puts the odd files into `folder`."""
        real = [path.read_text() for path in sorted((REPOSITORY / "search_spaces").glob("*.yaml"))]
        self._texts = [*real, SCRIPT]
        self._trees = []
        for text in self._texts:
            (folder / "read.yaml").write_text(text)
            self._trees.append(read_yaml(folder / "read.yaml"))
        self._paths = list(paths_of(SweepSpec))
        self._odd = list(_odd_files(folder))
        self._make: Sequence[tuple[int, Callable[[random.Random], Input]]] = (
            (35, self._mutated), (30, self._mistyped), (10, self._renumbered), (5, self._bomb), (18, self._overridden),
            (2, self._odd_file),
        )  # fmt: skip

    def make(self, rng: random.Random) -> Input:
        """Returns the input that `rng` stands for."""
        weights = [weight for weight, _ in self._make]
        return rng.choices([make for _, make in self._make], weights)[0](rng)

    def _mutated(self, rng: random.Random) -> Input:
        text = rng.choice(self._texts)
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            text = rng.choice(_TEXT_MUTATIONS)(rng, text)
        raw = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.3:
            raw = _bytes_mutated(rng, raw)
        return Input("text", raw)

    def _mistyped(self, rng: random.Random) -> Input:
        tree = copy.deepcopy(rng.choice(self._trees))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            path = self._a_path(rng, tree)
            if rng.random() < 0.1:
                _put(tree, path, None, remove=True)
            else:
                _put(tree, path, rng.choice(NASTY_VALUES))
        ascii_only = rng.random() < 0.5
        indent = rng.choice((None, 1, "\t"))
        text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
        return Input("types", text.encode("utf-8", "surrogatepass"))

    def _renumbered(self, rng: random.Random) -> Input:
        """Values of the right type, far from those meant: many of these are taken."""
        tree = copy.deepcopy(rng.choice(self._trees))
        leaves = list(_leaves(tree, ()))
        for _ in range(rng.choice((1, 1, 2, 5))):
            path, value = rng.choice(leaves)
            alike = [v for v in (*NASTY_VALUES, *(v for _, v in leaves)) if type(v) is type(value)]
            _put(tree, path, rng.choice(alike))
        return Input("numbers", json.dumps(tree).encode())

    def _a_path(self, rng: random.Random, tree: Any) -> tuple[Any, ...]:
        """A path of the schema, or one that is in the tree."""
        if rng.random() < 0.6:
            path = rng.choice(self._paths)
            if path[:1] == ("space",) and len(path) > 1:
                names = (*FIELDS, *self._trees[-1]["space"], "model.x", "nonsense")
                path = ("space", rng.choice(names), *path[2:])
            return path
        path = ()
        while isinstance(tree, dict | list) and tree and (not path or rng.random() < 0.7):
            step = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
            path, tree = (*path, step), tree[step]
        return path or ("name",)

    def _bomb(self, rng: random.Random) -> Input:
        return Input("bomb", rng.choice(_BOMBS)(rng))

    def _overridden(self, rng: random.Random) -> Input:
        index = rng.randrange(len(self._texts))
        items: list[str] = []
        for _ in range(rng.choice((1, 1, 2, 3, 20))):
            path = self._a_path(rng, self._trees[index])
            key = ".".join(map(str, path))
            if rng.random() < 0.2:
                key = rng.choice(
                    ("", ".", "..", "a..b", f"{key}.x", f"{key}.0", f"{key}.-1", "also_try.x", "\x00", "²")
                )
            value = rng.choice(NASTY_TEXTS)
            if rng.random() < 0.3:
                value = json.dumps(rng.choice(NASTY_VALUES))
            items.append(rng.choice((f"{key}={value}", f"{key}={value}", f"{key}={value}", key, f"={value}")))
        return Input("overrides", self._texts[index].encode(), overrides=tuple(items))

    def _odd_file(self, rng: random.Random) -> Input:
        return Input("file", path=rng.choice(self._odd), overrides=rng.choice(((), ("name=x",))))


def paths_of(model: type[BaseModel], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every field of `model` and of the models in it."""
    for name, info in model.model_fields.items():
        yield (*above, name)
        yield from _paths_in(info.annotation, (*above, name))


def _paths_in(hint: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield from paths_of(hint, above)
        return
    origin = getattr(hint, "__origin__", None)
    step: tuple[Any, ...] = ("x",) if origin is dict else (0,) if origin in (tuple, list) else ()
    if step:
        yield (*above, *step)
    for each in get_args(hint):
        yield from _paths_in(each, (*above, *step))


def _leaves(tree: Any, above: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if not isinstance(tree, dict | list):
        yield above, tree
    for step, below in steps:
        yield from _leaves(below, (*above, step))


def _put(tree: Any, path: tuple[Any, ...], value: Any, *, remove: bool = False) -> None:
    for step in path[:-1]:
        try:
            below = tree[step]
        except (KeyError, IndexError, TypeError):
            below = None
        if not isinstance(below, dict | list):
            below = {}
            if not _set(tree, step, below):
                return
        tree = below
    if remove:
        if isinstance(tree, dict):
            tree.pop(path[-1], None)
    else:
        # A copy: the next change may go into it.
        _set(tree, path[-1], copy.deepcopy(value))


def _set(tree: Any, step: Any, value: Any) -> bool:
    if isinstance(tree, dict):
        tree[str(step)] = value
        return True
    if isinstance(tree, list) and isinstance(step, int):
        if step < len(tree):
            tree[step] = value
        else:
            tree.append(value)
        return True
    return False


def _lines(change: Callable[[random.Random, list[str]], None]) -> Callable[[random.Random, str], str]:
    def changed(rng: random.Random, text: str) -> str:
        lines = text.splitlines(keepends=True) or [""]
        change(rng, lines)
        return "".join(lines)

    return changed


def _value_replaced(rng: random.Random, lines: list[str]) -> None:
    number = rng.randrange(len(lines))
    key, colon, _ = lines[number].partition(": ")
    if colon:
        lines[number] = f"{key}: {rng.choice(NASTY_TEXTS)}\n"


def _item_replaced(rng: random.Random, text: str) -> str:
    """A value inside of a flow collection."""
    starts = [i for i, c in enumerate(text) if c in ":," and text[i + 1 : i + 2] == " "]
    if not starts:
        return text
    start = rng.choice(starts) + 2
    end = next((i for i in range(start, len(text)) if text[i] in ",]}\n"), len(text))
    return text[:start] + rng.choice(NASTY_TEXTS) + text[end:]


def _key_renamed(rng: random.Random, text: str) -> str:
    ends = [i for i, c in enumerate(text) if c == ":"]
    if not ends:
        return text
    end = rng.choice(ends)
    start = end
    while start and (text[start - 1].isalnum() or text[start - 1] in "._"):
        start -= 1
    key = text[start:end]
    new = rng.choice(
        (
            key[:-1],
            key + "s",
            key.upper(),
            "<<",
            "1",
            "null",
            "",
            "x" * 9000,
            "[a]",
            "? b",
            "*a",
            "é",
            "\u200b",
        )
    )
    return text[:start] + new + text[end:]


def _inserted(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice((*NASTY_TEXTS, "\t", "\r", "\x00", "\x1b", "\ud800", "\ufffe", "\n", " "))
        + text[at:]
    )


def _cut(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.choice((1, 2, 10, 100, 10_000)) :]


_TEXT_MUTATIONS: Sequence[Callable[[random.Random, str], str]] = (
    _lines(_value_replaced), _item_replaced, _item_replaced, _key_renamed, _inserted, _cut,
    _lines(lambda rng, lines: lines.insert(rng.randrange(len(lines)), rng.choice(lines))),
    _lines(lambda rng, lines: lines.pop(rng.randrange(len(lines))) and None),
    _lines(lambda rng, lines: rng.shuffle(lines) if rng.random() < 0.2 else lines.reverse()),
    lambda rng, text: text.replace("  ", rng.choice((" ", "\t", "   "))),
    lambda rng, text: text.replace("\n", rng.choice(("\r\n", "\r", "\n\n"))),
    lambda rng, text: text + rng.choice(("---\n", "...\n", "---\na: 1\n", "name: again\n", "\ufeff", "  x", "&a b\n")),
)  # fmt: skip


def _bytes_mutated(rng: random.Random, raw: bytes) -> bytes:
    how = rng.randrange(6)
    if how == 0:
        return b"\xef\xbb\xbf" + raw
    if how == 1:
        return raw.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-be", "utf-32", "utf-7")))
    if how == 2:
        return raw[: rng.randrange(len(raw) + 1)]
    changed = bytearray(raw or b" ")
    for _ in range(rng.choice((1, 2, 10))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _laughs(rng: random.Random) -> bytes:
    lines = ["a0: &a0 [" + ",".join(["lol"] * 9) + "]"]
    lines += [f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, rng.randrange(2, 30))]
    return "\n".join(lines).encode()


def _merges(rng: random.Random) -> bytes:
    lines = ["a0: &a0 {k: 1}"]
    lines += [
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, rng.randrange(2, 30))
    ]
    return "\n".join(lines).encode()


def _repeated(rng: random.Random) -> bytes:
    unit = rng.choice(
        (
            "[",
            "{",
            "- ",
            "? ",
            "{a: ",
            "[[]",
            "a:\n ",
            "!!x ",
            "&a ",
            "'",
            '"',
            "%",
            "[1,",
            "a: &b\n",
            "- - ",
            ": ",
        )
    )
    return (unit * rng.choice((33, 3000, 100_000))).encode()[: rng.choice((3000, 250_000, 1_000_000))]


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice((30, 31, 32, 33, 500))
    return "\n".join("  " * level + f"k{level}:" for level in range(depth)).encode()[:300_000]


def _wide(rng: random.Random) -> bytes:
    count = rng.choice((1000, 5000, 9000, 30_000))
    unit = rng.choice(("k{}: {}\n", "- [{}, {}]\n", "k: {}\n"))
    return "".join(unit.format(i, i) for i in range(count)).encode()[:262_144]


def _wide_space(rng: random.Random) -> bytes:
    count = rng.choice((10, 300, 1500))
    choices = list(range(rng.choice((2, 5))))
    space = {f"model.k{i}": {"type": "categorical", "choices": choices} for i in range(count)}
    if rng.random() < 0.5:
        for i in range(1, count):
            space[f"model.k{i}"]["when"] = {f"model.k{i - 1}": 1}
    tree = {
        "name": "x",
        "pipeline": "pipelines.tabular",
        "space": space,
        "baseline": {},
        "constraints": {"val_loss": {"max": 1}},
    }
    return json.dumps(tree, separators=(",", ":") if rng.random() < 0.5 else None).encode()[:262_144]


_BOMBS: Sequence[Callable[[random.Random], bytes]] = (
    _laughs, _merges, _repeated, _repeated, _deep, _wide, _wide_space,
    lambda rng: b"a: [" + b"[1],{}," * (rng.choice((1_000, 40_000, 150_000))) + b"]",
    lambda rng: rng.randbytes(rng.choice((1, 100, 10_000))),
    lambda rng: rng.choice((b"", b" ", b"\n", b"#", b"null", b"[]", b"{}", b"1", b"x", b'""', b"---", b"\x00", b"\xff")),
    lambda rng: b"x: " + b"9" * rng.choice((100, 5000, 200_000)),
    lambda rng: b"x: '" + b"y" * rng.choice((8192, 8193, 250_000)) + b"'",
)  # fmt: skip


def _odd_files(folder: Path) -> Iterator[Path]:
    yield folder / "missing.yaml"
    yield folder / ("x" * 300)
    yield folder / "read.yaml" / "below"
    yield folder
    yield Path("/dev/zero")
    yield Path("/dev/null")
    yield Path("/proc/self/environ")
    os.mkfifo(folder / "fifo.yaml")
    yield folder / "fifo.yaml"
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    yield folder / "loop.yaml"
    with open(folder / "sparse.yaml", "wb") as file:
        file.truncate(SPARSE_BYTES)
    yield folder / "sparse.yaml"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.yaml"))
    yield folder / "socket.yaml"


def shown(item: Input) -> Mapping[str, Any]:
    """Returns an input as it is kept where it broke something."""
    return {
        "kind": item.kind,
        "text": (item.content or b"").decode("utf-8", "backslashreplace")[:3000],
        "path": str(item.path or ""),
        "overrides": [each[:300].encode("utf-8", "backslashreplace").decode() for each in item.overrides],
    }
