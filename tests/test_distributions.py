"""The two distributions: the core with the code, and the whole, which brings what the core can use."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sweeper
from sweeper.system.installed import CORE, WHOLE, missing_line

REPOSITORY = Path(__file__).parents[1]
WITHOUT = """
import sys
from importlib import import_module

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for name in {modules}:
    import_module(name)
"""


def project(path: str) -> dict:
    return tomllib.loads((REPOSITORY / path).read_text())["project"]


def names(demands: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", demand)[0] for demand in demands}


def test_the_whole_is_the_core_with_all_that_it_can_use() -> None:
    core, whole = project("pyproject.toml"), project("distributions/sweeper-torch/pyproject.toml")
    assert core["name"] == CORE
    assert whole["version"] == sweeper.__version__
    assert whole["dependencies"] == [f"{CORE}[whole]=={sweeper.__version__}"]
    extras = core["optional-dependencies"].keys() - {"whole", "dev"}
    assert whole["optional-dependencies"] == {name: [f"{CORE}[{name}]"] for name in extras}
    assert names(core["optional-dependencies"]["whole"]) == WHOLE


@pytest.mark.parametrize("command", ["watch", "tune", "judge", "exec", "show", "list", "export", "doctor"])
def test_the_core_needs_nothing_of_the_whole(command: str) -> None:
    # With what runs a script, and the processes that hold its trials.
    others = ("sweeper.script.run.trial", "sweeper.worker.keeper", "sweeper.launch.server")
    text = WITHOUT.format(missing=sorted(WHOLE), modules=[f"sweeper.cli.{command}", *others])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_what_needs_more_says_what_to_install() -> None:
    missing = ModuleNotFoundError("No module named 'optuna.trial'", name="optuna.trial")
    assert missing_line(missing) == (
        "optuna is not installed here. Install the whole of sweeper: `pip install sweeper-torch`"
    )
    for other in (ModuleNotFoundError("x", name="mine"), ModuleNotFoundError("x"), ValueError("optuna")):
        assert missing_line(other) == ""
