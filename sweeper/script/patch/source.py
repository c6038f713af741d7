"""Edits Python source and leaves everything else as it was: libcst preserves formatting and comments."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider


class CannotEditError(Exception):
    """Raised if the source has no place for an edit; its text says why."""


Make = Callable[[cst.Call], cst.Call]


def edit_call(source: str, line: int, names: Collection[str], make: Make, *, or_any: bool = False) -> str:
    """Returns the source with one call edited: the call of one of `names` that a line is part of.

    Args:
        or_any: Whether the outermost call is edited if there is none: `getattr(optim, name)(...)`.

    Raises:
        CannotEditError: There is none, or there are several.
    """
    for targets in (names, ())[: 1 + or_any]:
        editor = _CallEditor(line, targets, make)
        module = MetadataWrapper(cst.parse_module(source)).visit(editor)
        if len(editor.starts) == 1:
            return module.code
        if editor.starts:
            raise CannotEditError(f"line {line} has several calls of {' or '.join(sorted(names))}")
    raise CannotEditError(f"line {line} has no call of {' or '.join(sorted(names))}")


def start_of_call(source: str, line: int, names: Collection[str], *, or_any: bool = False) -> int:
    """Returns the first line of the call that `edit_call` would edit.

    Raises:
        CannotEditError: There is none.
    """
    for targets in (names, ())[: 1 + or_any]:
        editor = _CallEditor(line, targets, lambda call: call)
        MetadataWrapper(cst.parse_module(source)).visit(editor)
        if editor.starts:
            return editor.starts[0]
    raise CannotEditError(f"line {line} has no call of {' or '.join(sorted(names))}")


def starts_of_calls_like(source: str, line: int, names: Collection[str]) -> list[int]:
    """Returns the first lines of all calls of the function called at a line, or the line if there is none."""
    calls: list[tuple[str, int]] = []
    for call, place in MetadataWrapper(cst.parse_module(source)).resolve(PositionProvider).items():
        if isinstance(call, cst.Call) and name_of(call) in names:
            calls.append((cst.Module([]).code_for_node(call.func), place.start.line))
    wanted = next((function for function, start in calls if start == line), None)
    return [start for function, start in calls if function == wanted] or [line]


class _CallEditor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, line: int, names: Collection[str], make: Make) -> None:
        super().__init__()
        self._line, self._names, self._make = line, names, make
        self._depth = 0
        self.starts: list[int] = []

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        """Counts the calls around the next one."""
        self._depth += 1

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        """Edits the call if it is the wanted one."""
        self._depth -= 1
        place = self.get_metadata(PositionProvider, original_node)
        is_it = name_of(updated_node) in self._names if self._names else self._depth == 0
        if not is_it or not place.start.line <= self._line <= place.end.line:
            return updated_node
        self.starts.append(place.start.line)
        return self._make(updated_node)


def name_of(call: cst.Call) -> str:
    """Returns the last name of the called function: `DataLoader` for `torch.utils.data.DataLoader(...)`."""
    function = call.func
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def argument(
    call: cst.Call, name: str, position: int | None = None, *, may_be_unpacked: bool = False
) -> cst.BaseExpression | None:
    """Returns an argument by its name, or else by its position; None if it is not given.

    Args:
        may_be_unpacked: Whether None is also returned if `**` may contain the argument.

    Raises:
        CannotEditError: It may be among arguments that are only known when the call runs.
    """
    if any(arg.star == "*" for arg in call.args):
        raise CannotEditError("its arguments are unpacked with `*`")
    for index, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if arg.keyword is None and not arg.star and index == position:
            return arg.value
    if is_unpacking(call) and not may_be_unpacked:
        raise CannotEditError(f"its {name} may be among arguments that are unpacked with `**`")
    return None


def is_unpacking(call: cst.Call) -> bool:
    """Returns whether a call has arguments that are unpacked with `**`."""
    return any(arg.star == "**" for arg in call.args)


def with_unpacked(call: cst.Call, values: Mapping[str, str]) -> cst.Call:
    """Returns a call with values set in the arguments that are unpacked with `**`."""
    items = ", ".join(f'"{name}": {value}' for name, value in values.items())
    args = []
    for arg in call.args:
        if arg.star == "**":
            text = cst.Module([]).code_for_node(arg.value)
            arg = arg.with_changes(value=cst.parse_expression(f"{{**{text}, {items}}}"))
        args.append(arg)
    return call.with_changes(args=args)


def with_argument(call: cst.Call, name: str, value: str, position: int | None = None) -> cst.Call:
    """Returns a call with an argument set: in its place if it is given, at the end otherwise."""
    expression = cst.parse_expression(value)
    args = list(call.args)
    for index, arg in enumerate(args):
        is_named = arg.keyword is not None and arg.keyword.value == name
        if is_named or (arg.keyword is None and not arg.star and index == position):
            args[index] = arg.with_changes(value=expression)
            return call.with_changes(args=args)
    added = cst.Arg(
        keyword=cst.Name(name),
        value=expression,
        equal=cst.AssignEqual(
            whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
        ),
    )
    if args and isinstance(args[-1].comma, cst.Comma):
        # A trailing comma stays a trailing comma.
        between = args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        added = added.with_changes(comma=args[-1].comma)
        args[-1] = args[-1].with_changes(comma=between)
    elif args and len(args) > 1:
        args[-1] = args[-1].with_changes(comma=args[-2].comma)
    return call.with_changes(args=[*args, added])


def without_arguments(call: cst.Call, names: Collection[str]) -> cst.Call:
    """Returns a call without some named arguments."""
    args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in names]
    if args and len(args) < len(call.args):
        args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=args)


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text with their ends, as Python and libcst count them.

    `str.splitlines` would also split at form feeds and the like.
    """
    return list(io.StringIO(text))


