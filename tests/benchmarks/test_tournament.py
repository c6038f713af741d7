"""Searches over recorded surfaces: what each costs, when it is near the best, and the table of them."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.recorded.strategies import (
    REPEATS,
    STRATEGIES,
    WINDOW_SECONDS,
    Problem,
    Step,
    strategy_of,
)
from benchmarks.recorded.surfaces import Head, Process, add, begin, read
from benchmarks.recorded.tournament import BEGIN, END, Score, labelled, score, table, written_into
from sweeper.errors import UserError
from sweeper.schema import SweepSpec

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tournament.py"
SIZES, KINDS, LEVELS = [64, 128, 256, 512, 1024, 2048, 4096], ["rows", "resident"], ["fp32", "bf16"]
SPEC = SweepSpec.from_dict(
    {
        "name": "toy",
        "pipeline": "no.such.pipeline",
        "space": {
            "batch_size": {"type": "categorical", "choices": SIZES},
            "loader.kind": {"type": "categorical", "choices": KINDS},
            "precision.amp": {"type": "categorical", "choices": LEVELS},
        },
        "baseline": {"batch_size": 64, "loader.kind": "rows", "precision.amp": "fp32"},
    }
)
ADAPTER = """
class Worst:
    def __init__(self, space, seed):
        self.left = [{name: each.choices[0] for name, each in space.items()}]

    def ask(self):
        return self.left.pop() if self.left else None

    def tell(self, params, throughput):
        assert throughput
"""


OF_NUMPY = """
import numpy as np

class Numpy:
    def __init__(self, space, seed):
        self.left = [{name: np.asarray(each.choices)[0] for name, each in space.items()}]

    def ask(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def tell(self, params, throughput):
        assert throughput

class Elsewhere(Numpy):
    def ask(self):
        return {"batch_size": 65}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "toy.jsonl"
    begin(file, Head(name="toy", device="none", space=SPEC.to_dict()))
    for index, (size, kind, amp) in enumerate(itertools.product(SIZES, KINDS, LEVELS)):
        speed = size * (3.0 if kind == "resident" else 1.0)
        params = {"batch_size": size, "loader.kind": kind, "precision.amp": amp}
        usual = {"startup_seconds": 1.0, "warmup_seconds": 1.0, "peak_gib": 0.001 * size}
        add(file, Process(configuration=params, round=0, throughput=(speed,), **usual))
        if index < 2:
            for turn in range(3):
                again = (speed * (1 + 0.01 * turn),)
                add(file, Process(configuration=params, round=turn, repeated=True, throughput=again))
    return file


@pytest.fixture
def problem(path: Path) -> Problem:
    return Problem(read(path))


def test_the_best_is_the_fastest_that_fits(problem: Problem):
    # Seven tenths of the 28 fit: up to 1024.
    assert problem.limit_gib == pytest.approx(1.024)
    assert problem.best == 3 * 1024
    assert problem.grid_seconds == pytest.approx(28 * (2.0 + REPEATS * WINDOW_SECONDS))


def test_contenders_are_fewer_the_more_is_known_of_them(path: Path):
    fast = [{"batch_size": 1024, "loader.kind": "resident", "precision.amp": amp} for amp in LEVELS]
    fp32, bf16 = (SPEC.config(each).key() for each in fast)
    assert set(Problem(read(path)).contenders()) == {fp32, bf16}
    # Nine processes are 2.5% slower on average. A single one could be as fast.
    for turn in range(1, 9):
        add(path, Process(configuration=fast[1], round=turn, throughput=(0.972 * 3072,), peak_gib=1.024))
    assert Problem(read(path)).contenders() == [fp32]


def test_a_search_is_near_once_what_would_be_confirmed_is(problem: Problem):
    speeds = {key: problem.cells[key].throughput for key in problem.params if problem.fits(key)}
    best = max(speeds, key=lambda key: speeds[key])
    found = Score(problem, 0)
    for key in sorted(speeds, key=lambda each: speeds[each])[:4]:
        found.add(Step(key, 1.0, speeds[key]))
    assert math.isinf(found.near_s)
    assert not found.is_over
    found.add(Step("failed", 1.0, 0.0, out_of_memory=True))
    found.add(Step(best, 1.0, speeds[best]))
    assert found.near_s == 6.0
    assert found.is_over
    # By the end of the budget, four seconds, it had the fourth.
    assert found.share < 0.5


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"gp"}))
def test_every_search_pays_for_its_trials(name: str, problem: Problem):
    steps = list(itertools.islice(STRATEGIES[name](problem, 1), 12))
    assert all(step.seconds > 0 for step in steps)
    assert any(step.throughput for step in steps)
    assert [each.key for each in itertools.islice(STRATEGIES[name](problem, 1), 12)] == [s.key for s in steps]


