"""A pipeline in a distribution of its own: found by its entry point, run, sent along and blamed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import install
from spirals import PIPELINE, install_spirals

from sweeper.core import modules
from sweeper.errors import UserError
from sweeper.scaffold.pipeline_options import pipeline_options
from sweeper.spec import SweepSpec
from sweeper.sweep.bootstrap import template_of
from sweeper.sweep.store.fingerprint import code_of, digest_of_code

REPOSITORY = Path(__file__).parents[1]
SPACE = """\
name: spirals
pipeline: spirals
baseline: {batch_size: 64}
space: {batch_size: {type: int, low: 100, high: 200}}
measure: {window_seconds: 0.1, repeats: 2, quality_samples: 1000, warmup_cap_seconds: 0.2}
search: {trials: 1}
confirm: {top: 1, rounds: 3}
execution: {gpus: 0}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns where the distribution is installed; the current folder is another one, and empty."""
    site = install_spirals(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return site


def test_it_has_less_than_30_lines():
    assert len([line for line in PIPELINE.splitlines() if line.strip()]) < 30


@pytest.mark.parametrize("name", ["spirals", "acme_nets.spirals"])
def test_it_is_found_by_its_entry_point_and_by_its_module_without_an_import(site: Path, name: str):
    found = modules.find(name, [os.getcwd()])
    assert found == modules.Module("acme_nets.spirals", site / "acme_nets/spirals.py")
    assert pipeline_options(name).space == {"model.hidden_size": (16, 64)}
    spec = SweepSpec.from_dict({"name": "x", "pipeline": name, "space": {}, "baseline": {}})
    assert template_of(spec, site).pipeline == found.name
    assert "acme_nets" not in sys.modules


def test_a_module_of_the_users_comes_first(site: Path):
    Path("spirals.py").write_text("")
    assert modules.find("spirals", [os.getcwd()]) == modules.Module("spirals", Path.cwd() / "spirals.py")


def test_the_modules_beside_it_count_and_are_sent_along(site: Path):
    before = digest_of_code("spirals")
    assert digest_of_code("acme_nets.spirals") == before
    assert set(code_of("spirals")) == {f"acme_nets/{each}.py" for each in ("__init__", "arms", "spirals")}
    arms = site / "acme_nets/arms.py"
    arms.write_text(arms.read_text().replace("4", "8"))
    assert digest_of_code("spirals") != before


def test_a_users_pipeline_that_imports_it_does_not_count_it(site: Path):
    """As of any installed library."""
    Path("mine.py").write_text("from acme_nets.arms import two_arms\n")
    assert set(code_of("mine")) == {"mine.py"}


def test_what_is_not_there_is_one_line(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"is installed, but got 'spiral': .* Did you mean `spirals`"):
        digest_of_code("spiral")
    with pytest.raises(UserError, match=r"got 'acme_nets\.circles'"):
        digest_of_code("acme_nets.circles")
    other = install(tmp_path / "more", "more-nets", {"sweeper.pipelines": {"spirals": "more:x"}}, {})
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(UserError, match=r"one provider, but got .*more-nets 1\.0.*Uninstall all but one"):
        digest_of_code("spirals")


def sweeper(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(site)])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_it_is_swept_from_an_empty_folder(site: Path):
    Path("space.yaml").write_text(SPACE)
    done = sweeper(site, "run", "space.yaml")
    assert done.returncode == 0, done.stderr
    assert "Searched trials: 1 measured." in done.stdout or "1 beyond a limit" in done.stdout


@pytest.mark.slow
def test_an_error_in_it_is_the_users_with_its_line(site: Path):
    Path("space.yaml").write_text(SPACE + "data: {arms: 3}\n")
    done = sweeper(site, "run", "space.yaml")
    (line,) = (number for number, text in enumerate(PIPELINE.splitlines(), 1) if "raise UserError" in text)
    assert done.returncode == 2
    assert "`data.arms` must be 2, but got 3" in done.stderr
    assert f"acme_nets/spirals.py:{line})" in done.stderr
