"""The built-in samplers and a third party's pass one suite; a sweep runs, stops and goes on with one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from greedy_sampler import MODULE, install_greedy_sampler
from replays import PIPELINE, Bench, spec_of, surface

from sweeper.core.registry import resolve
from sweeper.core.samplers import BUILTIN, SAMPLERS
from sweeper.errors import UserError
from sweeper.spec import SweepSpec
from sweeper.testing.sampler_conformance import NUM_KNOWN, SamplerConformance, Sweep, spec_for

LACKS = pytest.mark.skipif(importlib.util.find_spec("cmaes") is None, reason="cmaes is not installed")


MARKS = {"cmaes": LACKS, "gp": pytest.mark.slow}


class TestBuiltin(SamplerConformance):
    @pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in BUILTIN])
    def sampler(self, request) -> str:
        return request.param

    # Of the sampler that a sweep has by itself, test_cli_help knows as well.
    @pytest.mark.slow
    def test_the_supervisor_imports_no_torch(self, sampler: str, tmp_path: Path) -> None:
        super().test_the_supervisor_imports_no_torch(sampler, tmp_path)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs the distribution, or one with another module."""

    def make(module: str = MODULE) -> Path:
        folder = install_greedy_sampler(tmp_path / "site", module)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "greedy_sampler", raising=False)
        return folder

    return make


class TestGreedy(SamplerConformance):
    @pytest.fixture(params=["here", "in a process of its own"])
    def sampler(self, request, install, monkeypatch) -> str:
        far = request.param != "here"
        folder = install(MODULE.replace("why=", "needs_torch=True, why=") if far else MODULE)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
        return "greedy"


def test_it_has_less_than_30_lines():
    assert len([line for line in MODULE.splitlines() if line.strip()]) < 30


def test_the_tables_strings_resolve():
    assert all(callable(resolve(row.make)) for row in BUILTIN.values())


def test_it_is_a_name_where_it_is_installed(install):
    install()
    assert SAMPLERS.names() == (*BUILTIN, "greedy")
    with pytest.raises(UserError) as caught:
        spec_for("gredy")
    assert str(caught.value) == (
        "`search.sampler` must be one of auto, tpe, gp, cmaes, random, qmc, climb, greedy, but got 'gredy'. "
        "Did you mean `greedy`?"
    )
    with pytest.raises(UserError, match=r"`search\.sampler` must be a"):
        SweepSpec.from_dict(
            {"name": "a", "pipeline": "p", "space": {}, "baseline": {}, "search": {"sampler": 3}}
        )


def searched(bench: Bench) -> list[dict]:
    """The jobs that the sampler asked for, in order."""
    trials = bench.home / "sweeps" / "toy" / "trials"
    jobs = [json.loads((each / "config.json").read_text()) for each in sorted(trials.iterdir())]
    return [job for job in jobs if job["stage"] == "search"]


def test_a_sweep_runs_with_it_and_is_shown_once_it_is_gone(install, tmp_path, monkeypatch):
    folder = install()
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    spec = spec_of(search={"sampler": "greedy", "trials": 8})
    whole, cut = Bench(tmp_path / "whole"), Bench(tmp_path / "cut")
    whole.run(spec)
    asked = searched(whole)
    assert len(asked) == 8
    assert {"near the best so far"} < {job["origin"] for job in asked}
    left = iter(range(6))

    def dies(config):
        if next(left, None) is None:
            raise RuntimeError("the supervisor dies")
        return surface(config)

    with pytest.raises(RuntimeError, match="dies"):
        cut.run(spec, dies)
    assert 0 < len(searched(cut)) < 8
    cut.run(spec)
    assert [job["config"] for job in searched(cut)] == [job["config"] for job in asked]
    sys.path.remove(str(folder))
    command = [sys.executable, "-m", "sweeper", "show", "toy", "--home", str(tmp_path / "whole")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Searched trials: 8 measured" in done.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("drawn =", "1 / 0; drawn ="), "comes from greedy-sampler 1.0, but it failed: ZeroDivisionError"),
        (
            ("        return drawn\n", "        return 10**6 if name == 'batch_size' else drawn\n"),
            "`search.sampler: greedy` (greedy-sampler 1.0) must suggest values in the space, but",
        ),
        (("greedy_sampler:Greedy", "greedy_sampler:Gredy"), "'greedy_sampler:Gredy' cannot be imported"),
        (
            ("greedy_sampler:Greedy", "builtins:max"),
            "must return an optuna.samplers.BaseSampler, but it returns",
        ),
    ],
)
def test_one_that_is_broken_says_so(install, tmp_path, change, says):
    install(MODULE.replace(*change))
    with pytest.raises(UserError) as caught:
        Sweep(tmp_path, spec_for("greedy")).run(3)
    assert says in str(caught.value)


COUNTING = """\
from optuna.samplers import RandomSampler

from sweeper.core.samplers import SamplerTraits

GREEDY = SamplerTraits(make="greedy_sampler:Counting", keeps="counting:")


class Counting(RandomSampler):
    def __init__(self, seed, point, trials):
        super().__init__(seed)

    def sample_independent(self, study, trial, name, distribution):
        if name != "batch_size":
            return super().sample_independent(study, trial, name, distribution)
        seen = [each.system_attrs.get("counting:size", 64) for each in study.get_trials(deepcopy=False)]
        for key in ("counting:size", "other:size"):
            study._storage.set_trial_system_attr(trial._trial_id, key, max(seen) + 1)
        return max(seen) + 1
"""


def test_a_state_in_the_trials_outlives_a_restart(install, tmp_path):
    install(COUNTING)
    sweep = Sweep(tmp_path, spec_for("greedy"))
    sweep.run(3)
    sweep.restart()
    sweep.run(2)
    assert [params["batch_size"] for params in sweep.asked] == [65, 66, 67, 68, 69]
    kept = list(sweep.searcher._study.attributes().values())[NUM_KNOWN:]
    assert [{key for key in attributes if ":size" in key} for attributes in kept] == [{"counting:size"}] * 5
