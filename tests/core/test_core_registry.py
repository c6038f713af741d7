"""Registries: built-in names cost nothing, all others are import strings, whose errors are said once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core import modules, registry
from sweeper.core.registry import Registry, resolve
from sweeper.errors import UserError

BUILTIN = {"near": 0.5, "far": 2.5}


@pytest.fixture
def colours() -> Registry[float]:
    return Registry("`paint.colour`", float, BUILTIN)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def said(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    return str(caught.value)


def test_a_name_is_built_in_or_the_import_string_of_an_object(colours, here):
    (here / "warm_colours.py").write_text("class Warm:\n    RED = 0.1\n")
    assert colours.get("far") == colours.look_up("far") == 2.5
    assert colours.get("warm_colours:Warm.RED") == colours.look_up("warm_colours:Warm.RED") == 0.1
    assert resolve("fractions:Fraction.from_float")(0.5) == 0.5


def test_the_folder_of_a_job_takes_the_place_of_the_current_one(here, tmp_path_factory):
    far = tmp_path_factory.mktemp("far")
    for folder, name in ((here, "near_colours"), (far, "far_colours")):
        (folder / f"{name}.py").write_text("RED = 0.1\n")
    modules.set_import_paths([str(far)])
    try:
        assert resolve("far_colours:RED") == 0.1
        assert "'near_colours:RED' cannot be imported" in said(resolve, "near_colours:RED")
    finally:
        modules.set_import_paths([])
    assert resolve("near_colours:RED") == 0.1


def test_the_users_own_module_comes_before_an_installed_one(here):
    (here / "wave.py").write_text("RED = 0.1\n")
    text = "from sweeper.core.registry import resolve; print(resolve('wave:RED'))"
    command = [sys.executable, "-P", "-c", text]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0.1\n"


@pytest.mark.parametrize("name", ["ferr", "", 3, None, ["x"]])
def test_an_unknown_name_is_answered_with_all_names_and_what_to_write(colours, name):
    known, near = ("a built-in name", " Did you mean `far`?") if name == "ferr" else ("one of near, far,", "")
    assert said(colours.get, name) == (
        f"`paint.colour` must be {known} or an import string `module:name`, but got {name!r}.{near}"
    )
    only = Registry("`paint.colours`", float, {})
    assert said(only.get, "red") == ("`paint.colours` must be an import string `module:name`, but got 'red'.")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("nowhere_at_all:RED", "", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("blue:RED", "BLUE = 1.0\n", "AttributeError: module 'blue' has no attribute 'RED'"),
        ("strict:RED", "raise RuntimeError('no licence\\nat all')\n", "RuntimeError: no licence"),
        ("script:RED", "import sys; sys.exit(3)\n", "SystemExit: 3"),
        (":RED", "", "ValueError: Empty module name"),
        ("..up:RED", "", "TypeError: "),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(colours, here, name, text, why):
    if text:
        (here / f"{name.partition(':')[0]}.py").write_text(text)
    message = said(colours.get, name)
    start = f"`paint.colour`: an import string must name `module:name`, but {name!r} cannot be imported: "
    assert message.startswith(start + why)
    assert message.endswith(". Correct it, or install its package.")
    assert "\n" not in message
    assert colours.look_up(name) is None


def test_a_failed_import_is_not_repeated_until_it_succeeds(colours, here, monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "resolve", lambda path: [asked.append(path), resolve(path)][1])
    assert [colours.look_up("late_colours:RED") for _ in range(3)] == [None] * 3
    (here / "late_colours.py").write_text("RED = 0.1\n")
    assert colours.look_up("late_colours:RED") is None
    assert len(asked) == 1
    assert colours.get("late_colours:RED") == colours.look_up("late_colours:RED") == 0.1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("odd_colours:RED", "an instance of `float`, but 'odd_colours:RED' is of type `str`."),
        ("builtins:float", "an instance of `float`, but 'builtins:float' is the class `float`."),
    ],
)
def test_an_object_of_another_type_is_refused(colours, here, name, says):
    (here / "odd_colours.py").write_text("RED = 'red'\n")
    assert said(colours.get, name) == f"`paint.colour` must name {says}"
    assert colours.look_up(name) is None


def test_a_registry_of_classes(here):
    errors: Registry[type[OSError]] = Registry("`errors`", OSError, {}, classes=True)
    assert errors.get("builtins:FileNotFoundError") is FileNotFoundError
    for name, got in (("builtins:ValueError", "the class `ValueError`"), ("math:pi", "of type `float`")):
        assert said(errors.get, name) == f"`errors` must name a subclass of `OSError`, but {name!r} is {got}."


def test_a_built_in_name_imports_nothing():
    code = (
        "import sys\n"
        "from sweeper.core.config import TrialConfig, check_value\n"
        "from sweeper.core.loaders import KINDS\n"
        "before = set(sys.modules)\n"
        "check_value('loader.kind', 'stream')\n"
        "TrialConfig().replace({'loader.kind': 'stream'}).key()\n"
        "KINDS.get('stream')\n"
        "print(set(sys.modules) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
