"""Edits the source for each change that a tune can hand over."""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
import libcst.matchers as m

from sweeper.core.script import RETAIN
from sweeper.interventions.batch import LINEAR
from sweeper.interventions.fused import KINDS
from sweeper.interventions.loader import CORES, GATHERED, NO_WORKERS
from sweeper.patching.code import IN_BFLOAT16, IN_MEMORY, INDEXING
from sweeper.patching.source import (
    CannotEditError,
    Make,
    argument,
    edit_call,
    imports,
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
NUM_WORKERS, COLLATE, PIN = 5, 6, 7
"""Positions of arguments of a DataLoader."""
UNPACKED_WITHOUT_WORKERS = {"num_workers": "0", "persistent_workers": "False", "prefetch_factor": "None"}
OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "multiprocessing_context"})
MALLOPT = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2}
"""Numbers of mallopt(3)'s parameters."""

MAX_COMMENT = 84
"""Maximum characters in a line of a comment, without `# `."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A change to write into the source.

    Attributes:
        own: The script's own value.
        comment: Why the change is made, and what it gained.
    """

    name: str
    value: str
    own: str = ""
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
    """

    folder: Path
    main: str
    places: Mapping[str, str]
    threads: int = 1
    workers: int | None = None
    batch: str = ""

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
            raise CannotEditError(f"it is not known where its {of} is made")
        path = one_name(self.folder, path)
        return path, start_of_call(self.text(path), int(line), CALLS[of], or_any=of in BY_ANY_NAME)


def one_name(folder: Path, path: str) -> str:
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


Edit = Callable[[Edits, Sources, Made], None]


def written(sources: Sources, made: Sequence[Made]) -> dict[str, str]:
    """Returns the new texts of the files that some changes edit.

    Raises:
        CannotEditError: One of them cannot be written into the source.
    """
    edits = Edits()
    for each in made:
        edit = EDITS.get(each.name)
        if edit is None:
            raise CannotEditError("it takes more than a few lines of code; use `sweeper exec`")
        edit(edits, sources, each)
    found: dict[str, str] = {}

    def text(path: str) -> str:
        return found[path] if path in found else sources.text(path)

    # From the bottom up, since an insertion moves the lines below it.
    for place in sorted({*edits.calls, *edits.before}, key=lambda each: (each[0], -each[1])):
        path, line = place
        for of, make in edits.calls[place]:
            found[path] = edit_call(text(path), line, CALLS[of], make, or_any=of in BY_ANY_NAME)
        if added := edits.before[place]:
            found[path] = insert_before_statement(text(path), line, "\n".join(added))
    for path, parts in edits.definitions.items():
        for name, part in parts.items():
            found[path] = insert_definition(text(path), name, part, parts)
    for path, settings in edits.settings.items():
        found[path] = insert_after_imports(text(path), "\n" + "\n".join(settings))
    for path, names in edits.imported.items():
        for name in sorted(names):
            if not imports(text(path), name):
                found[path] = insert_at_top(text(path), f"import {name}\n")
    for path, lines in edits.first.items():
        found[path] = insert_at_top(text(path), "".join(lines))
    return found


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _loader(edits: Edits, sources: Sources, made: Made) -> None:
    def without_workers(call: cst.Call) -> cst.Call:
        if sources.workers == 0:
            return call
        if is_unpacking(call):
            return with_unpacked(call, UNPACKED_WITHOUT_WORKERS)
        if argument(call, "num_workers", NUM_WORKERS) is not None:
            call = with_argument(call, "num_workers", "0", NUM_WORKERS)
        return without_arguments(call, OF_WORKERS)

    def gathering(call: cst.Call) -> cst.Call:
        rows = argument(call, "dataset", 0)
        # If `**` unpacks another `collate_fn`, the call fails, and the proof shows it.
        collate = argument(call, "collate_fn", COLLATE, may_be_unpacked=True)
        if rows is None:
            raise CannotEditError("the call of its loader has no `dataset`")
        given = _code(rows) if collate is None else f"{_code(rows)}, {_code(collate)}"
        call = with_argument(call, "dataset", f"InMemoryDataset({given})", 0)
        # The indexed rows are a batch already.
        as_is = sources.batch or "InMemoryDataset.as_is"
        return with_argument(without_workers(call), "collate_fn", as_is, COLLATE)

    place = sources.call("loader")
    make = {GATHERED: gathering, NO_WORKERS: without_workers, CORES: _with_cores}[made.value]
    edits.calls[place].append(("loader", make))
    edits.before[place].append(made.lines)
    if made.value == GATHERED:
        _define(edits, sources, place[0], "InMemoryDataset", IN_MEMORY + INDEXING[sources.batch])


def _with_cores(call: cst.Call) -> cst.Call:
    return with_argument(call, "num_workers", str(len(os.sched_getaffinity(0))), NUM_WORKERS)


def _readers(edits: Edits, sources: Sources, made: Made) -> None:
    place = sources.call("loader")
    edits.calls[place].append(("loader", _with_cores))
    edits.before[place].append(made.lines)


def _pinned(edits: Edits, sources: Sources, made: Made) -> None:
    place = sources.call("loader")
    edits.calls[place].append(("loader", lambda call: with_argument(call, "pin_memory", "True", PIN)))
    edits.before[place].append(made.lines)


def _define(edits: Edits, sources: Sources, path: str, name: str, text: str) -> None:
    if re.search(rf"\b(class|def) {name}\b", sources.text(path)):
        raise CannotEditError(f"{path} already has a {name}")
    edits.definitions[path][name] = text
    edits.imported[path].add("torch")


def _optimizer(edits: Edits, sources: Sources, made: Made) -> None:
    path, line = sources.call("optimizer")
    # A script may have several optimizers of a kind, and at run time all of them are fused.
    for each in starts_of_calls_like(sources.text(path), line, CALLS["optimizer"]):
        edits.calls[path, each].append(("optimizer", lambda call: with_argument(call, "fused", "True")))
        edits.before[path, each].append(made.lines)


def _model(sources: Sources) -> str:
    """Returns the expression of the model whose parameters the optimizer gets.

    Raises:
        CannotEditError: The parameters are not those of one model.
    """
    path, line = sources.call("optimizer")
    found: set[str] = set()

    def look(call: cst.Call) -> cst.Call:
        for each in m.findall(call, m.Call(func=m.Attribute(attr=m.Name("parameters")))):
            function = cst.ensure_type(cst.ensure_type(each, cst.Call).func, cst.Attribute)
            found.add(_code(function.value))
        return call

    edit_call(sources.text(path), line, CALLS["optimizer"], look, or_any=True)
    if len(found) != 1:
        raise CannotEditError("its optimizer does not get the parameters of one model")
    return found.pop()


def _before_optimizer(statement: str) -> Edit:
    def edit(edits: Edits, sources: Sources, made: Made) -> None:
        place = sources.call("optimizer")
        # A comment on the call itself stays right above it.
        edits.before[place][:0] = [made.lines, statement.format(model=_model(sources))]
        if "torch." in statement:
            edits.imported[place[0]].add("torch")

    return edit


def _precision(edits: Edits, sources: Sources, made: Made) -> None:
    _before_optimizer("in_bfloat16({model})")(edits, sources, made)
    path, _ = sources.call("optimizer")
    _define(edits, sources, path, "in_bfloat16", IN_BFLOAT16)


def _times(factor: str, value: cst.BaseExpression) -> str:
    """Returns the code of a product."""
    is_plain = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.BaseNumber)
    return f"{factor} * {_code(value)}" if is_plain else f"{factor} * ({_code(value)})"


def _batch_size(edits: Edits, sources: Sources, made: Made) -> None:
    factor = int(made.value) / int(made.own)

    def larger(call: cst.Call) -> cst.Call:
        size = argument(call, "batch_size", 1)
        if size is None:
            raise CannotEditError("the call of its loader has no `batch_size`")
        text = made.value if _code(size) == made.own else _times(f"{factor:g}", size)
        return with_argument(call, "batch_size", text, 1)

    def faster(call: cst.Call) -> cst.Call:
        rate = argument(call, "lr", 1)
        if rate is None:
            raise CannotEditError("the call of its optimizer has no `lr`")
        times = factor if _code(call.func).rpartition(".")[2] in LINEAR else math.sqrt(factor)
        return with_argument(call, "lr", _times(f"{times:.6g}", rate), 1)

    edits.calls[sources.call("optimizer")].append(("optimizer", faster))
    place = sources.call("loader")
    edits.calls[place].append(("loader", larger))
    edits.before[place].append(made.lines)


def _setting(lines: Callable[[Sources, Made], str]) -> Edit:
    def edit(edits: Edits, sources: Sources, made: Made) -> None:
        edits.settings[sources.main].append(f"{made.lines}\n{lines(sources, made)}\n")
        edits.imported[sources.main].add("torch")

    return edit


def _threads(sources: Sources, made: Made) -> str:
    return f"torch.set_num_threads({1 if made.value == 'one' else sources.threads // 2})"


def _malloc(edits: Edits, sources: Sources, made: Made) -> None:
    calls = "".join(
        f"    libc.mallopt({MALLOPT[name]}, {value})  # M_{name[7:-1]}\n" for name, value in RETAIN.items()
    )
    # Only glibc has mallopt.
    head = 'libc = ctypes.CDLL(None) if sys.platform == "linux" else None\nif hasattr(libc, "mallopt"):\n'
    edits.settings[sources.main].append(f"{made.lines}\n{head}{calls}")
    edits.imported[sources.main].update(("ctypes", "sys"))


def _variable(name: str, value: str) -> Edit:
    def edit(edits: Edits, sources: Sources, made: Made) -> None:
        # torch reads the variable when it is imported.
        edits.first[sources.main].append(
            f'import os\n\n{made.lines}\nos.environ.setdefault("{name}", "{value}")\n\n'
        )

    return edit


EDITS: Mapping[str, Edit] = {
    "loader": _loader,
    "readers": _readers,
    "pinned": _pinned,
    "optimizer": _optimizer,
    "compile": _before_optimizer("{model}.compile()"),
    "layout": _before_optimizer("{model}.to(memory_format=torch.channels_last)"),
    "precision": _precision,
    "batch_size": _batch_size,
    "threads": _setting(_threads),
    "tf32": _setting(
        lambda *_: "torch.backends.cuda.matmul.allow_tf32 = True\ntorch.backends.cudnn.allow_tf32 = True"
    ),
    "cudnn": _setting(lambda *_: "torch.backends.cudnn.benchmark = True"),
    "device.malloc": _malloc,
    "spinning": _variable("GOMP_SPINCOUNT", "1000"),
    "allocator": _variable("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
}
"""Edits by the change's name, as a tune's winner has it."""
