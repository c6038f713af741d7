"""Nothing of the user's is changed, whichever way a script goes to write it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ways
from folder import Project, make_project
from runner import MODES, command_of, outcomes
from snapshot import Entry, changes, snapshot

from sweeper.system import landlock

pytestmark = pytest.mark.slow

Judge = Callable[..., tuple[list[str], dict[str, str]]]
ALONE = [
    # All in one process are for `make check`, and alone those that others may hide.
    pytest.param(name, marks=() if name in ways.LATE | ways.UNSURE else pytest.mark.soak)
    for name in ways.WAYS
]


@dataclass(slots=True)
class Judged:
    """A project and its last look, which the next one is compared with."""

    project: Project
    last: dict[str, Entry]

    def changes(self) -> list[str]:
        before, self.last = self.last, looked_at(self.project)
        return changes(before, self.last)


def looked_at(project: Project) -> dict[str, Entry]:
    return snapshot(project.home, project.data, ignoring=project.allowed)


def judged(base: Path, *, small: bool) -> Judged:
    project = make_project(base, small=small)
    return Judged(project, looked_at(project))


@pytest.fixture(scope="module")
def small() -> Iterator[Judged]:
    """One for many ways: none of them changes it."""
    with tempfile.TemporaryDirectory(prefix="sweeper-test-") as base:
        yield judged(Path(base), small=True)


@pytest.fixture(scope="module")
def full() -> Iterator[Judged]:
    """One with large folders."""
    with tempfile.TemporaryDirectory(prefix="sweeper-test-") as base:
        yield judged(Path(base), small=False)


@pytest.fixture
def go(request: pytest.FixtureRequest, tmp_path: Path) -> Judge:
    """Goes some ways in a mode; returns what has changed, and what was said."""

    def judge(mode: str, *names: str) -> tuple[list[str], dict[str, str]]:
        is_large = len(names) > 1 or names[0] in ways.LARGE
        place: Judged = request.getfixturevalue("full" if is_large else "small")
        said = outcomes(MODES[mode](command_of(*names), place.project, tmp_path))
        return place.changes(), said

    return judge


def unexpected(said: dict[str, str]) -> dict[str, str]:
    """What should have been refused and was not, and what should have been redirected and was refused."""
    refusals = {name for name, outcome in said.items() if outcome != "wrote"}
    settled = ways.ABSOLUTE - ways.EITHER
    free = ways.EITHER | ways.UNSURE | ways.ABSOLUTE
    return {
        name: outcome
        for name, outcome in said.items()
        if (name in settled and name not in refusals) or (name not in free and name in refusals)
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALONE)
def test_a_way_changes_nothing(go: Judge, mode: str, name: str):
    changed, said = go(mode, name)
    assert changed == []
    assert said.keys() == {name}
    assert unexpected(said) == {}


@pytest.mark.parametrize("mode", MODES)
def test_all_ways_in_one_process_change_nothing(go: Judge, mode: str):
    changed, said = go(mode, *ways.WAYS)
    assert changed == []
    assert said.keys() == ways.WAYS.keys()
    assert unexpected(said) == {}


@pytest.mark.soak
def test_the_oldest_landlock_promises_the_same(go: Judge, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "version", lambda: 1)
    changed, said = go("sandbox", *ways.WAYS)
    assert changed == []
    assert said.keys() == ways.WAYS.keys()
    assert unexpected(said) == {}


@pytest.mark.slow
def test_copies_protect_the_folder(full: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    names = [name for name in ways.WAYS if name not in ways.ABSOLUTE]
    before = snapshot(full.project.folder)
    said = outcomes(MODES["sandbox"](command_of(*names), full.project, tmp_path))
    assert changes(before, snapshot(full.project.folder)) == []
    assert said.keys() == set(names)
