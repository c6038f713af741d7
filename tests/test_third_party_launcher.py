"""A launcher in a distribution of its own: found, checked, tested from outside, and given a sweep to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import install
from errand import LAUNCHER, install_errand

from sweeper.core.launchers import LAUNCHERS, find_installed, traits
from sweeper.errors import UserError
from sweeper.spec import SweepSpec
from sweeper.testing.conformance import launcher_of

REPOSITORY = Path(__file__).parents[1]

TREE = {"name": "toy", "pipeline": "toy", "space": {}, "baseline": {}}
SUITE = """\
import pytest
from sweeper.testing.conformance import LauncherConformance, launcher_of

class TestErrand(LauncherConformance):
    @pytest.fixture
    def launcher(self, tmp_path):
        launcher = launcher_of("errand", tmp_path)
        yield launcher
        launcher.close()
"""
SCRIPT = """\
import sys, time
for step in range(1, 1000):
    time.sleep(0.005)
    print(f"step {step}", flush=True)
"""
SPACE = """\
name: errands
command: [python, train.py, "{batch_size}"]
space:
  batch_size: {type: int, low: 16, high: 256}
baseline: {batch_size: 16}
execution: {launcher: errand, gpus: 0}
search: {trials: 2, minutes: null, sampler: random}
confirm: {rounds: 1, top: 1}
measure: {window_seconds: 0.2, repeats: 1, warmup_cap_seconds: 0.2, quality_samples: 0, trace: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_errand(tmp_path_factory.mktemp("site"))


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))


def run_in(place: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in `place`, outside the repository, with the distribution on its path."""
    path = os.pathsep.join([str(REPOSITORY), str(folder)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_it_has_less_than_30_lines():
    assert len([line for line in LAUNCHER.splitlines() if line.strip()]) < 30


def test_it_is_a_choice_where_it_is_installed(installed):
    assert LAUNCHERS.names() == ("local", "inline", "slurm", "pbs", "lsf", "sge", "dask", "ray", "errand")
    execution = SweepSpec.from_dict({**TREE, "execution": {"launcher": "errand"}}).execution
    assert (execution.launcher, execution.is_remote) == ("errand", False)
    with pytest.raises(UserError) as caught:
        SweepSpec.from_dict({**TREE, "execution": {"launcher": "erand"}})
    assert str(caught.value) == (
        "`execution.launcher` must be one of local, inline, slurm, pbs, lsf, sge, dask, ray, errand, but got "
        "'erand'. Did you mean `errand`?"
    )


def test_settings_that_it_does_not_take_are_refused(installed):
    with pytest.raises(UserError, match=r"takes `address` only with `launcher: dask` or `ray`, but"):
        SweepSpec.from_dict({**TREE, "execution": {"launcher": "errand", "address": "tcp://h:1"}})


def test_a_row_decides_which_settings_are_taken(tmp_path, monkeypatch):
    row = (
        "from sweeper.core.launchers import LauncherTraits\n"
        "TRAITS = LauncherTraits(factory='fleet:launch', is_remote=True, is_batch=True, cluster='Fleet',\n"
        "    example_address='fleet://HOST:1', needs_address=True,\n"
        "    requires='fleet_client', install='fleet[x]')\n"
    )
    points = {"sweeper.launchers": {"fleet": "fleet_launcher:TRAITS"}}
    install(tmp_path, "fleet-launcher", points, {"fleet_launcher.py": row})
    monkeypatch.syspath_prepend(str(tmp_path))

    def read(**execution: object) -> SweepSpec:
        return SweepSpec.from_dict({**TREE, "execution": {"launcher": "fleet", "gpus": 2, **execution}})

    assert read(address="fleet://h:1", job={}).execution.is_remote
    with pytest.raises(UserError, match=r"`address: fleet://HOST:1` with `launcher: fleet`"):
        read()
    with pytest.raises(UserError, match=r"takes `address` only with `launcher: dask` or `ray` or `fleet`"):
        read(launcher="local", address="fleet://h:1")
    with pytest.raises(UserError, match=r"a batch system as `launcher` \(slurm, pbs, lsf, sge, fleet\)"):
        read(launcher="local", job={})
    with pytest.raises(UserError, match=r"needs the number of GPUs in `gpus`"):
        read(address="fleet://h:1", gpus="all")
    with pytest.raises(UserError, match=r"fleet` needs fleet_client, which is not .* install 'fleet\[x\]'`"):
        find_installed("fleet")


def test_a_factory_that_is_not_there_is_said(tmp_path, monkeypatch):
    row = LAUNCHER.replace("errand_launcher:", "nowhere:")
    points = {"sweeper.launchers": {"half": "half_launcher:TRAITS"}}
    install(tmp_path, "half-launcher", points, {"half_launcher.py": row})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"'nowhere:ErrandLauncher' cannot be imported"):
        launcher_of("half", tmp_path)


def test_a_stored_sweep_outlives_the_distribution(installed, folder, monkeypatch):
    tree = SweepSpec.from_dict({**TREE, "execution": {"launcher": "errand"}}).to_dict()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(folder)])
    assert not traits("errand").factory
    assert SweepSpec.from_dict(tree, is_stored=True).execution.launcher == "errand"
    with pytest.raises(UserError, match=r"must be one of local, .*, ray, but got 'errand'"):
        SweepSpec.from_dict(tree)


@pytest.mark.slow
def test_the_suite_can_be_run_from_outside(folder, tmp_path):
    (tmp_path / "test_errand.py").write_text(SUITE)
    ran = run_in(tmp_path, folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_errand.py")
    assert ran.returncode == 0, ran.stdout
    assert "7 passed" in ran.stdout


@pytest.mark.slow
def test_a_sweep_runs_to_its_end_on_it(folder, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text(SPACE)
    ran = run_in(tmp_path, folder, "-m", "sweeper", "run", "space.yaml", "--home", "home")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = run_in(tmp_path, folder, "-m", "sweeper", "show", "errands", "--home", "home", "--json")
    trials = json.loads(shown.stdout)["trials"]
    assert [each["outcome"] for each in trials] == ["measured"] * 3
    assert "confirmed" in {each["stage"] for each in trials}
    # The local launcher would have a server, whose log is there.
    assert not (tmp_path / "home" / "sweeps" / "errands" / "server.log").exists()
