"""docs/limits.md is true: each cell that says `yes` has a test, or a result that a benchmark has recorded."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "limits.md"
MAX_LINES = 90
HEAD = "# What works, and its limits"
ROWS = (
    *("plain loop", "Hugging Face Trainer", "accelerate", "Lightning", "torchrun (ranks)", "Hydra"),
    *("notebook (executed by nbconvert)", "SLURM"),
)
COLUMNS = ("watch", "tune", "judge", "patch", "sweep")
CELL = re.compile(r"yes(: \S.*)?|no: \S.*|not tested")
RESULTS = "benchmarks/results/amd-epyc-2-cores"

LIBRARIES = {
    **{name: name for name in ("Hugging Face Trainer", "accelerate", "Lightning", "Hydra")},
    "torchrun (ranks)": "torchrun",
}
PARTS = {
    "watch": "watch, a step",
    "tune": "tune, tuned / as it is",
    "judge": "judge, itself",
    "patch": "patch, patched / as it is",
    "sweep": "sweep, trials measured",
}
"""The figures of `benchmarks/libraries.py`."""
NOT_SHOWN = {("accelerate", "patch"), ("Hugging Face Trainer", "patch")}

Cells = Mapping[tuple[str, str], str]

EVIDENCE: Cells = {
    ("plain loop", "watch"): "tests/cli/test_cli_watch.py::test_a_slow_data_set_is_named_with_its_line",
    ("plain loop", "tune"): "tests/cli/test_cli_tune.py::test_a_script_is_made_faster_and_runs_so",
    ("plain loop", "judge"): "tests/judging/test_judging.py::test_a_faster_command_that_trains_otherwise",
    ("plain loop", "patch"): "tests/cli/test_cli_tune.py::test_a_faster_script_is_patched_without_sweeper",
    ("plain loop", "sweep"): f"{RESULTS}/programs.json::gan: winner / its command",
    **{
        (row, column): f"{RESULTS}/libraries.json::{name}: {part}"
        for row, name in LIBRARIES.items()
        for column, part in PARTS.items()
        if (row, column) not in NOT_SHOWN
    },
    (
        "notebook (executed by nbconvert)",
        "watch",
    ): "tests/script/inside/test_inside_entry.py::test_ways_in_of_other_tools[notebook]",
    ("SLURM", "sweep"): "tests/launch/test_cluster_sweeps.py::test_forty_trials_on_eight_jobs_of_slurm",
}
"""For each cell that says `yes`, what has shown it: a test, or a figure or script in recorded results."""


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yields the tables of a page as rows of cells, without the line below the head."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [row for row in rows if set("".join(row)) != {"-"}]


def cells_of(text: str) -> Cells:
    """Returns the cells of a page's first table, by row and column."""
    (_, *columns), *rows = next(tables(text))
    return {(row[0], column): cell for row in rows for column, cell in zip(columns, row[1:], strict=True)}


@cache
def parameters_in(path: Path) -> Mapping[str, frozenset[str]]:
    """Returns the texts in the decorators of each test of a file, by name."""
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return {
        function.name: frozenset(
            node.value
            for decorator in function.decorator_list
            for node in ast.walk(decorator)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for function in functions
        if function.name.startswith("test_")
    }


def results_in(path: Path) -> set[str]:
    """Returns the figures in a benchmark's results, or the scripts whose races it recorded."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        return {json.loads(line)["script"] for line in text.splitlines()}
    return {row["figure"] for row in json.loads(text)}


def exists(evidence: str) -> bool:
    """Returns whether there is such a test, with these parameters, or such a result."""
    place, _, name = evidence.partition("::")
    path = ROOT / place
    if not path.is_file():
        return False
    if path.suffix != ".py":
        return name in results_in(path)
    test, _, parameters = name.rstrip("]").partition("[")
    texts = parameters_in(path).get(test)
    return texts is not None and (not parameters or texts.issuperset(parameters.split("-")))


def faults(cells: Cells, evidence: Cells) -> Iterator[str]:
    """Yields what is wrong with a table and the evidence for it."""
    wanted = {(row, column) for row in ROWS for column in COLUMNS}
    yield from (f"{place}: missing" for place in sorted(wanted - cells.keys()))
    yield from (f"{place}: unknown" for place in sorted(cells.keys() - wanted))
    yield from (f"{place}: {cell!r}" for place, cell in cells.items() if not CELL.fullmatch(cell))
    works = {place for place, cell in cells.items() if cell.startswith("yes")}
    yield from (f"{place}: no evidence" for place in sorted(works - evidence.keys()))
    yield from (f"{place}: evidence, but no `yes`" for place in sorted(evidence.keys() - works))
    yield from (f"{place}: {text} does not exist" for place, text in evidence.items() if not exists(text))


def test_the_page_says_what_was_shown():
    text = PAGE.read_text()
    assert text.startswith(HEAD)
    assert len(text.splitlines()) <= MAX_LINES
    assert list(faults(cells_of(text), EVIDENCE)) == []


def test_what_shows_a_limit_exists():
    _, (_, *limits) = tables(PAGE.read_text())
    assert len(limits) > 8
    places = [path for _, see in limits for path in re.findall(r"`(.+?)`", see)]
    assert len(places) >= len(limits)
    assert [path for path in places if not (ROOT / path).is_file()] == []


PLACE = ("plain loop", "watch")
TEST = "tests/test_limits_page.py::test_a_fault_is_seen"


@pytest.mark.parametrize(
    ("cells", "evidence", "fault"),
    [
        ({}, {}, ""),
        ({PLACE: "yes: one process"}, {PLACE: f"{TEST}[yes]"}, ""),
        ({PLACE: "no: REASON"}, {}, ""),
        ({PLACE: "no"}, {}, "'no'"),
        ({PLACE: "maybe"}, {}, "'maybe'"),
        ({PLACE: "yes"}, {}, "no evidence"),
        ({("plain loop", "stare"): "not tested"}, {}, "unknown"),
        ({}, {PLACE: TEST}, "no `yes`"),
        ({PLACE: "yes"}, {PLACE: "tests/no_file.py::test_it"}, "does not exist"),
        ({PLACE: "yes"}, {PLACE: "tests/test_limits_page.py::test_it"}, "does not exist"),
        ({PLACE: "yes"}, {PLACE: f"{TEST}[parameter that it has not]"}, "does not exist"),
        ({PLACE: "yes"}, {PLACE: f"{RESULTS}/tune.json::no figure"}, "does not exist"),
        ({PLACE: "yes"}, {PLACE: f"{RESULTS}/race-turns.jsonl::no script"}, "does not exist"),
    ],
)
def test_a_fault_is_seen(cells: Cells, evidence: Cells, fault: str):
    untested = {(row, column): "not tested" for row in ROWS for column in COLUMNS}
    seen = list(faults({**untested, **cells}, evidence))
    assert len(seen) == bool(fault)
    assert fault in "".join(seen)


def test_a_row_that_is_missing_is_seen():
    assert len(list(faults({}, {}))) == len(ROWS) * len(COLUMNS)
