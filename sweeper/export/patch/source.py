"""Parses a training script: its calls by full name, its variables, its training loop."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sweeper.export.patch.change import Advice

UNKNOWN: Any = object()
"""A value that the source does not show."""

LONGEST = 60
_AT_BRACKETS = re.compile(r"(?<=[(\[{]) | (?=[)\]}])")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOW_AND_THEN = (ast.Mod, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OF_MODELS = ("parameters", "named_parameters", "state_dict", "train", "eval")
_LIKE_A_MODEL = re.compile(r"(^|\.)(?=[a-z_])[^.]*(?i:model|net)[^.]*$")
_SAME = {"torch.half": "torch.float16"}


class Code(str):
    """A value that is a name in the source, such as `torch.bfloat16`."""

    __slots__ = ()


def code(value: object) -> str:
    """Returns a value as source."""
    return json.dumps(value) if isinstance(value, str) and not isinstance(value, Code) else str(value)


def dotted(node: ast.AST) -> str:
    """Returns `a.b.c` for a name and its attributes; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if isinstance(node, ast.Attribute) and owner else ""


def methods(within: ast.AST, *names: str) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Yields the calls `owner.name(...)` below a node, with their owners."""
    for node in ast.walk(within):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node.func.value, node


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Returns an argument of a call, by its name or position; None if absent."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    if named is not None or position is None or position >= len(call.args):
        return named
    before = call.args[: position + 1]
    return None if any(isinstance(each, ast.Starred) for each in before) else before[-1]


class Source:
    """One file, parsed.

    Attributes:
        text: The file.
        tree: Its syntax tree.
        on_gpu: Whether it mentions a GPU.
        torch_import: The first statement that imports torch or a part of it.
        bindings: By full name, the statements that assign it, each with the value if that is a whole
            expression.
        calls: Every call, with the full name of what it calls.
        training: The loops that train; for a backward pass outside all loops, its function.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.on_gpu = any(word in text for word in ("cuda", "accelerator"))
        with warnings.catch_warnings():
            # Invalid escapes in the script's strings are not our concern.
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        nodes = list(ast.walk(self.tree))
        self._above = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._imports: dict[str, str] = {}
        self.torch_import: ast.stmt | None = None
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        self._parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._functions = {node.name for node in nodes if isinstance(node, _FUNCTIONS)}
        self._options = dict(_options(self.tree))
        self.bindings: dict[str, list[tuple[ast.stmt, ast.expr | None]]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self._bind(node)
        self.calls = [(self.full_name(node.func), node) for node in nodes if isinstance(node, ast.Call)]
        self.calls.sort(key=lambda each: (each[1].lineno, each[1].col_offset))
        self.training = self._training()

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            whole = module + alias.name
            if alias.asname or module:
                self._imports[alias.asname or alias.name] = whole
            if whole.partition(".")[0] == "torch" and self.torch_import is None:
                self.torch_import = node

    def _bind(self, node: ast.Name | ast.Attribute) -> None:
        statement = self.statement(node)
        value = None
        if isinstance(statement, ast.Assign | ast.AnnAssign) and self._above[node] is statement:
            value = statement.value
        if name := self.full_name(node):
            self.bindings[name].append((statement, value))

    def _training(self) -> list[ast.AST]:
        found: list[ast.AST] = []
        for _, call in methods(self.tree, "backward"):
            above = list(self.above(call))
            loops = [each for each in above if isinstance(each, _LOOPS)]
            # A loop over micro-batches: the loop around it has the steps.
            if loops and "range" in self.iterated(loops[0]):
                loops = [each for each in loops if any(methods(each, "step"))] or loops
            functions = [each for each in above if isinstance(each, _FUNCTIONS)]
            found += [body for body in (*loops, *functions)[:1] if body not in found]
        return found

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields what a node is part of, from the nearest outwards."""
        while (parent := self._above.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the statement that an expression is part of."""
        return next(each for each in self.above(node) if isinstance(each, ast.stmt))

    def full_name(self, node: ast.AST) -> str:
        """Returns the name of an expression as it is imported: `DL` is `torch.utils.data.DataLoader`."""
        head, dot, rest = dotted(node).partition(".")
        return self._imports.get(head, head) + dot + rest

    def mentions(self, name: str) -> bool:
        """Returns whether anything in the file has this full name."""
        return any(self.full_name(node) == name for node in ast.walk(self.tree))

    def iterated(self, loop: ast.AST) -> set[str]:
        """Returns the names in what a loop iterates over."""
        over = loop.iter if isinstance(loop, ast.For | ast.AsyncFor) else None
        return {self.full_name(node) for node in ast.walk(over)} if over else set()

    def label(self, node: ast.expr) -> str:
        """Returns a value's name: its variable, key or keyword, else the function around it."""
        parent, statement = self._above[node], self.statement(node)
        if isinstance(parent, ast.keyword):
            return parent.arg or ""
        if isinstance(parent, ast.Dict):
            return str(getattr(parent.keys[parent.values.index(node)], "value", ""))
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if isinstance(parent, ast.Tuple) and isinstance(target, ast.Tuple):
                target = dict(zip(parent.elts, target.elts, strict=False)).get(node, target)
            return self.full_name(target)
        return next((each.name for each in self.above(node) if isinstance(each, _FUNCTIONS)), "")

    def each_step(self, node: ast.AST, body: ast.AST) -> bool:
        """Returns whether a node in a training loop runs in every step, not only occasionally."""
        child = node
        for each in self.above(node):
            if each is body:
                return child is not getattr(body, "iter", None)
            if isinstance(each, ast.If | ast.IfExp) and child is not each.test and self._is_rare(each.test):
                return False
            child = each
        return False

    def _is_rare(self, test: ast.expr) -> bool:
        """Returns whether a condition counts (`step % 100 == 0`), or compares with a bound or a number."""
        parts = list(ast.walk(test))
        held = [value for part in parts for _, value in self.bindings.get(self.full_name(part), []) if value]
        parts += [part for value in held for part in ast.walk(value)]
        # `rank == 0` holds in every step of the first process.
        equal = not any("rank" in self.full_name(part) for part in parts)
        return any(isinstance(part, (*_NOW_AND_THEN, ast.Eq) if equal else _NOW_AND_THEN) for part in parts)

    def models(self) -> Iterator[tuple[ast.Call, ast.AST]]:
        """Yields the first call of each model found in each training loop."""
        with_weights = {self.full_name(owner) for owner, _ in methods(self.tree, *_OF_MODELS)} - {""}
        others = {*self._imports.values(), *self._functions}
        for body in self.training:
            inside = set(ast.walk(body))
            called = [(name, call) for name, call in self.calls if call in inside]
            sure: dict[str, ast.Call] = {}
            for name, call in called:
                if name in with_weights:
                    sure.setdefault(name, call)
            likely = [call for name, call in called if _LIKE_A_MODEL.search(name) and name not in others]
            for call in [*sure.values()] or likely[:1]:
                yield call, body

    def made(self, call: ast.Call, body: ast.AST) -> ast.stmt | None:
        """Returns the last statement outside a training loop that makes or moves what it calls."""
        name = self.full_name(call.func)
        places = [statement for statement, _ in self.bindings.get(name, [])]
        for owner, move in methods(self.tree, "to", "cuda"):
            if self.full_name(owner) == name:
                places.append(self.statement(move))
        inside = set(ast.walk(body)) if isinstance(body, _LOOPS) else set()
        outside = sorted((e for e in places if e not in inside), key=lambda each: each.lineno)
        before = [each for each in outside if each.lineno < call.lineno]
        return next(reversed(before or outside), None)

    def value_of(self, node: ast.expr, depth: int = 1) -> Any:
        """Returns what an expression holds: a constant, a Code, a variable's only value; else UNKNOWN."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        name = self.full_name(node)
        if name.startswith("torch."):
            return Code(_SAME.get(name, name))
        if isinstance(node, ast.Call) and self.full_name(node.func) == "torch.cuda.is_available":
            return True
        if isinstance(node, ast.Attribute) and node.attr in self._options:
            return self._options[node.attr]
        values = [value for _, value in self.bindings.get(name, [])]
        if len(values) == 1 and values[0] is not None and depth and name not in self._parameters:
            return self.value_of(values[0], depth - 1)
        return UNKNOWN

    def differs(
        self, call: ast.Call, name: str, want: object, default: object, position: int | None = None
    ) -> str:
        """Returns how an argument of a call must change to be `want`; empty if it need not."""
        given = argument(call, name, position)
        if given is not None:
            return self.must_be(given, name, want)
        return "" if _equal(default, want) else f"{name}={code(want)}"

    def must_be(self, given: ast.expr, name: str, want: object) -> str:
        """Returns how an expression, which is the value of `name`, must change to be `want`."""
        now = self.value_of(given)
        if _equal(now, want):
            return ""
        is_variable = isinstance(given, ast.Name | ast.Attribute | ast.Subscript)
        if not is_variable or self.full_name(given).startswith("torch."):
            return f"{name}={code(want)} (now {self.snippet(given)})"
        return f"{self.snippet(given)} must be {code(want)}{'' if now is UNKNOWN else f' (now {code(now)})'}"

    def snippet(self, node: ast.AST) -> str:
        """Returns the source of a node on one line, shortened."""
        text = _AT_BRACKETS.sub("", " ".join((ast.get_source_segment(self.text, node) or "").split()))
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."

    def advice(self, node: ast.expr | ast.stmt, changes: Sequence[str], why: str) -> Iterator[Advice]:
        """Yields the advice to make these changes at a place, if there are any."""
        if change := ", ".join(filter(None, changes)):
            keywords = node.keywords if isinstance(node, ast.Call) else []
            for spread in (each.value for each in keywords if each.arg is None):
                change += f" (unless `{self.snippet(spread)}` has it)"
            yield Advice(node.lineno, self.snippet(node), change, why)


def _options(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yields the script's argparse options with their defaults."""
    for _, call in methods(tree, "add_argument"):
        flags = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
        long = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        given = {each.arg: getattr(each.value, "value", UNKNOWN) for each in call.keywords}
        switched = {"store_true": False, "store_false": True}.get(str(given.get("action")), UNKNOWN)
        name = str(given.get("dest", long.lstrip("-").replace("-", "_")))
        yield name, given.get("default", switched)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-5)
    return bool(one == other)
