"""Provides the conformance suite of samplers. Derive a test class and give it a `sampler` fixture.

class TestGreedy(SamplerConformance):
    @pytest.fixture
    def sampler(self):
        return "greedy"
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.core.config import Scalar
from sweeper.core.record import SearchResult
from sweeper.search import Searcher
from sweeper.spec import SweepSpec

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
from sweeper.testing.sampler_conformance import Sweep, spec_for
sweep = Sweep(Path(sys.argv[1]), spec_for(sys.argv[2]))
sweep.run(1)
sweep.searcher.close()
assert "torch" not in sys.modules, "torch was imported"
"""


def spec_for(sampler: str, seed: int = 0, *, num_objectives: int = 1) -> SweepSpec:
    """Returns a space with every type of parameter, which `sampler` searches."""
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
    """Returns the result of a trial with `params`: larger batches are faster and take more memory."""
    size, rate = float(params["batch_size"] or 0), float(params["optimizer.lr"] or 0)
    return (size * (1 + rate), size)[:num_objectives]


def _drawn(draw: random.Random) -> dict[str, Scalar]:
    return {
        "batch_size": draw.randint(64, 1024),
        "optimizer.lr": draw.uniform(1e-4, 1e-2),
        "compile.mode": draw.choice(["eager", "default"]),
        "loader.num_workers": draw.randint(0, 4),
    }


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


class SamplerConformance:
    """Override the fixture `sampler` with its name; pytest collects the rest."""

    @pytest.fixture
    def sweep(self, sampler: str, tmp_path: Path) -> Iterator[Any]:
        """Returns a function that begins a sweep with a seed."""
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
    def test_it_stays_inside_the_space(self, sweep: Any, num_objectives: int) -> None:
        """Every suggestion has a value of every parameter, and no configuration comes twice."""
        found = sweep(num_objectives=num_objectives)
        found.run(NUM_ASKS)
        for params in found.asked:
            assert params.keys() == SPACE.keys()
            assert all(each.contains(params[name]) for name, each in found.spec.space.items()), params

    def test_a_seed_decides_what_it_suggests(self, sweep: Any) -> None:
        """The same trials with the same results give the same next one."""
        first, second = sweep(5), sweep(5)
        first.run(NUM_ASKS)
        second.run(NUM_ASKS)
        assert first.asked == second.asked

    def test_it_goes_on_after_a_restart(self, sweep: Any) -> None:
        """Killing the supervisor between two trials changes nothing."""
        whole, cut = sweep(5), sweep(5)
        whole.run(NUM_ASKS)
        cut.run(2)
        cut.restart()
        cut.run(2)
        cut.restart()
        cut.run(NUM_ASKS - 4)
        assert cut.asked == whole.asked

    def test_it_goes_on_without_its_study(self, sweep: Any, sampler: str) -> None:
        """The study file is rebuilt from the results; state kept in it may be lost."""
        cut = sweep(5)
        cut.run(2)
        cut.restart(without_study=True)
        cut.run(NUM_ASKS - 2)
        assert len(cut.asked) == NUM_ASKS

    def test_no_other_random_numbers_are_touched(self, sweep: Any) -> None:
        """It leaves the global random generators alone."""
        found = sweep()
        random.seed(1)
        np.random.seed(1)
        want = random.random(), np.random.random()
        random.seed(1)
        np.random.seed(1)
        found.run(4)
        assert (random.random(), np.random.random()) == want

    def test_the_supervisor_imports_no_torch(self, sampler: str, tmp_path: Path) -> None:
        """A sampler that needs torch sets `needs_torch` and runs in a separate process."""
        command = [sys.executable, "-c", NO_TORCH, str(tmp_path), sampler]
        done = subprocess.run(
            command, capture_output=True, text=True, env=_with_path(), timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr


def _with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
