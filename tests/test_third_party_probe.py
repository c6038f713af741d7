"""A probe in a distribution of its own: tested by the suite, and sampled beside a real trial."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import parts
import pytest
from files_probe import PROBE, install_files

from sweeper.core.job import PREPARE_RUNNER, Job, MeasurePlan, write_job
from sweeper.core.measurement import Measurement, Outcome, Report
from sweeper.execution.local import LocalLauncher
from sweeper.testing.probe_conformance import ProbeConformance

REPOSITORY = Path(__file__).parents[1]
PLAN = MeasurePlan(window_seconds=0.8, repeats=2, warmup_cap_seconds=0.1, diagnose=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_files(tmp_path_factory.mktemp("site"))


def test_it_has_less_than_30_lines():
    assert len([line for line in PROBE.splitlines() if line.strip()]) < 30


class TestFilesProbe(ProbeConformance):
    @pytest.fixture(autouse=True)
    def installed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(folder))

    @pytest.fixture
    def name(self, installed: None) -> str:
        return "files"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome | Report]]:
    """Runs a job in a process of its own, which has the distributions on its path.

    Their metadata is gone once the server is there: a keeper that scanned for them would find nothing.
    """
    home, site = tmp_path_factory.mktemp("home"), install_files(tmp_path_factory.mktemp("served"))
    path = os.pathsep.join([str(REPOSITORY), str(site)])
    launcher = LocalLauncher(home, environ={**os.environ, "PYTHONPATH": path})
    common = {"pipeline": "parts.pipelines", "import_paths": (parts.FOLDER,)}

    def run(name: str, **about: object) -> Outcome | Report:
        job = Job(uid=name, prepared=str(home / "prepared"), **common, **about)
        write_job(home / name, job)
        return launcher.submit(home / name).result(timeout=60)

    assert isinstance(run("prepare", runner=PREPARE_RUNNER), Report)
    for metadata in site.glob("*.dist-info"):
        shutil.rmtree(metadata)
    yield run
    launcher.close()


def test_its_series_is_in_a_trials_telemetry_and_a_broken_one_costs_nothing(run):
    found = run("trial", plan=PLAN)
    assert isinstance(found, Measurement), found
    assert found.telemetry["files_num_open"].mean >= 3
    assert "files_read_ms" in found.telemetry
    assert "cpu_util_pct" in found.telemetry
    assert found.telemetry_missing["broken"].endswith(
        "cannot be loaded: RuntimeError: no licence. Repair or uninstall that distribution."
    )
    assert "files" not in found.telemetry_missing
