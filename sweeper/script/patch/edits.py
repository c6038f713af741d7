"""Writes changes into the source: each says itself how (`sweeper.script.changes.change.Change.edit`)."""

from __future__ import annotations

import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import libcst as cst
import libcst.matchers as m

from sweeper.script.changes import CHANGES
from sweeper.script.changes.change import NO_EDIT, Change
from sweeper.script.changes.optimizer import KINDS
from sweeper.script.patch.code import DEFINITIONS, IN_MEMORY, INDEXING
from sweeper.script.patch.source import (
    CannotEditError,
    Make,
    argument,
    edit_call,
    has_import,
    insert_after_imports,
    insert_at_top,
    insert_before_statement,
    insert_definition,
    is_unpacking,
    start_of_call,
    starts_of_calls_like,
    with_argument,
    with_unpacked,
    without_arguments,
)

CALLS: Mapping[str, frozenset[str]] = {
    "loader": frozenset({"DataLoader", "StatefulDataLoader"}),
    "optimizer": frozenset(
        {*KINDS, "Adamax", "NAdam", "RAdam", "RMSprop", "Adadelta", "ASGD", "Rprop", "SparseAdam"}
    ),
}
"""Names of the classes that make a loader or an optimizer."""
BY_ANY_NAME = frozenset({"optimizer"})
"""Objects that a call of another name may also make: many scripts choose an optimizer by a string."""
POSITIONS: Mapping[tuple[str, str], int] = {
    ("loader", "dataset"): 0,
    ("loader", "batch_size"): 1,
    ("loader", "num_workers"): 5,
    ("loader", "collate_fn"): 6,
    ("loader", "pin_memory"): 7,
    ("optimizer", "lr"): 1,
}
"""Positions of arguments that need no name."""
UNPACKED_WITHOUT_WORKERS = {"num_workers": "0", "persistent_workers": "False", "prefetch_factor": "None"}
OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "multiprocessing_context"})

MAX_COMMENT = 84
"""Maximum characters in a line of a comment, without `# `."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedChange:
    """A change to write into the source.

    Attributes:
        original: The script's own value.
        comment: Why the change is made, and what it gained.
    """

    name: str
    value: str
    original: str = ""
    comment: str = ""

    @property
    def lines(self) -> str:
        """The comment as lines of Python."""
        return "\n".join(f"# {line}" for line in textwrap.wrap(self.comment, MAX_COMMENT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The files of a training.

    Attributes:
        folder: Folder that the command runs in.
        main: The script, relative to the folder; empty if the command names none.
        places: `file:line` of the loader and the optimizer, absolute or relative to the folder.
        threads: Number of threads that its operations use.
        workers: Number of workers of its loader; None if unknown.
        batch: The type of its batches if they contain only tensors: `list`, `tuple` or `dict`.
        changes: All changes that there are, by name, the user's own included.
        facts: What the training uses (`sweeper.script.changes.facts`).
    """

    folder: Path
    main: str
    places: Mapping[str, str]
    threads: int = 1
    workers: int | None = None
    batch: str = ""
    changes: Mapping[str, Change] = field(default_factory=lambda: CHANGES)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def exact_text(self, path: str) -> str:
        """Returns the text of a file, with its original line ends.

        Raises:
            CannotEditError: There is none, it cannot be read, or its lines end in several ways.
        """
        if not path:
            raise CannotEditError(
                "it must be written into the Python script, which was not found here; use `sweeper exec`"
            )
        try:
            # `read_text` would replace the line ends.
            text = (self.folder / path).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotEditError(f"{path} cannot be read") from error
        if set(re.findall(r"\r\n?|\n", text)) not in (set(), {"\n"}, {"\r\n"}):
            raise CannotEditError(f"the lines of {path} must all end in \\n, or all in \\r\\n")
        return text

    def text(self, path: str) -> str:
        r"""Returns the text of a file for edits: all lines end in `\n`.

        Raises:
            CannotEditError: As for `exact_text`.
        """
        return self.exact_text(path).replace("\r\n", "\n")

    def call(self, of: str) -> Place:
        """Returns the call that makes the loader or the optimizer.

        Raises:
            CannotEditError: Its place is not known, or has no such call.
        """
        path, _, line = self.places.get(of, "").rpartition(":")
        if not path:
            raise CannotEditError(f"sweeper does not know where its {of} is made")
        path = canonical_path(self.folder, path)
        return path, start_of_call(self.text(path), int(line), CALLS[of], or_any=of in BY_ANY_NAME)


