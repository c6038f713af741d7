"""Ask and tell: deterministic given what was told, no configuration twice, the study rebuilt when broken."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import os
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial
from replays import spec_of, throughput

from sweeper.core.record import SearchResult
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.search import Searcher, SpaceExhaustedError
from sweeper.search.presets import presets
from sweeper.search.study_file import NUMBER

SAMPLERS = ["auto", "climb", "tpe", "random", "qmc"]
CONTINUOUS = {
    "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
    "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
}


class Search:
    """A searcher with the bookkeeping of a sweep; `again` is what a new process would make of it."""

    def __init__(self, folder: Path, spec: SweepSpec, told: dict[int, SearchResult] | None = None) -> None:
        self.path, self.spec = folder / "study.log", spec
        self.told = dict(told or {})
        self.searcher = Searcher(self.path, spec, self.told)

    def again(self) -> Search:
        return Search(self.path.parent, self.spec, self.told)

    def taken(self) -> set[str]:
        return {self.spec.config(told.params).key() for told in self.told.values()}

    def ask(self, number: int):
        return self.searcher.ask(number, self.taken()).params

    def run(self, *numbers: int) -> list[dict]:
        asked = []
        for number in numbers:
            params = self.ask(number)
            assert self.spec.config(params).key() not in self.taken()
            asked.append(params)
            value = throughput(self.spec.config(params))
            self.told[number] = SearchResult(params=params, values=(value,), constraints={"ran": 0.0})
            self.searcher.tell(number, self.told[number])
        return asked

    def study(self) -> optuna.Study:
        storage = JournalStorage(JournalFileBackend(str(self.path)))
        return optuna.load_study(study_name=self.spec.name, storage=storage)

    def states(self) -> dict[int, TrialState]:
        return {t.user_attrs[NUMBER]: t.state for t in self.study().trials if NUMBER in t.user_attrs}


@pytest.fixture(params=SAMPLERS)
def spec(request) -> SweepSpec:
    return spec_of(search={"trials": 20, "sampler": request.param})


def test_a_number_is_asked_the_same_whatever_was_lost(tmp_path, spec):
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole = Search(tmp_path / "whole", spec).run(*range(1, 15))
    first = Search(tmp_path / "resumed", spec)
    asked = first.run(*range(1, 6))
    assert first.ask(6) == whole[5]  # Killed between ask and tell.
    second = first.again()
    asked += second.run(*range(6, 11))
    second.path.unlink()
    asked += second.again().run(*range(11, 15))
    assert asked == whole


@pytest.mark.parametrize("spec", ["tpe", "random"], indirect=True)
def test_another_seed_asks_otherwise(tmp_path, spec):
    other = spec.model_copy(update={"search": spec.search.model_copy(update={"seed": 1})})
    asked = []
    for name, each in (("a", spec), ("b", other)):
        (tmp_path / name).mkdir()
        asked.append(Search(tmp_path / name, each).run(*range(1, 6)))
    assert asked[0] != asked[1]


def test_a_small_space_is_asked_whole_and_then_exhausted(tmp_path, spec):
    small = {
        "batch_size": {"type": "categorical", "choices": [64, 128]},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    }
    search = Search(tmp_path, spec_of(space=small, search={"trials": 20, "sampler": spec.search.sampler}))
    asked = search.run(1, 2, 3, 4)
    assert sorted((p["batch_size"], p["precision.amp"]) for p in asked) == [
        (64, "bf16"),
        (64, "fp32"),
        (128, "bf16"),
        (128, "fp32"),
    ]
    with pytest.raises(SpaceExhaustedError):
        search.ask(5)


def test_a_grid_of_floats_is_exhausted_after_its_points(tmp_path):
    space = {"optimizer.lr": {"type": "float", "low": 0.001, "high": 0.0105, "step": 0.001}}
    search = Search(tmp_path, spec_of(space=space))
    assert len({p["optimizer.lr"] for p in search.run(*range(1, 11))}) == 10
    with pytest.raises(SpaceExhaustedError):
        search.ask(11)


def test_what_when_turns_off_makes_no_new_configuration(tmp_path):
    space = {
        "batch_size": {"type": "categorical", "choices": [64, 128]},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.pin_memory": {
            "type": "categorical",
            "choices": [True, False],
            "when": {"loader.kind": "workers"},
        },
    }
    search = Search(tmp_path, spec_of(space=space))
    search.run(*range(1, 7))
    with pytest.raises(SpaceExhaustedError):
        search.ask(7)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_repeats_do_not_exhaust_a_space_too_large_to_list(tmp_path, sampler):
    """Nearly all of this space is out of effect, and a learning rate cannot be listed."""
    space = {
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 100_000, "when": {"loader.kind": "workers"}},
    }
    spec = spec_of(space=space, search={"trials": 30, "sampler": sampler})
    search = Search(tmp_path, spec)
    search.told[1] = SearchResult(
        params=dict.fromkeys(space, "resident") | {"loader.num_workers": 0},
        values=(1e9,),
        constraints={"ran": 0.0},
    )
    search = search.again()
    assert len({p["loader.num_workers"] for p in search.run(*range(2, 18))}) == 16


def test_a_sequence_goes_on_where_it_was_in_a_study_made_anew(tmp_path):
    search = Search(tmp_path, spec_of(space=CONTINUOUS, search={"trials": 60, "sampler": "qmc"}))
    search.run(*range(1, 26))
    search.path.unlink()
    search.again().run(26, 27)
    assert len(search.study().trials) == 27  # No point was drawn again and put away.


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_number_draws_anew(tmp_path, sampler):
    search = Search(tmp_path, spec_of(space=CONTINUOUS, search={"trials": 60, "sampler": sampler}))
    search.run(*range(1, 11))
    assert len(search.study().trials) == 10


@pytest.mark.parametrize("cut", [1, 2, 20, 75, 200])
def test_a_torn_study_is_made_anew(tmp_path, spec, cut):
    search = Search(tmp_path, spec)
    search.run(1, 2, 3)
    os.truncate(search.path, search.path.stat().st_size - cut)
    resumed = search.again()
    resumed.run(4, 5)
    assert resumed.states() == dict.fromkeys(range(1, 6), TrialState.COMPLETE)


def test_half_a_line_after_an_intact_study_is_noticed_at_once(tmp_path, spec):
    """What a full disk leaves of a line that says nothing about any trial."""
    search = Search(tmp_path, spec)
    search.run(1, 2)
    with search.path.open("a") as file:
        file.write('{"op_code":0,"worker_id":"x",')
    resumed = search.again()
    resumed.run(3, 4)
    assert resumed.states() == dict.fromkeys(range(1, 5), TrialState.COMPLETE)


@pytest.mark.parametrize("content", ["", "not json\n", '{"op_code": 0}\n', "\0" * 300])
def test_a_spoilt_study_is_made_anew(tmp_path, spec, content):
    search = Search(tmp_path, spec)
    search.run(1, 2)
    search.path.write_text(content)
    resumed = search.again()
    resumed.run(3)
    assert resumed.states() == dict.fromkeys(range(1, 4), TrialState.COMPLETE)


def test_a_running_orphan_is_not_kept(tmp_path, spec):
    search = Search(tmp_path, spec)
    search.run(1)
    search.study().add_trial(create_trial(state=TrialState.RUNNING, user_attrs={NUMBER: 2}))
    assert search.states()[2] == TrialState.RUNNING
    search.again()
    assert search.states() == {1: TrialState.COMPLETE}


def test_told_in_the_folder_but_not_in_the_study(tmp_path, spec):
    search = Search(tmp_path, spec)
    params = search.ask(1)
    search.told[1] = SearchResult(params=params, values=(2.0,), constraints={"ran": 0.0})
    search.again()
    assert [t.values for t in search.study().trials] == [[2.0]]


def test_what_was_enqueued_and_not_asked_is_not_kept(tmp_path, spec):
    search = Search(tmp_path, spec)
    search.run(1)
    search.study().enqueue_trial(search.told[1].params)
    search.again()
    assert [t.state for t in search.study().trials] == [TrialState.COMPLETE]


def test_an_intact_study_is_left_as_it_is(tmp_path, spec):
    search = Search(tmp_path, spec)
    search.run(1, 2)
    before = search.path.read_bytes()
    search.again()
    assert search.path.read_bytes().startswith(before)


def test_a_lock_left_by_a_killed_process_is_not_waited_for(tmp_path, spec, monkeypatch):
    search = Search(tmp_path, spec)
    search.run(1)
    lock = tmp_path / "study.log.lock"
    lock.symlink_to(search.path)

    def no_waiting(seconds: float) -> None:
        raise AssertionError("waited for a lock nobody holds")

    monkeypatch.setattr("time.sleep", no_waiting)
    search.again().run(2)
    assert not lock.is_symlink()


@pytest.mark.parametrize("call", ["tell", "open"])
@pytest.mark.parametrize("place", ["symlink", "rename"])
def test_a_full_disk_is_told_and_not_optunas_lock(tmp_path, monkeypatch, place, call):
    """Where Optuna cannot let go of its lock, it says that it does not have it, and no more."""
    search = Search(tmp_path, spec_of(search={"trials": 20, "sampler": "random"}))
    search.run(2)
    told = SearchResult(params=search.ask(3), values=(1.0,), constraints={})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "study.log.lock")

    calls = {
        "tell": lambda: search.searcher.tell(3, told),
        "open": lambda: Searcher(tmp_path / "another" / "study.log", search.spec, search.told),
    }
    (tmp_path / "another").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, place, full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            calls[call]()
    assert raised.value.errno == errno.ENOSPC
    assert search.again().run(4, 5)


def test_constraints_are_on_every_trial(tmp_path, spec):
    search = Search(tmp_path, spec)
    for number, (values, violation) in enumerate([((5.0,), 0.0), ((5.0,), 0.3), (None, 1.0)], start=1):
        params = search.ask(number)
        told = SearchResult(params=params, values=values, constraints={"ran": 0.0, "val_loss": violation})
        search.told[number] = told
        search.searcher.tell(number, told)
    for study in (search.study(), search.again().study()):
        trials = {t.user_attrs[NUMBER]: t for t in study.trials if NUMBER in t.user_attrs}
        assert {n: t.constraints["val_loss"] for n, t in trials.items()} == {1: 0.0, 2: 0.3, 3: 1.0}
        assert [trials[n].state for n in (1, 2, 3)] == [TrialState.COMPLETE] * 2 + [TrialState.FAIL]
    search.path.unlink()
    rebuilt = search.again().study()
    assert [t.constraints for t in rebuilt.trials] == [search.told[n].constraints for n in (1, 2, 3)]


def test_a_trial_it_was_never_asked_for_is_added(tmp_path, spec):
    search = Search(tmp_path, spec)
    params = {"batch_size": 64, "loader.kind": "workers", "loader.num_workers": 2, "precision.amp": "fp32"}
    search.searcher.tell(0, SearchResult(params=params, values=(3.0,), constraints={"ran": 0.0}))
    assert search.study().best_value == 3.0
    assert search.study().best_trial.params == params


def test_what_lies_outside_a_space_that_has_shrunk_is_left_out_of_the_study(tmp_path, spec):
    """The same sweep on fewer cores: its earlier trials stay its own, and the search goes on without them."""
    search = Search(tmp_path, spec)
    search.run(*range(1, 8))
    many = {"batch_size": 64, "loader.kind": "workers", "loader.num_workers": 4, "precision.amp": "fp32"}
    search.told[8] = SearchResult(params=many, values=(1.0,), constraints={"ran": 0.0})
    search.searcher.tell(8, search.told[8])
    small = spec.clip("loader.num_workers", 1)
    resumed = Search(tmp_path, small, search.told)
    outside = [n for n, told in search.told.items() if told.params["loader.num_workers"] > 1]
    assert not set(outside) & resumed.states().keys()
    resumed.searcher.tell(
        9, SearchResult(params=search.told[outside[0]].params, values=(1.0,), constraints={})
    )
    resumed.run(10)


@pytest.mark.slow
def test_a_gp_asks_in_a_process_of_its_own(tmp_path):
    """More than its ten random trials, so that it is asked itself; this process imports no torch."""
    spec = spec_of(space=CONTINUOUS, search={"trials": 20, "sampler": "gp", "seed": 1})
    search = Search(tmp_path, spec)
    with contextlib.closing(search.searcher):
        asked = search.run(*range(1, 12))
    assert len({str(params) for params in asked}) == 11
    resumed = Search(tmp_path, spec, {n: t for n, t in search.told.items() if n < 11})
    with contextlib.closing(resumed.searcher):
        assert asked[-1] == resumed.ask(11)


def test_cmaes_needs_its_package_and_says_so(tmp_path):
    if importlib.util.find_spec("cmaes") is not None:
        pytest.skip("cmaes is installed")
    search = Search(tmp_path, spec_of(space=CONTINUOUS, search={"trials": 20, "sampler": "cmaes"}))
    with pytest.raises(UserError, match="needs the package cmaes"):
        search.ask(1)


def test_auto_begins_with_what_usually_is_fast_and_then_climbs(tmp_path):
    search = Search(tmp_path, spec_of(search={"trials": 40}))
    asked = search.run(*range(1, 21))
    starts = [start.params for start in presets(search.spec) if not start.is_late]
    assert asked[: len(starts)] == starts
    best = {"batch_size": 1024, "loader.kind": "resident", "precision.amp": "bf16"}
    assert any(best.items() <= params.items() for params in asked)


def ended(folder: Path, spec: SweepSpec, speed) -> list[tuple[dict, str]]:
    """What a search asks for until it expects to gain no more than its regret, and why."""
    searcher, taken, asked = Searcher(folder / "study.log", spec, {}), set(), []
    for number in range(1, 200):
        gain = searcher.expected_gain(taken)
        if gain is not None and gain <= spec.search.regret:
            return asked
        params, why = searcher.ask(number, taken)
        taken.add(spec.config(params).key())
        asked.append((params, why))
        searcher.tell(number, SearchResult(params=params, values=(speed(params),), constraints={}))
    raise AssertionError("it does not end")


TWO_PEAKS = {
    "batch_size": {"type": "int", "low": 16, "high": 65536, "log": True},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    "model.hidden_size": {"type": "categorical", "choices": [64, 128]},
}
SIZED = {"batch_size": 64, "model.hidden_size": 64}


def test_a_search_looks_elsewhere_before_it_ends_and_not_before(tmp_path):
    """Late starts and Sobol points cost a trial each, and are rarely near the best."""
    spec = spec_of(space=TWO_PEAKS, baseline=SIZED, also_try=[], search={"trials": 200, "regret": 0.01})
    asked = ended(tmp_path, spec, lambda params: 100.0 + (params["precision.amp"] == "bf16"))
    whys = [why.partition(":")[0] for _, why in asked]
    climbed = [place for place, why in enumerate(whys) if why.startswith("one step")]
    elsewhere = [
        place
        for place, (_, why) in enumerate(asked)
        if why in ("start: full precision with a small batch", "spread over the space (Sobol)")
    ]
    assert len(elsewhere) == 3
    assert climbed[0] < elsewhere[0]
    # Nothing is gained there, so the search ends soon.
    assert elsewhere[-1] >= len(asked) - 3
    # Another size cannot win.
    assert {asked[place][0]["model.hidden_size"] for place in elsewhere} == {64}


def test_what_is_found_elsewhere_is_climbed_from(tmp_path):
    """Full precision is fastest with a small batch, which no single step from the usual starts shows."""

    def speed(params: dict) -> float:
        batch = math.log2(params["batch_size"])
        if params["precision.amp"] == "fp32":
            return 900.0 - 100 * abs(batch - 5) if batch < 8 else 1.0
        return 300.0 - 20 * abs(batch - 12)

    spec = spec_of(space=TWO_PEAKS, baseline=SIZED, also_try=[], search={"trials": 200, "regret": 0.01})
    best = max((params for params, _ in ended(tmp_path, spec, speed)), key=speed)
    assert best["precision.amp"] == "fp32"
    assert best["batch_size"] < 64


def test_where_there_is_nothing_to_climb_the_reason_names_who_suggested(tmp_path):
    search = Search(tmp_path, spec_of(space=CONTINUOUS, search={"trials": 60, "sampler": "climb"}))
    why = [search.searcher.ask(number, set()).why for number in range(12)]
    assert "suggested by TPE" in why
    assert "suggested by climb" not in why


def test_results_outside_of_a_smaller_space_are_no_place_to_climb_from(tmp_path):
    """A sweep is continued on a machine with fewer cores, or a choice has left its space."""
    space = {
        "loader.num_workers": {"type": "int", "low": 0, "high": 8},
        "batch_size": {"type": "int", "low": 8, "high": 512, "log": True},
    }
    whole = spec_of(
        space=space, baseline={"loader.kind": "workers"}, search={"trials": 200, "sampler": "climb"}
    )
    best = {"loader.num_workers": 8, "batch_size": 64}
    results = {1: SearchResult(params=best, values=(100.0,), constraints={})}
    searcher = Searcher(tmp_path / "study.log", whole.clip("loader.num_workers", 1), results)
    taken: set[str] = set()
    for number in range(2, 14):
        asked = searcher.ask(number, taken)
        assert 0 <= asked.params["loader.num_workers"] <= 1
        taken.add(whole.config(asked.params).key())
