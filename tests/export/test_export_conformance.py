"""The built-in formats and a third party's pass one suite; nobody else decides by a format's name."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from house_formats import MODULE, install_house_formats
from replays import PIPELINE, Bench

from sweeper.cli import main
from sweeper.core.export_formats import BUILTIN, FORMATS
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.export import read, rendered
from sweeper.testing.export_conformance import ExportFormatConformance

ROOT = Path(__file__).parents[2] / "sweeper"


class TestBuiltin(ExportFormatConformance):
    @pytest.fixture(params=BUILTIN)
    def form(self, request) -> str:
        return request.param


@pytest.fixture
def installed(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(install_house_formats(tmp_path / "site")))
    monkeypatch.delitem(sys.modules, "house_formats", raising=False)


@pytest.mark.usefixtures("installed")
class TestHouseFormats(ExportFormatConformance):
    @pytest.fixture(params=["compact", "dotenv"])
    def form(self, request) -> str:
        return request.param


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home with the sweep `toy`, finished."""
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    Bench(tmp_path / "home").run()
    return tmp_path / "home"


@pytest.fixture
def cli(home, monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(
            sys, "argv", ["sweeper", "export", "toy", *map(str, arguments), "--home", str(home)]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_it_has_less_than_30_lines():
    assert len([line for line in MODULE.splitlines() if line.strip()]) < 30


def test_a_third_partys_format_is_printed_or_written_by_the_command(installed, cli, home):
    code, out, err = cli("--format", "dotenv")
    assert (code, out, err) == (0, "BATCH_SIZE=1024\nAMP=bf16\n", "")
    code, out, err = cli("--format", "compact")
    path = home / "sweeps" / "toy" / "best.min.json"
    assert (code, err) == (0, "")
    assert out.replace("\n", "") == f"Written to {path}."
    assert path.read_text().count("\n") == 1
    assert read(path)["config"] == json.loads(cli("--format", "json", "--out", "-")[1])["config"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--format", "compat"],
            "must be one of yaml, json, args, sbatch, python, compact, dotenv, but got 'compat'. "
            "Did you mean `compact`?",
        ),
        (
            ["--format", "dotenv", "--map", "x.yaml"],
            "`--map` needs `--format args`, but got",
        ),
    ],
)
def test_a_mistake_is_one_line(installed, cli, arguments, says):
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_format_that_fails_names_its_distribution(tmp_path, monkeypatch):
    broken = MODULE.replace('["batch_size"]', '["no_such"]')
    monkeypatch.syspath_prepend(str(install_house_formats(tmp_path / "site", broken)))
    monkeypatch.delitem(sys.modules, "house_formats", raising=False)
    with pytest.raises(UserError) as caught:
        rendered({"config": {}}, "dotenv")
    assert str(caught.value) == (
        "`--format dotenv` comes from house-formats 1.0, but it failed: KeyError: 'no_such'. "
        "Report it there, or use another format."
    )


def test_the_tables_strings_resolve():
    assert all(callable(resolve(row.render)) for row in BUILTIN.values())
    assert FORMATS.names()[: len(BUILTIN)] == tuple(BUILTIN)


def test_no_command_decides_by_a_formats_name():
    for name in ("cli/export.py", "export/formats.py"):
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        compared = [
            each.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            for each in ast.walk(node)
            if isinstance(each, ast.Constant)
        ]
        assert BUILTIN.keys() & set(map(str, compared)) == set()
