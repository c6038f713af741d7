"""What every sampler does, and third parties' samplers: state, suggestions that are refused, and errors."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.core.config import Scalar
from sweeper.core.record import SearchResult
from sweeper.core.registry import resolve
from sweeper.core.samplers import BUILTIN
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.search import Searcher

LACKS = pytest.mark.skipif(importlib.util.find_spec("cmaes") is None, reason="cmaes is not installed")
MARKS = {"cmaes": LACKS, "gp": pytest.mark.slow}

NUM_KNOWN, NUM_ASKS = 10, 5
"""Number of trials before the first ask, since most samplers begin at random, and number of asks."""
SPACE: Mapping[str, Any] = {
    "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
    "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
    "compile.mode": {"type": "categorical", "choices": ["eager", "default"]},
    "loader.num_workers": {"type": "int", "low": 0, "high": 4, "when": {"compile.mode": "eager"}},
}
NO_TORCH = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_search_samplers import Sweep, spec_for
sweep = Sweep(Path(sys.argv[2]), spec_for(sys.argv[3]))
sweep.run(1)
sweep.searcher.close()
assert "torch" not in sys.modules, "torch was imported"
"""


def spec_for(sampler: str, seed: int = 0, *, num_objectives: int = 1) -> SweepSpec:
    """A space with every type of parameter, which `sampler` searches."""
    tree = {
        "name": "toy",
        "pipeline": "toy",
        "space": SPACE,
        "baseline": {},
        "objectives": [{"maximize": "throughput"}, {"minimize": "gpu_mem_peak_gib"}][:num_objectives],
        "search": {"trials": 9, "sampler": sampler, "seed": seed},
    }
    return SweepSpec.from_dict(tree)


def value_of(params: Mapping[str, Scalar], num_objectives: int) -> tuple[float, ...]:
    """The result of a trial with `params`: larger batches are faster and take more memory."""
    size, rate = float(params["batch_size"] or 0), float(params["optimizer.lr"] or 0)
    return (size * (1 + rate), size)[:num_objectives]


class Sweep:
    """A searcher with its sweep's folder; `restart` does what a new process would."""

    def __init__(self, folder: Path, spec: SweepSpec) -> None:
        self.path, self.spec = folder / "study.log", spec
        draw = random.Random(7)
        self.results = {number: self._result(number, _drawn(draw)) for number in range(1, NUM_KNOWN + 1)}
        self.asked: list[dict[str, Scalar]] = []
        self.searcher = Searcher(self.path, spec, self.results)

    def _result(self, number: int, params: dict[str, Scalar]) -> SearchResult:
        values = value_of(params, len(self.spec.objectives))
        return SearchResult(params=params, values=values, constraints={"ran": float(number % 4 == 0)})

    def restart(self, *, without_study: bool = False) -> None:
        """Continues as after a crash of the supervisor."""
        self.searcher.close()
        if without_study:
            self.path.unlink(missing_ok=True)
        self.searcher = Searcher(self.path, self.spec, self.results)

    def run(self, num: int) -> None:
        """Asks for `num` trials and reports the result of each; every fourth violates its constraint."""
        first = len(self.results) + 1
        for number in range(first, first + num):
            taken = {self.spec.config(each.params).key() for each in self.results.values()}
            params = dict(self.searcher.ask(number, taken).params)
            assert self.spec.config(params).key() not in taken
            self.asked.append(params)
            self.results[number] = self._result(number, params)
            self.searcher.tell(number, self.results[number])


