"""What is said to those who import a module that was removed."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sweeper
from sweeper.core.job import Job
from sweeper.worker.trial import run


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sweeper.callbacks", "remove the callback"),
        ("sweeper.core.errors", "import from `sweeper.errors`"),
        ("sweeper.integrations", "remove the callback"),
        ("sweeper.integrations.lightning", "remove the callback"),
        ("sweeper.testing.tournament", "what it had is in sweeper's repository"),
    ],
)
def test_the_import_of_a_module_that_was_removed_says_what_to_write(name: str, remedy: str):
    with pytest.raises(ImportError, match=remedy) as raised:
        importlib.import_module(name)
    rule = f"An import must name a module that sweeper has, but {name} was removed; "
    # Importing a package's module imports the package first.
    assert str(raised.value).startswith(rule.replace(".lightning", "").replace(".tournament", ""))


@pytest.mark.parametrize("name", ["sweeper.call", "sweeper.callbacks_of_mine", "callbacks", "integrations"])
def test_nothing_is_said_about_other_modules(name: str):
    assert importlib.util.find_spec(name) is None


def test_a_folder_that_is_left_with_compiled_files_is_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "callbacks" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(sweeper, "__path__", [*sweeper.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match="remove the callback"):
        importlib.import_module("sweeper.callbacks")


def test_a_trial_fails_with_what_to_write_and_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "of_0_1.py").write_text("from sweeper.core.errors import UserError")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = Job(uid="u", runner="of_0_1:run", import_paths=(str(tmp_path),))
    failure: Any = run(job, SimpleNamespace(reached="start"))  # type: ignore[arg-type]
    assert failure.message.endswith("was removed; import from `sweeper.errors` (of_0_1.py:1)")