def test_a_grid_has_every_configuration_once(problem: Problem):
    assert sorted(step.key for step in STRATEGIES["grid"](problem, 0)) == sorted(problem.params)


def test_halving_measures_the_best_for_longer(problem: Problem):
    steps = list(itertools.islice(STRATEGIES["halving"](problem, 0), 27 + 9 + 3))
    first, then = steps[:27], steps[27:36]
    ranked = sorted((step for step in first if step.throughput), key=lambda step: -step.throughput)
    assert {step.key for step in then} == {step.key for step in ranked[:9]}


def test_ours_is_near_sooner_than_at_random(problem: Problem):
    near = {
        name: sum(min(score(STRATEGIES[name], problem, seed).near_s, 1e3) for seed in range(4))
        for name in ("ours", "random")
    }
    assert near["ours"] < near["random"]


def test_another_search_takes_part(problem: Problem, tmp_path: Path):
    file = tmp_path / "worst.py"
    file.write_text(ADAPTER)
    found = score(strategy_of(f"{file}:Worst"), problem, 0)
    assert math.isinf(found.near_s)
    assert found.seconds == pytest.approx(3.0)
    for wrong, said in (("greedy", "must be one of"), ("no.py:A", "must exist"), (f"{file}:B", "must have")):
        with pytest.raises(UserError, match=said):
            strategy_of(wrong)


def test_values_of_numpy_and_a_search_that_gives_up_are_understood(problem: Problem, tmp_path: Path):
    file = tmp_path / "numpy_like.py"
    file.write_text(OF_NUMPY)
    assert len(list(strategy_of(f"{file}:Numpy")(problem, 0))) == 1
    with pytest.raises(UserError, match=r"must suggest one of \[64, .*\] for `batch_size`, but got 65"):
        list(strategy_of(f"{file}:Elsewhere")(problem, 0))


def test_a_surface_without_repeats_is_refused(tmp_path: Path):
    file = tmp_path / "toy.jsonl"
    begin(file, Head(name="toy", device="none", space=SPEC.to_dict()))
    params = {"batch_size": 64, "loader.kind": "rows", "precision.amp": "fp32"}
    add(file, Process(configuration=params, round=0, throughput=(1.0,), startup_seconds=1.0))
    with pytest.raises(UserError, match="must have repeats"):
        Problem(read(file))


def test_the_table_has_the_soonest_first(problem: Problem):
    scores = {
        name: {"toy": [score(STRATEGIES[name], problem, seed) for seed in range(3)]}
        for name in ("grid", "ours")
    }
    head, _, first, second = table(scores).splitlines()
    assert head == "| strategy | `toy` | all | after 5% |"
    assert first.startswith("| `ours` | ")
    assert second.startswith("| `grid` | ")


def test_a_page_has_another_table():
    page = f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n"
    assert written_into(page, "new") == f"Before.\n{BEGIN}\nnew\n{END}\nAfter.\n"
    with pytest.raises(UserError, match="The page must have"):
        written_into("Before.", "new")


def test_it_is_a_command(path: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}\n")
    command = [sys.executable, SCRIPT, path, "--seeds", "1", "--into", page]
    done = subprocess.run([*command, "--with", "grid", "--with", "random"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| `random` | " in page.read_text()
    done = subprocess.run([*command, "--with", "nobody"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "A strategy must be one of ours, grid" in done.stderr


def test_surfaces_of_one_name_are_told_apart_by_their_device(path: Path, tmp_path: Path):
    files = [tmp_path / device / "toy.jsonl" for device in ("a10", "h100")]
    for each in files:
        each.parent.mkdir()
        shutil.copy(path, each)
    assert list(labelled(files)) == ["a10/toy", "h100/toy"]
    assert list(labelled([path])) == ["toy"]
