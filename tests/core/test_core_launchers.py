"""The table of launchers: its strings resolve, and nobody else decides by a launcher's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core.launchers import (
    BUILTIN,
    LAUNCHERS,
    LOCAL,
    LauncherTraits,
    find_installed,
    names_with,
    traits,
)
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.launch.inline import InlineLauncher
from sweeper.launch.launcher import Launcher
from sweeper.schema import SweepSpec

ROOT = Path(__file__).parents[2] / "sweeper"
OWNERS = ("core/launchers.py", "launch/")
TYPES = ("LocalLauncher", "InlineLauncher", "RemoteLauncher")


def decisions(tree: ast.Module) -> Iterator[int]:
    """Yields the lines that hold the name of a launcher, or ask for a launcher's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in BUILTIN.keys() - {LOCAL}:
            yield node.lineno
        if isinstance(node, ast.Compare) and ast.unparse(node.left).rpartition(".")[2] == "launcher":
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            yield from (node.lineno for each in TYPES if each in ast.unparse(node.args[1]))


def test_no_other_module_decides_by_a_launcher():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in ROOT.rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(OWNERS)
        for line in decisions(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        *("names = {'slurm': 1}", "chosen.launcher == 'local'", "spec.execution.launcher in BATCH"),
        "isinstance(launcher, (LocalLauncher, int))",
    ],
)
def test_the_rule_finds_what_it_is_for(text):
    assert list(decisions(ast.parse(text)))


def test_the_rule_passes_over_other_words():
    text = '"""`launcher: slurm`"""\nstore == "local"\nlauncher.shares_machine\nisinstance(x, int)'
    assert list(decisions(ast.parse(text))) == []


@pytest.mark.parametrize("name", BUILTIN)
def test_a_row_of_the_table_can_be_used(name):
    row = BUILTIN[name]
    assert LAUNCHERS.get(name) is traits(name) is row
    assert callable(resolve(row.factory))
    assert bool(row.cluster) == row.is_remote
    assert row.is_batch == bool(row.job_script) == bool(row.jobqueue_class)
    if row.job_script:
        assert callable(resolve(row.job_script))


def test_names_by_their_traits():
    assert names_with("is_batch") == ["slurm", "pbs", "lsf", "sge"]
    assert names_with("example_address") == ["dask", "ray"]
    assert names_with("keeps_processes") == ["local"]


def test_a_launcher_that_is_not_here_has_neutral_traits_and_cannot_be_used():
    assert traits("gone") == LauncherTraits(factory="")
    with pytest.raises(UserError, match=r"must be a built-in name .*`module:name`, but got 'slurn'.*`slurm`"):
        find_installed("slurn")


FLEET = """\
from sweeper.core.launchers import LauncherTraits

TRAITS = LauncherTraits(
    factory="own_fleet:launch",
    is_remote=True,
    is_batch=True,
    cluster="Fleet",
    example_address="fleet://HOST:1",
    needs_address=True,
    requires="fleet_client",
    install="fleet[x]",
)
"""


def test_a_third_partys_row_decides_which_settings_are_taken(tmp_path, monkeypatch):
    (tmp_path / "own_fleet.py").write_text(FLEET)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "own_fleet:TRAITS"

    def read(**execution: object) -> SweepSpec:
        tree = {"name": "toy", "pipeline": "toy", "space": {}, "baseline": {}}
        return SweepSpec.from_dict({**tree, "execution": {"launcher": name, "gpus": 2, **execution}})

    assert read(address="fleet://h:1", job={}).execution.is_remote
    with pytest.raises(UserError, match=r"`address: fleet://HOST:1` with `launcher: own_fleet:TRAITS`"):
        read()
    with pytest.raises(UserError, match=r"needs the number of GPUs in `gpus`"):
        read(address="fleet://h:1", gpus="all")
    with pytest.raises(UserError, match=r"takes `address` only with `launcher: dask` or `ray`, but"):
        read(launcher="local", address="fleet://h:1")
    with pytest.raises(UserError, match=r"needs fleet_client, which is not .* install 'fleet\[x\]'`"):
        find_installed(name)


def test_a_launcher_has_plain_defaults():
    launcher: Launcher = InlineLauncher()
    assert (launcher.shares_machine, launcher.model, launcher.notes) == (False, "", ())
