"""What a sampler is shown: the best, the latest and those that run, and no more than that."""

from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from replays import spec_of

from sweeper.core.record import SearchResult
from sweeper.search import Searcher, searcher
from sweeper.search.history import BEST, LATEST, RUNNING, History, PastStorage

OF = {"x": FloatDistribution(0, 1)}
CONTINUOUS = {
    "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
    "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
}


def trial(*values: float, violation: float = 0.0):
    return create_trial(
        values=values, params={"x": 0.5}, distributions=OF, constraints={"ran": violation}, user_attrs={}
    )


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_best_and_the_latest_are_kept_in_their_order(direction: str):
    draw, history = random.Random(0), History([direction])
    values = {number: draw.random() for number in range(1000)}
    feasible = {number: draw.random() < 0.7 for number in values}
    for number, value in values.items():
        history.add(number, trial(value, violation=0.0 if feasible[number] else 1.0))
    sign = -1 if direction == "maximize" else 1
    best = sorted((n for n in values if feasible[n]), key=lambda n: sign * values[n])[:BEST]
    kept = sorted({*best, *range(1000 - LATEST, 1000)})
    assert [each.value for each in history.trials()] == [values[number] for number in kept]
    assert [each.value for each in history.trials(0)] == [values[number] for number in sorted(best)]


def test_each_objective_has_its_best():
    history = History(["maximize", "minimize"])
    for number in range(500):
        history.add(number, trial(float(number == 0), -float(number == 1)))
    assert {0.0, 1.0} == {each.values[0] for each in history.trials()}
    assert {0.0, -1.0} == {each.values[1] for each in history.trials()}


def test_what_failed_is_nothing_to_look_at():
    history = History(["maximize"])
    history.add(1, create_trial(state=TrialState.FAIL, params={"x": 0.5}, distributions=OF))
    assert history.trials() == []


def test_a_study_with_a_past_asks_as_one_that_was_told_it():
    draw = random.Random(1)
    past = [
        create_trial(value=x, params={"x": x}, distributions=OF) for x in (draw.random() for _ in range(40))
    ]
    sampler = {"sampler": optuna.samplers.TPESampler(seed=3), "direction": "maximize"}
    told = optuna.create_study(**sampler)
    told.add_trials(past)
    sampler["sampler"] = optuna.samplers.TPESampler(seed=3)
    given = optuna.create_study(storage=PastStorage(past), **sampler)
    assert given.ask(OF).params == told.ask(OF).params


def test_a_sampler_sees_what_runs_and_no_more_than_so_many(tmp_path, monkeypatch):
    seen: list[list[TrialState]] = []

    class Looking(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study, trial):
            seen.append([each.state for each in study.get_trials(deepcopy=False)[:-1]])
            return {}

    monkeypatch.setattr(searcher, "make", lambda path, seed, *_: Looking(seed=seed))
    spec = spec_of(space=CONTINUOUS, search={"trials": 1000, "sampler": "random"})
    told: dict[int, SearchResult] = {}
    search = Searcher(tmp_path / "study.log", spec, told)
    taken: set[str] = set()
    for number in range(RUNNING + 20):
        taken.add(spec.config(search.ask(number, taken).params).key())
        assert seen[-1] == [TrialState.RUNNING] * min(number, RUNNING)
    assert len(taken) == RUNNING + 20
    for number in range(20):
        told[number] = SearchResult(
            params=dict(search._running[number].params), values=(1.0,), constraints={}
        )
        search.tell(number, told[number])
    search.ask(RUNNING + 20, taken)
    assert seen[-1] == [TrialState.COMPLETE] * 20 + [TrialState.RUNNING] * RUNNING


def test_an_ask_looks_at_as_much_after_hundreds_of_trials_as_after_fifty(tmp_path, monkeypatch):
    """Configurations are what a climb spends its time on."""
    spec = spec_of(space=CONTINUOUS, search={"trials": 1000, "sampler": "climb"})
    told: dict[int, SearchResult] = {}
    search = Searcher(tmp_path / "study.log", spec, told)
    monkeypatch.setattr(search._study, "add", lambda trial: None)
    draw, taken, made = random.Random(0), set[str](), []
    config = type(spec).config
    monkeypatch.setattr(type(spec), "config", lambda *args: made.append(1) or config(*args))
    counts = []
    for number in range(300):
        before = len(made)
        params = search.ask(number, taken).params
        counts.append(len(made) - before)
        taken.add(spec.config(params).key())
        told[number] = SearchResult(params=params, values=(draw.random(),), constraints={"ran": 0.0})
        search.tell(number, told[number])
    assert 0 < sum(counts[250:]) <= 2 * sum(counts[50:100])
