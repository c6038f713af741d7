"""One word per thing: no identifier and no file goes back to a word that was given up.

Text and names on disk are not looked at: 0.1.0's files keep theirs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

GIVEN_UP = {
    "told": "the search result, the metrics, or what was reported",
    "beside": "neighbours, interference",
    "settling": "wait_for_memory",
    "settle": "wait_for_memory",
    "standing": "TrialTable",
    "keeping": "kept_processes",
    "showing": "publish, publisher",
    "describing": "publish",
    "opening": "catalog",
    "placing": "launchers",
    "trying": "check, dry_step",
    "mattering": "sensitivity",
    "crashing": "failpoints",
    "mending": "repair",
    "mend": "repair",
    "dear": "expensive",
    "manieth": "every n-th",
}
PRONOUNS = {
    **dict.fromkeys(
        ("each", "found", "own", "known", "asked", "made", "taken", "said"), "the noun of what it is"
    ),
    **dict.fromkeys(("among", "usual"), "the noun of what it is"),
    **dict.fromkeys(("most", "least"), "max or min, and of what"),
}
"""Names that say nothing alone; as a part of a name they may."""
PARTICIPLES = {
    # What happened in a race, and what a script says of itself: events.
    *("Added", "Ended", "Started", "Turned", "Verified"),
    # Changes, named after the value that asks for them.
    *("Compiled", "Fused", "Pinned"),
    "Prepared",  # public
}
"""Classes that are named after a deed. Of every other class, the name says what it is."""
IN_FILE_NAMES = {
    *GIVEN_UP,
    *("again", "ending", "starting", "building", "offered", "capacity", "publishing"),
    *("untried", "material", "card", "book"),
}
FILES = [
    *(path for path in sorted(ROOT.glob("sweeper/**/*.py"))),
    *(path for folder in ("tests", "benchmarks") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))),
]


def parts(name: str) -> list[str]:
    """`MAX_TrialTable` -> max, trial, table."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def old_names(source: str) -> list[str]:
    """Returns each identifier with a word that was given up, an old prefix of a limit, or a pronoun."""
    old = []
    for line, name in identifiers(ast.parse(source)):
        words = [word for word in parts(name) if word in GIVEN_UP]
        limit = re.match(r"_?(MOST|LEAST)_", name)
        pronoun = PRONOUNS.get(name.strip("_"))
        if words or limit or pronoun:
            better = pronoun or (GIVEN_UP[words[0]] if words else "MAX_ or MIN_")
            old.append(f"{line}: {name} ({better})")
    return old


def test_no_identifier_has_an_old_word():
    sources = {path: old_names(path.read_text()) for path in sorted(ROOT.glob("sweeper/**/*.py"))}
    assert {str(path.relative_to(ROOT)): names for path, names in sources.items() if names} == {}
    assert len(sources) > 100


def classes() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.glob("sweeper/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, path.relative_to(ROOT)


def test_a_class_is_a_noun():
    participles = {name for name, _ in classes() if len(parts(name)) == 1 and name.endswith("ed")}
    assert participles - {"Speed"} == PARTICIPLES


def test_no_two_classes_have_the_same_name():
    homes: dict[str, list[str]] = {}
    for name, path in classes():
        homes.setdefault(name, []).append(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
    assert len(homes) > 400


def test_no_file_has_one():
    def alone(path: Path) -> set[str]:
        words = parts(path.stem)
        # `trial_card` says what it is a card of; a module `card` does not.
        return set(words) & set(GIVEN_UP) | (set(words) & IN_FILE_NAMES if len(words) == 1 else set())

    assert {str(path.relative_to(ROOT)): words for path in FILES if (words := alone(path))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def f(beside): ...",
        "class Showing: ...",
        "x.was_told = 1",
        "MOST_SHOWN = 3",
        "_LEAST_S = 1",
        "for each in (): ...",
        "x.found = 1",
        "def f(found): ...",
        "self._known = 1",
        "least = 1",
    ],
)
def test_the_rule_finds(source: str):
    assert len(old_names(source)) == 1


@pytest.mark.parametrize("source", ["x = 'told'", "def outstanding(): ...", "is_found = 1"])
def test_the_rule_leaves(source: str):
    assert old_names(source) == []
