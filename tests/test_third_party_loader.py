"""A loader in a distribution of its own: found, checked, run in a trial, labelled, and shown once gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import parts
import pytest
import torch
from distributions import install
from parts.noop import synthetic
from replays import PIPELINE, Bench, spec_of, throughput
from turbo import LOADER, TRAITS, install_turbo

from sweeper.analysis.labels import label
from sweeper.cli import main
from sweeper.core.config import LoaderConfig, TrialConfig
from sweeper.core.job import PREPARE_RUNNER, Job, MeasurePlan, write_job
from sweeper.core.loaders import KINDS, find, traits
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Report
from sweeper.errors import UserError
from sweeper.execution.local import LocalLauncher
from sweeper.spec import SweepSpec
from sweeper.testing.loader_conformance import LoaderConformance, numbered
from sweeper.trainer.data import make_loader

REPOSITORY = Path(__file__).parents[1]

TURBO = TrialConfig().replace({"loader.kind": "turbo", "batch_size": 100, "loader.num_workers": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_turbo(tmp_path_factory.mktemp("site"))


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))


def test_it_has_less_than_30_lines():
    assert len([line for line in (TRAITS + LOADER).splitlines() if line.strip()]) < 30


@pytest.mark.usefixtures("installed")
class TestTurboLoader(LoaderConformance):
    @pytest.fixture
    def config(self) -> LoaderConfig:
        return LoaderConfig(kind="turbo")


def test_its_kind_is_a_choice_where_it_is_installed(installed):
    assert KINDS.names() == ("rows", "workers", "resident", "stream", "nitro", "turbo")
    tree = {"name": "toy", "pipeline": "toy", "space": {}, "baseline": {"loader.kind": "turbo"}}
    assert SweepSpec.from_dict(tree).baseline_config().loader.kind == "turbo"
    with pytest.raises(UserError) as caught:
        SweepSpec.from_dict({**tree, "baseline": {"loader.kind": "tubro"}})
    assert str(caught.value) == (
        "`loader.kind` must be one of rows, workers, resident, stream, nitro, turbo, but got 'tubro'. "
        "Did you mean `turbo`?"
    )


def test_its_traits_decide_what_has_an_effect_and_how_it_is_called(installed):
    assert TURBO.canonical().loader == LoaderConfig(kind="turbo")
    assert label(TURBO, ("loader.kind", "loader.num_workers", "batch_size")) == "bs100 tb"


def test_an_entry_point_is_named_as_its_kind(tmp_path, monkeypatch):
    points = {"sweeper.loaders": {"warp": "warp_loader:TRAITS"}}
    install(tmp_path, "warp-loader", points, {"warp_loader.py": TRAITS})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"`warp` of warp-loader 1.0 provides `turbo`. Rename one of them."):
        find("warp")


@pytest.fixture(scope="module")
def trial(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Runs a trial in a process of its own, which has the distribution on its path."""
    home = tmp_path_factory.mktemp("home")
    path = os.pathsep.join([str(REPOSITORY), str(folder)])
    prepared = str(home / "prepared")
    launcher = LocalLauncher(home, environ={**os.environ, "PYTHONPATH": path})
    common = {"pipeline": "parts.pipelines", "import_paths": (parts.FOLDER,)}

    def run(name: str, **about: object) -> Outcome | Report:
        job = Job(uid=name, prepared=prepared, **common, **about)
        write_job(home / name, job)
        return launcher.submit(home / name).result(timeout=60)

    assert isinstance(run("prepare", runner=PREPARE_RUNNER), Report)
    yield run
    launcher.close()


PLAN = MeasurePlan(window_seconds=0.1, repeats=2, warmup_cap_seconds=0.1, diagnose=False, quality_samples=200)


def test_a_trial_runs_with_it(trial):
    found = trial("trial", config=TURBO, plan=PLAN)
    assert isinstance(found, Measurement), found
    assert found.throughput > 0
    assert found.quality is not None


def test_a_trial_without_the_distribution_names_what_is_there(trial):
    found = trial("gone", config=TURBO.replace({"loader.kind": "trubo"}), plan=PLAN)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.USER_ERROR
    assert found.message.startswith(
        "`loader.kind` must be one of rows, workers, resident, stream, nitro, turbo, but got 'trubo'"
    )


def test_an_implementation_that_is_not_there_is_said(tmp_path, monkeypatch):
    points = {"sweeper.loaders": {"half": "half_loader:TRAITS"}}
    text = TRAITS.replace('"turbo"', '"half"').replace("turbo_loader.loader", "half_loader.nowhere")
    install(tmp_path, "half-loader", points, {"half_loader.py": text})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"'half_loader.nowhere:TurboLoader' cannot be imported"):
        make_loader(numbered(), LoaderConfig(kind="half"), 20, 0, torch.device("cpu"))


# -- a folder that outlives the distribution ----------------------------------------------------------------


def test_a_sweep_is_listed_and_shown_after_the_distribution_is_gone(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    choices = {"type": "categorical", "choices": ["turbo", "resident"]}
    spec = spec_of(
        space={"batch_size": {"type": "int", "low": 64, "high": 1024}, "loader.kind": choices},
        fix={"loader.num_workers": 2},
    )

    def surface(config: TrialConfig) -> Measurement:
        turbo = config.loader.kind == "turbo"
        return synthetic(9.0 * config.batch_size) if turbo else synthetic(throughput(config))

    Bench(tmp_path / "home").run(spec, surface)
    sys.path.remove(str(folder))
    assert traits("turbo").implementation == ""

    def shown(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments, "--home", str(tmp_path / "home")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code in (None, 0), said.err
        return said.out

    assert shown("list").split()[:2] == ["toy", "finished"]
    assert " turbo" in shown("show", "toy")
