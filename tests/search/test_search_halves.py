"""A search among changes: each trial makes half of them, and what is clear is fixed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping

import pytest

from sweeper.core.record import SearchResult
from sweeper.search.halves import (
    LEVEL,
    MIN_GAIN,
    Halves,
    Known,
    Made,
    effects,
    halves_of,
    known,
    largest_gain,
)
from sweeper.spec import load
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.space import space

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "c", "d", "e", "f", "g"]


def search(
    gains: Mapping[str, float], noise: float, seed: int, both: Mapping[Made, float] | None = None
) -> Known:
    """Runs a search to its end, and returns what it knows then."""
    draw = random.Random(seed)
    speeds: dict[Made, float | None] = {Made(): draw.gauss(0, noise)}
    while (found := known(list(gains), speeds)).missing:
        made = found.missing[0]
        together = sum(gain for pair, gain in (both or {}).items() if pair <= made)
        speeds[made] = sum(gains[name] for name in made) + together + draw.gauss(0, noise)
    return found


def test_exact_changes_come_first_then_close_ones_and_the_compiler_last():
    names = ["optimizer", "compile", "loader", "device.malloc", "precision"]
    first, second, third, *_ = known(names, {Made(): 0.0}).missing
    assert first == {"loader", "device.malloc"}
    assert second == {"loader", "device.malloc", "optimizer", "precision"}
    assert third == Made(names)


def test_what_slows_all_others_down_is_dropped_after_the_opening():
    names = ["loader", "optimizer", "compile"]
    speeds: dict[Made, float | None] = {
        Made(): 0.0,
        Made(["loader"]): 0.5,
        Made(["loader", "optimizer"]): 0.5,
    }
    speeds[Made(names)] = -0.6
    assert not any("compile" in row for row in known(names, speeds).missing)
    assert known(names, speeds).best() == ["loader"]


def test_changes_that_no_trial_tells_apart_stay_together():
    speeds = {Made(): 0.0, Made(["a", "b", "c"]): 0.05}
    found = known(["a", "b", "c"], speeds)
    assert found.groups == [("a", "b", "c")]
    # None alone is expected to bring 2%.
    assert found.best() == ["a", "b", "c"]


def test_no_set_that_was_measured_is_faster_than_the_largest_gain():
    draw, beyond, gains = random.Random(7), 0, {"a": 0.03, "b": -0.02}
    for _ in range(200):
        truth = {made: sum(gains[name] for name in made) for made in map(Made, ("", "a", "b", "ab"))}
        speeds = {made: log + draw.gauss(0, 0.08) for made, log in truth.items()}
        beyond += largest_gain("ab", speeds) < max(truth.values())
    assert beyond <= 15
    assert largest_gain("ab", {Made(): 0.0}) == math.inf


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 10, 11, 12, 15, 16, 19, 20, 23])
def test_each_change_is_made_in_half_of_the_trials_of_a_stage(count: int):
    names = [*"abcdefghijklmnopqrstuvwxyz"][:count]
    # None of these names is exact, so the opening is the first trial of the stage.
    rows = known(names, {}).missing
    assert rows[0] == Made(names)
    assert len(rows) == len(set(rows))
    for name in names:
        assert 2 * sum(name in row for row in rows) == len(rows)
    for one, other in itertools.combinations(names, 2):
        assert 4 * sum({one, other} <= row for row in rows) == len(rows)


def test_one_of_many_changes_is_told_from_the_others():
    names = [*"abcdefghijklmnopqrstuvw"]
    gains = {name: 1.8 if name == "k" else 0.0 for name in names}
    for seed in range(5):
        speeds: dict[Made, float | None] = {}
        draw = random.Random(seed)
        # As many trials as five minutes have.
        while len(speeds) < 24:
            made = known(names, speeds).missing[0]
            speeds[made] = sum(gains[name] for name in made) + draw.gauss(0, 0.08)
        found = known(names, speeds)
        assert [name for name in names if found.is_shown(name)] == ["k"]


def test_what_pays_is_found_and_what_costs_is_not():
    gains = {"a": 0.4, "b": 0.0, "c": -0.3, "d": 0.2, "e": 0.0, "f": 0.0, "g": 0.15}
    for seed in range(20):
        best = search(gains, 0.05, seed).best()
        assert {"a", "d"} <= {*best}
        assert "c" not in best


def test_what_pays_only_beside_another_is_found_too():
    gains = {"a": 1.2, "b": 0.0, "c": 0.0, "d": -0.2}
    both = {Made("ab"): 0.25}
    found = [search(gains, 0.06, seed, both).best() for seed in range(20)]
    assert sum({"a", "b"} <= {*best} for best in found) >= 18


def test_a_stage_cut_short_leaves_what_was_known():
    gains = {"a": 0.4, "b": 0.12, "c": -0.3, "d": 0.12, "e": 0.0, "f": 0.0, "g": 0.0}
    draw, speeds, found = random.Random(3), {Made(): 0.0}, known(NAMES, {})
    for _ in range(9):
        found = known(NAMES, speeds)
        made = found.missing[0]
        speeds[made] = sum(gains[name] for name in made) + draw.gauss(0, 0.02)
    assert {"a", "b", "d"} <= {*found.best()}


def test_few_trials_of_many_changes_have_wide_intervals():
    speeds = {Made(): 0.0, Made(NAMES): 0.7, Made("abc"): 0.4}
    for each in effects(NAMES, (), speeds).values():
        assert each.low < 0 < each.high
        assert math.isfinite(each.high)


def test_what_brings_nothing_is_seldom_shown():
    false = 0
    for seed in range(60):
        found = search(dict.fromkeys(NAMES, 0.0), 0.08, seed)
        false += sum(found.is_shown(name) for name in NAMES)
    assert false <= 60 * len(NAMES) * 0.05


def test_intervals_hold_the_truth():
    gains = {"a": 0.1, "b": -0.05, "c": 0.0}
    draw, hits = random.Random(1), 0
    rows = [Made(row) for count in range(4) for row in itertools.combinations("abc", count)]
    for _ in range(300):
        speeds = {made: sum(gains[name] for name in made) + draw.gauss(0, 0.08) for made in rows}
        hits += sum(each.low <= gains[name] <= each.high for name, each in effects("abc", (), speeds).items())
    assert abs(hits / 900 - LEVEL) < 0.03


def test_a_trial_that_failed_is_not_asked_for_again():
    speeds: dict[Made, float | None] = {Made(): 0.0, Made(NAMES): None}
    found = known(NAMES, speeds)
    assert Made(NAMES) not in found.missing
    assert not found.effects


def test_where_nothing_is_known_yet_nothing_is_best():
    assert known(NAMES, {Made(): 0.0}).best() == []
    assert math.exp(MIN_GAIN) == pytest.approx(1.02)


# -- as a search -----------------------------------------------------------------------------------


def spec_of(*changes: tuple[str, str], batch_size: bool = False):
    made = [ChangeValue(name=name, value=value, kind="close", why="") for name, value in changes]
    if batch_size:
        made.append(
            ChangeValue(name="batch_size", value="256", original="64", kind="changes training", why="")
        )
    return load(space(["python", "train.py"], made, "it", 5, env={}))


SPEC = spec_of(("loader", "gathered"), ("optimizer", "fused"), ("precision", "bf16"), ("precision", "fp16"))
GAINS = {"gathered": 0.7, "fused": -0.1, "bf16": 0.2, "fp16": 0.3}


def run(spec, fails: str = "") -> tuple[Halves, list[dict[str, object]]]:
    own = spec.params_of(spec.baseline_config())
    results = [SearchResult(params=own, values=(1000.0,), constraints={})]
    asked: list[dict[str, object]] = []
    taken = {spec.baseline_config().key()}
    while (each := halves_of(spec, results).ask(taken)) is not None:
        speed = 1000 * math.exp(sum(GAINS.get(str(value), 0.0) for value in each.params.values()))
        failed = fails in each.params.values()
        results.append(SearchResult(params=each.params, values=None if failed else (speed,), constraints={}))
        taken.add(spec.config(each.params).key())
        asked.append(each.params)
    return halves_of(spec, results), asked


def test_the_best_is_asked_for_and_then_with_the_other_values():
    halves, asked = run(SPEC)
    best = {"loader": "gathered", "optimizer": "original", "precision": "bf16"}
    assert best in asked
    assert asked[-1] == {**best, "precision": "fp16"}
    assert halves.is_done


def test_none_is_asked_for_twice():
    _, asked = run(SPEC)
    assert len({str(each) for each in asked}) == len(asked)


def test_a_change_that_always_fails_ends_nothing():
    halves, _ = run(SPEC, fails="fused")
    assert halves.known().best()[0] == "loader"


def test_nothing_is_asked_while_what_was_asked_still_runs():
    own = SearchResult(params=SPEC.params_of(SPEC.baseline_config()), values=(1000.0,), constraints={})
    halves = halves_of(SPEC, [own])
    running: set[str] = {SPEC.baseline_config().key()}
    while (each := halves.ask(running)) is not None:
        running.add(SPEC.config(each.params).key())
    assert len(running) == 5
    assert not halves.is_done


def test_larger_batches_are_searched_otherwise():
    assert Halves.suits(SPEC)
    assert not Halves.suits(spec_of(("loader", "gathered"), batch_size=True))