def _drawn(draw: random.Random) -> dict[str, Scalar]:
    return {
        "batch_size": draw.randint(64, 1024),
        "optimizer.lr": draw.uniform(1e-4, 1e-2),
        "compile.mode": draw.choice(["eager", "default"]),
        "loader.num_workers": draw.randint(0, 4),
    }


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in BUILTIN])
def sampler(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def sweep(sampler: str, tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Begins a sweep with a seed."""
    begun: list[Sweep] = []

    def begin(seed: int = 0, **more: Any) -> Sweep:
        folder = tmp_path / str(len(begun))
        folder.mkdir()
        begun.append(Sweep(folder, spec_for(sampler, seed, **more)))
        return begun[-1]

    yield begin
    for each in begun:
        each.searcher.close()


@pytest.mark.parametrize("num_objectives", [1, 2])
def test_it_stays_inside_the_space(sweep, num_objectives: int):
    found = sweep(num_objectives=num_objectives)
    found.run(NUM_ASKS)
    for params in found.asked:
        assert params.keys() == SPACE.keys()
        assert all(each.contains(params[name]) for name, each in found.spec.space.items()), params


def test_a_seed_decides_what_it_suggests_also_after_restarts(sweep):
    whole, cut = sweep(5), sweep(5)
    whole.run(NUM_ASKS)
    cut.run(2)
    cut.restart()
    cut.run(2)
    cut.restart()
    cut.run(NUM_ASKS - 4)
    assert cut.asked == whole.asked


def test_it_goes_on_without_its_study(sweep):
    """State that was kept in it may be lost."""
    cut = sweep(5)
    cut.run(2)
    cut.restart(without_study=True)
    cut.run(NUM_ASKS - 2)
    assert len(cut.asked) == NUM_ASKS


def test_no_other_random_numbers_are_touched(sweep):
    found = sweep()
    random.seed(1)
    np.random.seed(1)
    want = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    found.run(4)
    assert (random.random(), np.random.random()) == want


# Of the sampler that a sweep has by itself, test_cli_help knows as well.
@pytest.mark.slow
def test_the_supervisor_imports_no_torch(sampler: str, tmp_path: Path):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", NO_TORCH, here, str(tmp_path), sampler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_tables_strings_resolve():
    assert all(callable(resolve(row.make)) for row in BUILTIN.values())


MODULE = """\
import os
from pathlib import Path

from optuna.samplers import RandomSampler

from sweeper.core.samplers import SamplerTraits

COUNTING = SamplerTraits(make="own_sampler:Counting", keeps="counting:")
BROKEN = SamplerTraits(make="own_sampler:Broken")
FAR = SamplerTraits(make="own_sampler:Far")
GONE = SamplerTraits(make="own_sampler:Gone")
OTHER = SamplerTraits(make="builtins:max")
APART = SamplerTraits(make="own_sampler:Apart", needs_torch=True)


class Drawn(RandomSampler):
    def __init__(self, seed, point, trials):
        super().__init__(seed)


class Counting(Drawn):
    def sample_independent(self, study, trial, name, distribution):
        if name != "batch_size":
            return super().sample_independent(study, trial, name, distribution)
        seen = [each.system_attrs.get("counting:size", 64) for each in study.get_trials(deepcopy=False)]
        for key in ("counting:size", "other:size"):
            study._storage.set_trial_system_attr(trial._trial_id, key, max(seen) + 1)
        return max(seen) + 1


class Broken(Drawn):
    def sample_independent(self, study, trial, name, distribution):
        return 1 / 0


class Far(Drawn):
    def sample_independent(self, study, trial, name, distribution):
        drawn = super().sample_independent(study, trial, name, distribution)
        return 10**6 if name == "batch_size" else drawn


class Apart(Drawn):
    def sample_independent(self, study, trial, name, distribution):
        Path("pid").write_text(str(os.getpid()))
        return super().sample_independent(study, trial, name, distribution)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with third parties' samplers; it is not on the path."""
    (tmp_path / "own_sampler.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_sampler", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("BROKEN", "`search.sampler: own_sampler:BROKEN` failed: ZeroDivisionError"),
        ("FAR", "`search.sampler: own_sampler:FAR` must suggest values in the space, but for `batch_size`"),
        ("GONE", "'own_sampler:Gone' cannot be imported"),
        ("OTHER", "must return an optuna.samplers.BaseSampler, but it returns"),
    ],
)
def test_one_that_is_broken_says_so(own: Path, name: str, says: str):
    with pytest.raises(UserError) as caught:
        Sweep(own, spec_for(f"own_sampler:{name}")).run(3)
    assert says in str(caught.value)


def test_a_state_in_the_trials_outlives_a_restart(own: Path):
    sweep = Sweep(own, spec_for("own_sampler:COUNTING"))
    sweep.run(3)
    sweep.restart()
    sweep.run(2)
    assert [params["batch_size"] for params in sweep.asked] == [65, 66, 67, 68, 69]
    kept = list(sweep.searcher._study.attributes().values())[NUM_KNOWN:]
    assert [{key for key in attributes if ":size" in key} for attributes in kept] == [{"counting:size"}] * 5


def test_one_that_needs_torch_is_asked_in_a_process_of_its_own(own: Path):
    sweep = Sweep(own, spec_for("own_sampler:APART"))
    sweep.run(1)
    sweep.searcher.close()
    assert int(Path("pid").read_text()) != os.getpid()
