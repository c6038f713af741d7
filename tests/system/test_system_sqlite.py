"""Paths of databases come back from their URIs, whatever characters they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.script.run.mlflow_store import MlflowStore
from sweeper.system.sqlite import database_in, sqlite_uri


@pytest.mark.parametrize(
    "name", ["plain", "50%off", "50%20off", "%", "%%25", "a b", "é#", "what?", "c:d", "a@b"]
)
def test_a_path_comes_back_from_its_uri(tmp_path: Path, name: str):
    path = tmp_path / name / "x.db"
    assert database_in(sqlite_uri(path)) == str(path)
    assert sqlite_uri(path).startswith("sqlite:///") or {*"%?"} & {*name}
    path.parent.mkdir()
    path.touch()
    uri = MlflowStore(path, "run", path.parent).environment["MLFLOW_TRACKING_URI"]
    assert database_in(uri) == str(path.with_name("mlflow.db"))


@pytest.mark.parametrize("uri", ["http://a/b?c", "postgresql://db/x", ""])
def test_other_uris_have_no_database(uri: str):
    assert database_in(uri) == ""
