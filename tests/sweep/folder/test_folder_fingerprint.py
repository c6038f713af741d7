"""A pipeline's digest, which holds wherever the pipeline's files lie."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.schema.sections import Measure, ScriptOptions
from sweeper.sweep.folder.code import code_of
from sweeper.sweep.folder.fingerprint import (
    differences,
    digest_of_code,
    digest_of_files,
    digest_of_files_named,
    digest_of_scripts,
    settings_of,
)

REPOSITORY = Path(__file__).parents[3]

RECORDED = {
    "pipelines.behaviour": "ccf7ed6fa614c86f",
    "pipelines.kuairand": "1f8e01aa4b6bffc2",
    "pipelines.sequence": "fb10d67f4decb416",
    "pipelines.sign_language": "b0a6de73e0db92c0",
    "pipelines.stocks": "af0f2170e5b7b638",
    "pipelines.tabular": "7e3ab1a903246e3c",
}
"""As sweeps store them, with Python 3.11."""
of_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="syntax trees differ between versions of Python"
)


@of_3_11
@pytest.mark.parametrize("pipeline", RECORDED)
def test_a_shipped_pipeline_has_the_digest_that_sweeps_have_stored(pipeline, monkeypatch):
    """Change a recorded digest only with a pipeline's code: stored sweeps of it do not go on then."""
    monkeypatch.chdir(REPOSITORY)
    assert digest_of_code(pipeline) == RECORDED[pipeline]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@of_3_11
@pytest.mark.parametrize("pipeline", RECORDED)
def test_and_the_same_where_it_ships_and_where_it_is_copied(pipeline: str, here: Path):
    assert digest_of_code(pipeline) == RECORDED[pipeline]
    assert digest_of_code(f"sweeper.{pipeline}") == RECORDED[pipeline]
    shutil.copytree(REPOSITORY / "pipelines", "pipelines")
    assert digest_of_code(pipeline) == RECORDED[pipeline]


def test_another_file_of_a_shipped_pipeline_counts_where_the_user_has_it(here: Path):
    before = digest_of_code("pipelines.tabular")
    Path("pipelines").mkdir()
    Path("pipelines/_options.py").write_text("# The user's, of which the shipped pipeline knows nothing.\n")
    assert digest_of_code("pipelines.tabular") == before
    shutil.copy(REPOSITORY / "pipelines/tabular.py", "pipelines")
    assert digest_of_code("pipelines.tabular") != before


def test_a_parcel_has_a_shipped_pipeline_with_what_it_imports(here: Path):
    code = code_of("pipelines.tabular")
    assert set(code) == {
        "pipelines/__init__.py",
        "pipelines/_options.py",
        "pipelines/_reading.py",
        "pipelines/_tables.py",
        "pipelines/tabular.py",
    }
    assert code["pipelines/tabular.py"] == (REPOSITORY / "pipelines/tabular.py").read_text()
    # On the other side it is what is found first.
    for path, text in code.items():
        (here / path).parent.mkdir(exist_ok=True)
        (here / path).write_text(text)
    assert code_of("pipelines.tabular") == code


def test_a_parcel_has_the_users_own_and_what_ships_side_by_side(here: Path):
    Path("pipelines").mkdir()
    Path("pipelines/mine.py").write_text("from pipelines.tabular import build, prepare\nimport helper\n")
    Path("helper.py").write_text("x = 1\n")
    assert set(code_of("pipelines.mine")) == {
        "helper.py",
        "pipelines/mine.py",
        "pipelines/__init__.py",
        "pipelines/_options.py",
        "pipelines/_reading.py",
        "pipelines/_tables.py",
        "pipelines/tabular.py",
    }
    # Its own `_options` is not what the shipped `tabular` imports: one folder cannot hold both.
    Path("pipelines/_options.py").write_text("y = 1\n")
    Path("pipelines/mine.py").write_text(
        "from pipelines.tabular import build\nfrom pipelines import _options\n"
    )
    assert set(code_of("pipelines.mine")) == {"pipelines/mine.py", "pipelines/_options.py"}


def test_an_unknown_pipeline_names_the_nearest_that_ships(here: Path):
    with pytest.raises(UserError, match=r"no pipelines/stock.py in .*Did you mean `pipelines.stocks`\?"):
        digest_of_code("pipelines.stock")


def test_only_what_is_not_a_default_is_compared():
    """A setting that comes later leaves earlier fingerprints as they are."""
    assert settings_of(Measure()) == settings_of(ScriptOptions()) == {}
    changed = settings_of(Measure(trace=False, probes=("open_files:FilesProbe",)))
    assert changed == {"trace": False, "probes": ["open_files:FilesProbe"]}
    assert differences({"measure": {}, "seed": 0}, {"measure": changed, "seed": 0}) == [
        "measure.trace: true -> false",
        'measure.probes: [] -> ["open_files:FilesProbe"]',
    ]
    assert differences({"seed": 0}, {"seed": 0, "code": "a"}) == ['code: absent -> "a"']


@pytest.mark.parametrize("file", ["pkg/train.py", "pkg/train/__main__.py"])
def test_a_module_that_a_command_names_counts_like_its_file(here: Path, file: str):
    path = Path(file)
    path.parent.mkdir(parents=True)
    (here / "pkg/__init__.py").touch()
    path.write_text("import torch\n")
    command = ["python", "-m", "pkg.train", "--lr", "1"]
    before = digest_of_files_named(command), digest_of_scripts(command)
    path.write_text("import torch\n\nprint(torch)\n")
    after = digest_of_files_named(command), digest_of_scripts(command)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert digest_of_files_named(["python", "-m", "torch.distributed.run"]) == "{}"


def test_an_empty_data_path_is_none(here: Path):
    assert digest_of_files({"path": ""}) == digest_of_files({"path": None}) == digest_of_files({}) == ""


def test_data_behind_a_link_to_a_folder_counts(here: Path):
    """A copy of the data that was prepared from other files would be used again without a word."""
    for name in ("elsewhere", "data"):
        (here / name).mkdir()
    (here / "elsewhere/rows.csv").write_text("1,2\n")
    (here / "data/train").symlink_to(here / "elsewhere")
    (here / "data/above").symlink_to(here)
    before = digest_of_files({"path": "data"})
    assert digest_of_files({"path": "data"}) == before
    (here / "elsewhere/rows.csv").write_text("1,2\n3,4\n")
    assert digest_of_files({"path": "data"}) != before


def test_a_file_in_utf_16_is_not_python(here: Path):
    Path("mine.py").write_text("import torch\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"mine\.py:.*; the file must be Python"):
        digest_of_code("mine")
