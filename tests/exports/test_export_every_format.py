"""What every format of an export does; nobody else decides by a format's name."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from exports import export_of

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.export_formats import BUILTIN, FORMATS
from sweeper.core.loaders import WORKERS
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.exports import read, render_export

ROOT = Path(__file__).parents[2] / "sweeper"

PASSWORD, SECRET = "pa55-of-a-url", "pa55-of-the-shell"
WEIGHTS = f"https://reader:{PASSWORD}@example.org/weights.pt"
HOSTILE = "$(touch x) `id` ; rm -rf '\"\\ #%\n!& é"
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "half": {"batch_size": 512, "precision.amp": "bf16", "optimizer.lr": 3e-5, "optimizer.lr_rule": "sqrt"},
    "hostile": {
        "loader.kind": WORKERS,
        "loader.num_workers": 8,
        "model.name": HOSTILE,
        "model.depth": None,
    },
}
SCRIPT: Mapping[str, Any] = {
    "command": ["python", "train.py", "--batch-size", "4321"],
    "changes": {},
    "env": {"MODE": HOSTILE},
    "files": {},
    "params": {"bs": 4321},
}
REFUSE_SCRIPTS = ("python",)


@pytest.fixture(params=BUILTIN)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=CONFIGS)
def value(request: pytest.FixtureRequest) -> dict[str, Any]:
    return export_of({"model.weights": WEIGHTS, **CONFIGS[request.param]})


def test_a_text_is_a_function_of_the_export_without_a_secret(form, value, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    before = copy.deepcopy(value)
    text = render_export(value, form)
    assert text.endswith("\n")
    assert render_export(value, form) == text
    assert value == before
    assert PASSWORD not in text
    assert SECRET not in text


def test_the_settings_are_in_it(form):
    if not FORMATS.get(form).runs_export:
        for size in (4321, 8642):
            assert str(size) in render_export(export_of({"batch_size": size}), form)


def test_it_reads_back_where_it_says_so(form, value, tmp_path):
    path = tmp_path / f"best{FORMATS.get(form).suffix}"
    path.write_text(render_export(value, form), encoding="utf-8")
    if FORMATS.get(form).reads_back:
        found = read(path)
        assert found == json.loads(json.dumps(value))
        assert decode(TrialConfig, found["config"]) == decode(TrialConfig, value["config"])
    else:
        with pytest.raises(UserError):
            read(path)


def test_a_script_has_a_text_or_a_reason(form):
    of_pipeline = ("pipeline", "data", "config")
    value = {**{k: v for k, v in export_of({}).items() if k not in of_pipeline}, **SCRIPT}
    if form in REFUSE_SCRIPTS:
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            render_export(value, form)
    else:
        assert render_export(value, form).endswith("\n")


def test_the_tables_strings_resolve():
    assert all(callable(resolve(row.render)) for row in BUILTIN.values())


def test_no_command_decides_by_a_formats_name():
    for name in ("production/handover.py", "cli/export.py", "exports/formats.py"):
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        compared = [
            each.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            for each in ast.walk(node)
            if isinstance(each, ast.Constant)
        ]
        assert BUILTIN.keys() & set(map(str, compared)) == set()


MODULE = """\
from sweeper.core.export_formats import ExportFormat
from sweeper.core.loaders import LoaderTraits

BROKEN = ExportFormat(render="own_format:broken")
LOADER = LoaderTraits(implementation="own_format:none", why="it is mine", python="own_format:lines")
PLAIN = LoaderTraits(implementation="own_format:none")


def broken(value, options):
    return value["no_such"]


def lines(settings, on_gpu):
    return ["import own"], f"batches = own.batches(dataset, {settings['batch_size']}, device)"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_format.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_third_partys_format_that_fails_is_said(own):
    with pytest.raises(UserError) as caught:
        render_export({"config": {}}, "own_format:BROKEN")
    assert str(caught.value) == (
        "`--format own_format:BROKEN` failed: KeyError: 'no_such'. Fix it, or use another format."
    )


def test_a_third_partys_loader_is_exported_and_gives_lines_of_a_plain_script_or_none(own, tmp_path):
    value = export_of({"loader.kind": "own_format:LOADER", "batch_size": 100})
    assert "--loader own_format:LOADER" in render_export(value, "args")
    text = render_export(value, "python")
    assert "\nimport own\n" in text
    assert "\nbatches = own.batches(dataset, 100, device)\n" in text
    assert "# loader.kind own_format:LOADER: it is mine." in text
    with pytest.raises(UserError, match=r"`loader\.kind: own_format:PLAIN` provides no lines for such a"):
        render_export(export_of({"loader.kind": "own_format:PLAIN"}), "python")
    path = tmp_path / "best.json"
    path.write_text(render_export(export_of({"loader.kind": "own_format:GONE"}), "json"))
    with pytest.raises(UserError, match=r"best\.json: `config`: `loader\.kind`: .* 'own_format:GONE' cannot"):
        read(path)
