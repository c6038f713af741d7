"""Which file a pipeline's name means: the user's own, else the one that comes with sweeper."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sweeper
from sweeper.core.modules import Module, find, is_shipped_pipeline, is_sweepers, shipped_folder

PACKAGE = Path(sweeper.__file__).parent

MINE = """
from pipelines.tabular import build, prepare

from ._options import options
from .deep.down import SAID

def row(i):
    return options("data", {}, {SAID: i})
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "pipelines/deep").mkdir(parents=True)
    (tmp_path / "pipelines/deep/down.py").write_text("SAID = 'i'\n")
    (tmp_path / "pipelines/mine.py").write_text(MINE)
    return tmp_path


def test_each_module_is_the_users_own_first_and_else_the_shipped_one(own: Path):
    folders = (str(own),)
    shipped = shipped_folder("pipelines")
    assert find("pipelines.mine", folders) == Module("pipelines.mine", own / "pipelines/mine.py")
    stocks = shipped / "stocks/__init__.py"
    assert find("pipelines.stocks", folders) == Module("sweeper.pipelines.stocks", stocks)
    (own / "pipelines/stocks").mkdir()
    (own / "pipelines/stocks/__init__.py").write_text("")
    mine = own / "pipelines/stocks/__init__.py"
    assert find("pipelines.stocks", folders) == Module("pipelines.stocks", mine)
    # By its whole name it is always the shipped one.
    assert find("sweeper.pipelines.stocks", folders) == Module("sweeper.pipelines.stocks", stocks)


@pytest.mark.parametrize(
    "name", ["", ".", "stocks", "pipelines.none", "sweeper", "sweeper.core.job", "pipelines." + "a" * 300]
)
def test_what_is_in_neither_is_not_found(own: Path, name: str):
    (own / "__init__.py").write_text("")
    assert find(name, (str(own),)) is None


def test_relative_imports_start_from_the_package(own: Path):
    stocks = find("pipelines.stocks", ())
    bars = find("pipelines.stocks.bars", ())
    assert stocks is not None
    assert bars is not None
    assert stocks.package == bars.package == "sweeper.pipelines.stocks"
    assert bars.logical_name == "pipelines.stocks.bars"


def test_a_shipped_pipeline_is_not_sweepers_own_code():
    tabular = shipped_folder("pipelines") / "tabular.py"
    assert is_shipped_pipeline(str(tabular))
    assert not is_sweepers(str(tabular))
    assert is_sweepers(str(PACKAGE / "core/job.py"))
    assert not is_shipped_pipeline(str(PACKAGE / "core/job.py"))
    assert not is_sweepers(str(PACKAGE.parent / "mine.py"))


IMPORTS = """
import sys
from multiprocessing import get_context

import torch
from sweeper.core.job import Job
from sweeper.trainer.pipeline import Samples, load_module

folder = sys.argv[1]
mine = load_module(Job(uid="a", pipeline="pipelines.mine", import_paths=(folder,)))
shipped = load_module(Job(uid="a", pipeline="pipelines.tabular", import_paths=(folder,)))
import pipelines.tabular, sweeper.pipelines.tabular
assert pipelines.tabular is sweeper.pipelines.tabular is shipped, (pipelines.tabular, shipped)
assert mine.build is shipped.build
assert shipped.__spec__.name == shipped.__name__ == "sweeper.pipelines.tabular"
assert mine.__name__ == "pipelines.mine" and mine.options is sweeper.pipelines._options.options
from loading import ask
samples = Samples(tensors={"i": torch.arange(5)}, length=5, row=mine.row)
context = get_context("spawn")
queue = context.Queue()
child = context.Process(target=ask, args=(queue, samples, (mine.row, shipped.build)))
child.start()
print(queue.get(timeout=60))
child.join()
"""
ASK = """
def ask(queue, samples, functions):
    queue.put([samples.row(3), *(each.__module__ for each in functions)])
"""


@pytest.mark.slow
def test_both_are_imported_side_by_side_and_can_be_pickled(
    own: Path, tmp_path_factory: pytest.TempPathFactory
):
    """Also in processes that are not forked: there a loader's samples are all that is imported."""
    (own / "loading.py").write_text(ASK)
    site = tmp_path_factory.mktemp("site")
    # As a wheel lays it out; this repository has a `pipelines` beside `sweeper`.
    for source, target in ((PACKAGE, "sweeper"), (shipped_folder("pipelines"), "sweeper/pipelines")):
        shutil.copytree(source, site / target, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", IMPORTS, str(own)]
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    # In another folder than the user's: nothing is found by chance.
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[{'i': 3}, 'pipelines.mine', 'sweeper.pipelines.tabular']\n"