def canonical_path(folder: Path, path: str) -> str:
    """Returns a file's canonical path relative to a folder. Links are followed."""
    return os.path.relpath((folder / path).resolve(), folder.resolve())


Place = tuple[str, int]
"""A file and a line in it."""


@dataclass(slots=True)
class Edits:
    """The edits to make, by place.

    Attributes:
        calls: Edits of the calls that make a loader or an optimizer.
        before: Lines before the statement of such a call.
        definitions: New functions and classes of a file, by name.
        settings: Lines after the imports of a file.
        first: Lines before the first import of a file.
        imported: Modules that a file must import.
    """

    calls: dict[Place, list[tuple[str, Make]]] = field(default_factory=lambda: defaultdict(list))
    before: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))
    definitions: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    settings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    first: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    imported: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def edit_sources(sources: Sources, changes: Sequence[PatchedChange]) -> dict[str, str]:
    """Returns the new texts of the files that some changes edit.

    Raises:
        CannotEditError: One of them cannot be written into the source.
    """
    edits = Edits()
    for change in changes:
        implementation = sources.changes.get(change.name)
        if implementation is None or implementation.no_edit:
            raise CannotEditError(NO_EDIT if implementation is None else implementation.no_edit)
        implementation.edit(SourceEditor(edits, sources, change))
    texts: dict[str, str] = {}

    def text(path: str) -> str:
        return texts[path] if path in texts else sources.text(path)

    # From the bottom up, since an insertion moves the lines below it.
    for place in sorted({*edits.calls, *edits.before}, key=lambda place: (place[0], -place[1])):
        path, line = place
        for of, make in edits.calls[place]:
            texts[path] = edit_call(text(path), line, CALLS[of], make, or_any=of in BY_ANY_NAME)
        if added := edits.before[place]:
            texts[path] = insert_before_statement(text(path), line, "\n".join(added))
    for path, parts in edits.definitions.items():
        for name, part in parts.items():
            texts[path] = insert_definition(text(path), name, part, parts)
    for path, settings in edits.settings.items():
        texts[path] = insert_after_imports(text(path), "\n" + "\n".join(settings))
    for path, names in edits.imported.items():
        for name in sorted(names):
            if not has_import(text(path), name):
                texts[path] = insert_at_top(text(path), f"import {name}\n")
    for path, lines in edits.first.items():
        texts[path] = insert_at_top(text(path), "".join(lines))
    return texts


