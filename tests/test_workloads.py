"""What is trained is asked of its traits: a kind is told by its marks only where a specification is read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.registry import resolve
from sweeper.core.workload import BUILTIN, CHANGES, PIPELINE, SCRIPT, WorkloadTraits
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.sweep.workloads import Workload, workload_of

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "sweeper/core/workload.py",
    "sweeper/core/config.py",
    "sweeper/schema/reader.py",
    "sweeper/schema/sweep_spec.py",
}
ALLOWED_FOLDER = "sweeper/sweep/workloads/"

OF_TRUTH = {"command": "command", "pipeline": "pipeline", "reported_by": "reported_by"}
OF_NONE = {"args": "args is None", "script": "script is None"}
MARKS = (*OF_TRUTH.values(), *OF_NONE.values())


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions whose truth decides what runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject
        elif isinstance(node, ast.match_case) and node.guard is not None:
            yield node.guard
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.operand
        elif isinstance(node, ast.BoolOp):
            # The last one is the value.
            yield from node.values[:-1]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("bool", "len")
        ):
            yield from node.args


def asked(condition: ast.expr) -> Iterator[ast.Attribute]:
    """Yields the attributes whose own truth or value a condition asks for."""
    match condition:
        case ast.Attribute():
            yield condition
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from asked(part)
        case ast.UnaryOp(operand=part) | ast.NamedExpr(value=part):
            yield from asked(part)
        case ast.Compare(left=left, comparators=others):
            if any(isinstance(part, ast.Constant | ast.Tuple | ast.List) for part in (left, *others)):
                for part in (left, *others):
                    yield from asked(part)


def marks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the lines on which a kind is told by a mark, once for each mark in a condition."""
    places = set[tuple[int, int, str]]()
    for condition in conditions(tree):
        for attribute in asked(condition):
            if attribute.attr in OF_TRUTH:
                places.add((attribute.lineno, attribute.col_offset, OF_TRUTH[attribute.attr]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            for side in (node.left, *node.comparators):
                if isinstance(side, ast.Attribute) and side.attr in OF_NONE:
                    places.add((side.lineno, side.col_offset, OF_NONE[side.attr]))
    yield from ((line, mark) for line, _, mark in sorted(places))


def places() -> dict[str, list[tuple[int, str]]]:
    """Returns the marks in each module that is not allowed to have any."""
    known = {}
    for path in sorted((ROOT / "sweeper").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in ALLOWED and not name.startswith(ALLOWED_FOLDER):
            known[name] = list(marks(ast.parse(path.read_text(encoding="utf-8"))))
    return known


def test_a_kind_is_told_by_its_traits():
    known = places()
    assert len(known) > 200
    assert [f"{path}:{line}: {mark}" for path, lines in known.items() for line, mark in lines] == []


PLANTED = {
    "command": (
        *("if spec.command: ...", "x = 1 if not spec.command else 2", "while self.spec.command: ..."),
        *("assert spec.command", "[x for x in y if spec.command]", "a = bool(spec.command)"),
        *("is_one = spec.command or other", "if len(spec.command) > 0: ...", "if spec.command == (): ..."),
        *("match spec.command:\n case (): ...", "if (command := spec.command): ..."),
    ),
    "pipeline": ("x = f() if job.pipeline else {}", "return_ = spec.pipeline or words", "not spec.pipeline"),
    "args is None": ("if config.args is not None: ...", "key = (config.args is None, 1)"),
    "script is None": ("if job.script is None: ...", "assert self.job.script is not None"),
    "reported_by": ("if found.reported_by: ...", "x = None if m.reported_by else 1", "a.reported_by and b"),
}
LEFT = (
    "run(spec.command)",
    "for word in spec.command: ...",
    "f'as reported by {found.reported_by}'",
    "x = text or spec.pipeline",
    "if self.pipeline_of(job): ...",
    "if names_in(spec.command): ...",
    "values = config.args or {}",
    "if job.runner: ...",
)


@pytest.mark.parametrize("mark", MARKS)
def test_each_mark_is_seen_wherever_it_decides(mark: str):
    for text in PLANTED[mark]:
        assert [name for _, name in marks(ast.parse(text))] == [mark], text


@pytest.mark.parametrize("text", LEFT)
def test_what_does_not_decide_is_left(text: str):
    assert not list(marks(ast.parse(text)))


# -- which kind it is ------------------------------------------------------------------------------------

OF_PIPELINE = {"pipeline": "toy_pipeline", "space": {}, "baseline": {}}
OF_SCRIPT = {"command": ["python", "train.py", "--lr={lr}"], "space": {}, "baseline": {"lr": 0.1}}
OWN = WorkloadTraits(implementation="test_workloads:NOTHING", words=lambda spec: ["own"])
OF_OWN = {
    "workload": "test_workloads:OWN",
    "data": {"function": "steps:train"},
    "space": {"width": {"type": "int", "low": 1, "high": 9}},
    "baseline": {"width": 3},
}


@pytest.mark.parametrize(
    ("tree", "named", "kind", "words"),
    [
        (OF_PIPELINE, PIPELINE, PIPELINE, ["toy_pipeline"]),
        (OF_SCRIPT, SCRIPT, SCRIPT, ["python", "train.py", "--lr={lr}"]),
        (OF_SCRIPT | {"workload": CHANGES}, CHANGES, CHANGES, ["python", "train.py", "--lr={lr}"]),
    ],
)
def test_a_kind_is_named_or_follows_from_the_keys_and_is_stored(
    tree: dict[str, Any], named: str, kind: str, words: list[str]
):
    spec = SweepSpec.from_dict({"name": "a", **tree})
    assert spec.traits is BUILTIN[kind]
    assert list(spec.traits.words(spec)) == words
    assert spec.to_dict()["workload"] == named
    assert SweepSpec.from_dict(spec.to_dict(), is_stored=True).traits is BUILTIN[kind]


@pytest.mark.parametrize("kind", BUILTIN)
def test_a_row_names_parts_that_exist(kind: str):
    row = BUILTIN[kind]
    assert isinstance(resolve(row.implementation), Workload)
    assert callable(resolve(row.exported))
    assert callable(resolve(row.check))


def test_a_kind_of_ones_own_is_stored_and_read_even_where_it_is_gone():
    spec = SweepSpec.from_dict({"name": "a", **OF_OWN})
    assert spec.traits is OWN
    stored = spec.to_dict()
    assert stored.keys().isdisjoint({"pipeline", "command", "script"})
    assert SweepSpec.from_dict(stored, is_stored=True) == spec
    config = spec.config({"width": 5})
    assert config.flatten() == {"width": 5}
    assert not config.names_are_fields
    gone = SweepSpec.from_dict({**stored, "workload": "nowhere:KIND"}, is_stored=True)
    assert gone.config({"width": 5}) == config
    with pytest.raises(UserError, match="must be a kind that can be imported here, but got 'nowhere:KIND'"):
        workload_of(gone)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"workload": "pipelines"}, "`workload` must be a built-in name or an import string `module:name`"),
        ({"workload": "pipeline"}, "`pipeline` (a module) or `command` (a script) is required"),
        (
            {"workload": "script", "pipeline": "x"},
            "`workload: script` needs a `command`, but got a `pipeline`.",
        ),
        ({"workload": "nowhere:KIND"}, "No module named 'nowhere'"),
        ({"workload": "test_workloads:ROOT"}, "an instance of `WorkloadTraits`"),
        ({"baseline": {}}, "`width` needs a value in `baseline`"),
        ({"confirm": {"to_loss": True}}, "is for pipelines, but got a `workload`"),
        ({"measure": {"cold_cache": True}}, "is for pipelines, but got a `workload`"),
        ({"script": {"keep": True}}, "`script` needs a `command`"),
    ],
)
def test_what_a_kind_of_ones_own_does_not_take_is_said(more: dict[str, Any], says: str):
    with pytest.raises(UserError) as raised:
        SweepSpec.from_dict({"name": "a", **OF_OWN, **more})
    assert says in str(raised.value)


if __name__ == "__main__":
    counted = Counter(mark for lines in places().values() for _, mark in lines)
    print(*(f"{counted[mark]:>4} {mark}" for mark in MARKS), f"{counted.total():>4} in all", sep="\n")
