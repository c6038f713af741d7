"""What users of 0.1.0 import is still there, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys

import pytest

from sweeper import errors
from sweeper.integrations import lightning, transformers
from sweeper.sweep.store.old_imports import HOMES


def test_the_module_of_0_1_0_gives_the_same_classes_and_says_where_they_are_now(monkeypatch):
    monkeypatch.delitem(sys.modules, "sweeper.core.errors", raising=False)
    with pytest.warns(DeprecationWarning, match="sweeper.errors") as caught:
        old = importlib.import_module("sweeper.core.errors")
    assert caught[0].filename != old.__file__
    public = {
        name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__
    }
    assert {name: getattr(old, name) for name in old.__all__} == {
        name: getattr(errors, name) for name in public
    }
    assert HOMES["sweeper.errors"] == dict.fromkeys(public, "sweeper.core.errors")


def test_so_does_that_of_the_callbacks(monkeypatch):
    monkeypatch.delitem(sys.modules, "sweeper.callbacks", raising=False)
    with pytest.warns(DeprecationWarning, match="sweeper.integrations"):
        old = importlib.import_module("sweeper.callbacks")
    assert old.for_lightning is lightning.for_lightning
    assert old.for_transformers is transformers.for_transformers