def insert_before_statement(source: str, line: int, text: str) -> str:
    """Returns the source with lines put before a line's statement, with the statement's indentation."""
    start = statement_start(source, line)
    lines = lines_of(source)
    before = lines[start - 1]
    indent = before[: len(before) - len(before.lstrip())]
    texts = (addition.removesuffix("\n") for addition in lines_of(text))
    added = [f"{indent}{addition}\n" if addition else "\n" for addition in texts]
    return "".join([*lines[: start - 1], *added, *lines[start - 1 :]])


def statement_start(source: str, line: int) -> int:
    """Returns the first line of the innermost simple statement that a line is part of.

    Raises:
        CannotEditError: It is not part of one.
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _StatementFinder(line)
    wrapper.visit(finder)
    if not finder.first_line:
        raise CannotEditError(f"line {line} is not part of a simple statement")
    return finder.first_line


class _StatementFinder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, line: int) -> None:
        super().__init__()
        self._line = line
        self.first_line = 0

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802
        """Takes the statement if the line is part of it."""
        place = self.get_metadata(PositionProvider, node)
        if place.start.line <= self._line <= place.end.line:
            self.first_line = place.start.line


def statements_by_line(source: str) -> dict[int, int]:
    """Returns, for each line of a simple statement, the line on which the statement begins."""
    starts = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            starts.update(
                dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
            )
    return starts


def insert_after_imports(source: str, text: str) -> str:
    """Returns the source with lines put after its first block of imports."""
    line = 0
    for statement, (_, end) in _statements(source):
        if _is_import(statement):
            line = end
        elif line or not (_is_docstring(statement) or _is_future(statement)):
            break
    return _insert(source, line, text) if line else insert_at_top(source, text)


def insert_definition(source: str, name: str, text: str, ours: Collection[str]) -> str:
    """Returns the source with a function or class put before the last definition at or above its first use.

    Args:
        ours: Names of all inserted definitions: no two are adjacent, so that each can be taken alone.
    """
    lines = lines_of(source)
    used = re.compile(rf"\b{name}\b")
    statements = list(_statements(source))
    imported = max((end for statement, (_, end) in statements if _is_import(statement)), default=0)
    spot, previous = 0, ""
    for statement, (start, end) in statements:
        is_definition = isinstance(statement, cst.FunctionDef | cst.ClassDef)
        here = statement.name.value if is_definition else ""  # type: ignore[attr-defined]
        # The place right after the imports is for settings.
        if here and start > imported and previous and here not in ours and previous not in ours:
            spot = start - 1
        if used.search("".join(lines[start - 1 : end])):
            break
        previous = "" if _is_import(statement) else here or "a statement"
    while spot and lines[spot - 1].startswith("#"):
        spot -= 1
    return _insert(source, spot, f"{text}\n\n") if spot else insert_after_imports(source, f"\n\n{text}")


def insert_at_top(source: str, text: str) -> str:
    """Returns the source with lines put before its first statement after docstring and `__future__`."""
    line = 0
    for statement, (start, end) in _statements(source):
        if not _is_docstring(statement) and not _is_future(statement):
            line = line or start - 1
            break
        line = end
    return _insert(source, line, text)


def _insert(source: str, after: int, text: str) -> str:
    lines = lines_of(source)
    return "".join([*lines[:after], text, *lines[after:]])


def _statements(source: str) -> Iterator[tuple[cst.CSTNode, tuple[int, int]]]:
    """Yields the statements of a module, with their first and last lines."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    places = wrapper.resolve(PositionProvider)
    for statement in wrapper.module.body:
        first = next(iter(getattr(statement, "decorators", ())), statement)
        yield statement, (places[first].start.line, places[statement].end.line)


def _small_statement(statement: object) -> cst.BaseSmallStatement | None:
    if isinstance(statement, cst.SimpleStatementLine) and statement.body:
        return statement.body[0]
    return None


def _is_import(statement: object) -> bool:
    return isinstance(_small_statement(statement), (cst.Import, cst.ImportFrom))


def _is_future(statement: object) -> bool:
    small = _small_statement(statement)
    is_from = isinstance(small, cst.ImportFrom) and isinstance(small.module, cst.Name)
    return is_from and small.module.value == "__future__"  # type: ignore[union-attr]


def _is_docstring(statement: object) -> bool:
    small = _small_statement(statement)
    strings = (cst.SimpleString, cst.ConcatenatedString)
    return isinstance(small, cst.Expr) and isinstance(small.value, strings)


def has_import(source: str, name: str) -> bool:
    """Returns whether a module is imported under its own name at the top level."""
    for statement in cst.parse_module(source).body:
        small = _small_statement(statement)
        if isinstance(small, cst.Import):
            for alias in small.names:
                is_renamed = alias.asname is not None
                if not is_renamed and alias.evaluated_name.partition(".")[0] == name:
                    return True
    return False