class SourceEditor:
    """Collects the edits of one change (`sweeper.script.changes.change.Editor`)."""

    def __init__(self, edits: Edits, sources: Sources, change: PatchedChange) -> None:
        self._edits, self._sources, self._change = edits, sources, change
        self.value, self.original, self.threads = change.value, change.original, sources.threads

    def refuse(self, why: str) -> NoReturn:
        """Leaves the change out of the source, for a reason."""
        raise CannotEditError(why)

    def set_argument(self, call: str, name: str, text: str) -> None:
        """Sets an argument where the `loader` or every `optimizer` like the script's is made."""
        position = POSITIONS.get((call, name))
        path, line = self._sources.call(call)
        lines = [line]
        if call == "optimizer":
            # A script may have several optimizers of a kind, and at run time all of them are changed.
            lines = starts_of_calls_like(self._sources.text(path), line, CALLS[call])
        for line in lines:
            self._edit(call, (path, line), lambda node: with_argument(node, name, text, position))

    def scale_argument(self, call: str, name: str, factor: Callable[[str], float]) -> None:
        """Multiplies an argument by a factor that may depend on the name of the called class."""

        def scale(node: cst.Call) -> cst.Call:
            position = POSITIONS[call, name]
            given = argument(node, name, position)
            if given is None:
                raise CannotEditError(f"the call of its {call} has no `{name}`")
            times = factor(_code(node.func).rpartition(".")[2])
            is_plain = name == "batch_size" and _code(given) == self.original
            text = self.value if is_plain else _product(f"{times:.6g}", given)
            return with_argument(node, name, text, position)

        self._edit(call, self._sources.call(call), scale, has_comment=call == "loader")

    def use_no_workers(self) -> None:
        """Makes the training process read the rows of the loader."""
        self._edit("loader", self._sources.call("loader"), self._without_workers)

    def gather_batches(self) -> None:
        """Makes the loader gather its batches from a data set in memory."""
        place = self._sources.call("loader")
        self._edit("loader", place, self._gather_rows)
        self._define(place[0], "InMemoryDataset", IN_MEMORY + INDEXING[self._sources.batch])

    def call_on_model(self, text: str) -> None:
        """Inserts a statement before the optimizer is made; `{model}` stands for its model."""
        place = self._sources.call("optimizer")
        # A comment on the call itself stays right above it.
        self._edits.before[place][:0] = [self._change.lines, text.format(model=_model(self._sources))]
        if "torch." in text:
            self._edits.imported[place[0]].add("torch")

    def define(self, name: str) -> None:
        """Adds a function of `sweeper.script.patch.code` to the file that makes the optimizer."""
        path, _ = self._sources.call("optimizer")
        self._define(path, name, DEFINITIONS[name])

    def set_globally(self, text: str, *modules: str) -> None:
        """Inserts lines after the imports of the script, and imports `modules`."""
        self._edits.settings[self._sources.main].append(f"{self._change.lines}\n{text}\n")
        self._edits.imported[self._sources.main].update(modules)

    def set_variable(self, name: str, text: str) -> None:
        """Sets an environment variable before the script imports anything."""
        self._edits.first[self._sources.main].append(
            f'import os\n\n{self._change.lines}\nos.environ.setdefault("{name}", "{text}")\n\n'
        )

    def _edit(self, call: str, place: Place, make: Make, *, has_comment: bool = True) -> None:
        self._edits.calls[place].append((call, make))
        if has_comment:
            self._edits.before[place].append(self._change.lines)

    def _define(self, path: str, name: str, text: str) -> None:
        if re.search(rf"\b(class|def) {name}\b", self._sources.text(path)):
            raise CannotEditError(f"{path} already has a {name}")
        self._edits.definitions[path][name] = text
        self._edits.imported[path].add("torch")

    def _without_workers(self, call: cst.Call) -> cst.Call:
        if self._sources.workers == 0:
            return call
        if is_unpacking(call):
            return with_unpacked(call, UNPACKED_WITHOUT_WORKERS)
        position = POSITIONS["loader", "num_workers"]
        if argument(call, "num_workers", position) is not None:
            call = with_argument(call, "num_workers", "0", position)
        return without_arguments(call, OF_WORKERS)

    def _gather_rows(self, call: cst.Call) -> cst.Call:
        position = POSITIONS["loader", "collate_fn"]
        rows = argument(call, "dataset", 0)
        # If `**` unpacks another `collate_fn`, the call fails, and the comparison shows it.
        collate = argument(call, "collate_fn", position, may_be_unpacked=True)
        if rows is None:
            raise CannotEditError("the call of its loader has no `dataset`")
        given = _code(rows) if collate is None else f"{_code(rows)}, {_code(collate)}"
        call = with_argument(call, "dataset", f"InMemoryDataset({given})", 0)
        # The indexed rows are a batch already.
        as_is = self._sources.batch or "InMemoryDataset.as_is"
        return with_argument(self._without_workers(call), "collate_fn", as_is, position)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _model(sources: Sources) -> str:
    """Returns the expression of the model whose parameters the optimizer gets.

    Raises:
        CannotEditError: The parameters are not those of one model.
    """
    path, line = sources.call("optimizer")
    models: set[str] = set()

    def look(call: cst.Call) -> cst.Call:
        for match in m.findall(call, m.Call(func=m.Attribute(attr=m.Name("parameters")))):
            function = cst.ensure_type(cst.ensure_type(match, cst.Call).func, cst.Attribute)
            models.add(_code(function.value))
        return call

    edit_call(sources.text(path), line, CALLS["optimizer"], look, or_any=True)
    if len(models) != 1:
        raise CannotEditError("its optimizer does not get the parameters of one model")
    return models.pop()


def _product(factor: str, value: cst.BaseExpression) -> str:
    """Returns the code of a product."""
    is_plain = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.BaseNumber)
    return f"{factor} * {_code(value)}" if is_plain else f"{factor} * ({_code(value)})"
