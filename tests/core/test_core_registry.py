"""Registries: built-in names cost nothing, others come from entry points, errors name their distribution."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from distributions import install

from sweeper.core.registry import Registry, resolve
from sweeper.errors import UserError

BUILTIN = {"near": "fractions:Fraction.from_float", "plain": "math:pi", "ready": 2.5}


def colours() -> Registry[float]:
    return Registry("colours", "paint.colour", float, BUILTIN)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a distribution with entry points in `sweeper.colours`, and a module of the values named."""

    def make(name: str, points: Mapping[str, str], text: str = "") -> None:
        module = name.replace("-", "_")
        folder = install(tmp_path / name, name, {"sweeper.colours": points}, {f"{module}.py": text})
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


def said(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    return str(caught.value)


def test_a_built_in_name_is_an_import_string_or_the_thing_itself():
    assert colours().get("plain") == 3.141592653589793
    assert colours().get("ready") == 2.5
    assert resolve(BUILTIN["near"])(0.5) == 0.5
    assert colours().provider("plain") == ""


def test_an_entry_point_adds_a_name(offer):
    assert colours().names() == ("near", "plain", "ready")
    points = {"red": "warm_colours:RED", "amber": "warm_colours:AMBER"}
    offer("warm-colours", points, "RED, AMBER = 0.1, 0.2\n")
    assert colours().names() == ("near", "plain", "ready", "amber", "red")
    assert (colours().get("red"), colours().get("amber")) == (0.1, 0.2)
    assert colours().provider("red") == "warm-colours 1.0"


def test_an_unknown_name_is_answered_with_all_names_and_the_nearest(offer):
    offer("warm-colours", {"amber": "warm_colours:AMBER"})
    known = "`paint.colour` must be one of near, plain, ready, amber, but got"
    assert said(colours().get, "ambre") == f"{known} 'ambre'. Did you mean `amber`?"
    assert said(colours().check, 3) == f"{known} 3."


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("BLUE = 1.0\n", "AttributeError: module 'broken_colours' has no attribute 'RED'"),
        ("raise RuntimeError('no licence')\n", "RuntimeError: no licence"),
    ],
)
def test_an_entry_point_that_cannot_be_loaded_names_its_distribution(offer, text, why):
    offer("broken-colours", {"red": "broken_colours:RED"}, text)
    # It is there: only who asks for it meets the error.
    colours().check("red")
    assert said(colours().get, "red") == (
        "`paint.colour: red` comes from broken-colours 1.0, but its entry point 'broken_colours:RED' "
        f"cannot be loaded: {why}. Repair or uninstall that distribution."
    )


def test_an_entry_point_that_gives_something_else_is_refused(offer):
    offer("odd-colours", {"red": "odd_colours:RED"}, "RED = 'red'\n")
    assert said(colours().get, "red") == (
        "an entry point in `sweeper.colours` must provide a float, but 'odd_colours:RED' of odd-colours "
        "1.0 provides 'red'."
    )


def test_two_providers_of_a_name_are_refused(offer):
    offer("one-colours", {"red": "one_colours:RED"}, "RED = 1.0\n")
    offer("two-colours", {"red": "two_colours:RED"}, "RED = 2.0\n")
    message = said(colours().get, "red")
    assert "one-colours 1.0" in message
    assert "two-colours 1.0" in message


def test_a_built_in_name_cannot_be_replaced(offer):
    offer("rude-colours", {"plain": "rude_colours:PLAIN"}, "PLAIN = 9.9\n")
    assert colours().get("plain") == 3.141592653589793
    says = (
        "an entry point in `sweeper.colours` must not reuse a built-in name, but `plain` of rude-colours 1.0 "
        "does. Rename it, or uninstall that distribution."
    )
    assert said(colours().names) == said(colours().get, "red") == says


def test_an_import_string_that_leads_nowhere_is_said():
    assert said(resolve, "nowhere_at_all:x").startswith(
        "an import string must name `module:attribute`, but 'nowhere_at_all:x' cannot be imported: "
    )


def test_a_built_in_name_costs_no_scan_of_what_is_installed():
    code = (
        "import sys\n"
        "from sweeper.core.config import TrialConfig, check_value\n"
        "from sweeper.core.loaders import find\n"
        "check_value('loader.kind', 'stream')\n"
        "TrialConfig().replace({'loader.kind': 'stream'}).key()\n"
        "find('stream')\n"
        "print('importlib.metadata' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
