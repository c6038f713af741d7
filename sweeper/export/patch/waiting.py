"""Advice on what makes each step wait for the GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from sweeper.core.config import Scalar
from sweeper.export.patch.change import Advice
from sweeper.export.patch.source import Source, methods

_READ = ("item", "cpu", "tolist")
_SHOW = ("print", "float")
_SHOW_METHODS = ("set_postfix", "set_description")
_OF_HOST = ("shape", "dtype", "device", "grad_fn")


def waits(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises against reading a number from the GPU in every step, whatever the configuration."""
    change = "keep it on the device (`.detach()`), and read it every hundred steps"
    for body in source.training:
        losses = _losses(body)
        advised: set[ast.stmt] = set()
        for node in ast.walk(body):
            if not isinstance(node, ast.Call) or not _waits(node, losses, source):
                continue
            statement = source.statement(node)
            if statement not in advised and source.each_step(node, body):
                advised.add(statement)
                yield from source.advice(node, [change], "it waits for the GPU in every step")


def _losses(body: ast.AST) -> set[str]:
    """Returns the variables that a backward pass starts from."""
    calls = [call for _, call in methods(body, "backward")]
    names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)} - {"self"}
    return {name for name in names if "loss" in name.lower()} or (names if len(names) == 1 else set())


def _waits(call: ast.Call, losses: set[str], source: Source) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in _READ:
        return not call.args
    if method == "to":
        return bool(call.args) and source.value_of(call.args[0]) == "cpu"
    if method not in _SHOW_METHODS and source.full_name(call.func) not in _SHOW:
        return False
    return any(
        isinstance(node, ast.Name) and node.id in losses and not _is_of_host(node, source)
        for given in (*call.args, *call.keywords)
        for node in ast.walk(given)
    )


def _is_of_host(node: ast.Name, source: Source) -> bool:
    """Returns whether only host-side metadata of a tensor is read."""
    parent = next(source.above(node))
    return isinstance(parent, ast.Attribute) and parent.attr in _OF_HOST
