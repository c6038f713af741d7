"""An earlier sweep as a guess: where to begin, what to try next, and when to forget it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from replays import spec_of, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.past import PastSweep, PastTrial
from sweeper.core.record import SearchResult
from sweeper.results.numbers.effects import ActiveValues
from sweeper.search import Hints, Searcher
from sweeper.search.local_model import LocalModel
from sweeper.search.memory import MemoryModel, PeakRecord
from sweeper.search.prior import Prior

CHOICES = {
    "batch_size": [64, 256, 1024],
    "loader.kind": ["workers", "resident"],
    "precision.amp": ["fp32", "bf16"],
}
SPACE = {name: {"type": "categorical", "choices": choices} for name, choices in CHOICES.items()}


def configs() -> list[TrialConfig]:
    spec = spec_of(space=SPACE)
    return [
        spec.config({"batch_size": size, "loader.kind": kind, "precision.amp": amp})
        for size in CHOICES["batch_size"]
        for kind in CHOICES["loader.kind"]
        for amp in CHOICES["precision.amp"]
    ]


def earlier(speed: Any = throughput, **failing: str) -> PastSweep:
    """A sweep that measured all of `SPACE`; what has a value of `failing` failed."""
    trials = []
    for number, config in enumerate(configs(), start=1):
        why = next((w for name, w in failing.items() if name in map(str, config.flatten().values())), "")
        trials.append(
            PastTrial(number=number, config=config, throughput=0.0 if why else speed(config), failure=why)
        )
    return PastSweep(name="before", trials=tuple(trials), kind="cpu")


def asked(folder: Path, past: PastSweep | None, count: int, *fails: str) -> list[tuple[TrialConfig, str]]:
    """Returns the first configurations of a search, and why each."""
    spec = spec_of(space=SPACE, search={"trials": 20})
    searcher = Searcher(folder / "study.log", spec, {}, Hints(past=past))
    base = SearchResult(
        params={"batch_size": 64, "loader.kind": "workers", "precision.amp": "fp32"},
        values=(128.0,),
        constraints={},
    )
    searcher.tell(0, base)
    taken, found = {spec.config(base.params).key()}, []
    for number in range(1, count + 1):
        params, why = searcher.ask(number, taken)
        config = spec.config(params)
        taken.add(config.key())
        found.append((config, why))
        values = None if config.precision.amp in fails else (throughput(config),)
        searcher.tell(number, SearchResult(params=params, values=values, constraints={}))
    return found


def test_the_earlier_best_is_the_first(tmp_path: Path):
    (first, why), *_ = asked(tmp_path, earlier(), 3)
    assert throughput(first) == max(map(throughput, configs()))
    assert why.startswith("start: the best of `before`: its trial ")


def test_what_is_measured_otherwise_is_forgotten(tmp_path: Path):
    (tmp_path / "cold").mkdir()
    slow = configs()[1]
    (first, _), *misled = asked(tmp_path, earlier(lambda config: 1.0 + 9 * (config == slow)), 5)
    assert first == slow
    cold = asked(tmp_path / "cold", None, 5)
    starts = list(itertools.takewhile(lambda why: why.startswith("start: "), (why for _, why in cold)))
    assert starts
    assert [why for _, why in misled][: len(starts)] == starts


def prior_of(measured: dict[int, float], speed: Any = throughput) -> Prior:
    """A prior that was told speeds of configurations by their place among `configs`, the baseline's first."""
    prior = Prior(earlier(speed), spec_of(space=SPACE))
    for place, each in measured.items():
        prior.tell(configs()[place], each)
    return prior


def test_it_holds_for_what_is_near_and_in_order():
    speeds = [throughput(each) for each in configs()]
    assert not prior_of({0: speeds[0]}).holds
    assert prior_of({0: speeds[0]}).is_untried
    one = prior_of({0: speeds[0], 11: speeds[11]})
    assert one.holds
    assert not one.is_sure
    assert prior_of({0: speeds[0], 11: 0.7 * speeds[11], 5: speeds[5]}).is_sure
    # Each ratio is within a factor of two, but their order is another.
    alike = [100.0 + number for number in range(12)]
    slow = {0: 100.0, 3: 140.0, 6: 70.0, 9: 120.0, 11: 65.0}
    assert not prior_of(slow, lambda config: alike[configs().index(config)]).holds


def test_where_the_best_was_at_an_end_it_goes_half_of_the_way_on():
    wider = {**SPACE, "batch_size": {"type": "int", "low": 64, "high": 65536, "log": True}}
    starts = [params["batch_size"] for params, _ in Prior(earlier(), spec_of(space=wider)).starts()]
    assert starts == [1024, 8192, 65536]


def test_a_choice_that_always_failed_comes_last(tmp_path: Path):
    prior = Prior(earlier(bf16="no such kernel"), spec_of(space=SPACE))
    assert {config.precision.amp for config in configs() if prior.fails(config)} == {"bf16"}
    found = asked(tmp_path, earlier(bf16="no such kernel"), 8, "bf16")
    # Usual starts come first, until one was measured.
    tried = [config.precision.amp for config, _ in found]
    first = tried.index("fp32")
    assert tried[first : first + 3] == ["fp32"] * 3


def test_effects_are_moved_by_what_is_measured_here():
    spec = spec_of(space=SPACE)
    acting, prior = ActiveValues(spec), Prior(earlier(), spec)
    known = sorted(
        # Batches bring less than they did.
        ((acting(each), math.log(throughput(each)) - math.log(each.batch_size) / 2) for each in configs()),
        key=lambda each: -each[1],
    )
    small, large = (
        acting(spec.config({"batch_size": n, "loader.kind": "resident", "precision.amp": "fp32"}))
        for n in (64, 1024)
    )
    assert prior.gain(large, small) == pytest.approx(2.77, abs=0.1)
    left = [each for each in known if each[0]["batch_size"] != 1024]
    assert LocalModel(left[:2], spec, prior.gain).improvement(large) > 1
    assert 0.6 < LocalModel(left, spec, prior.gain).improvement(large) < 1.1


def test_earlier_peaks_tell_what_fits_before_any_trial():
    peaks = [PeakRecord(config=each, peak_gib=0.01 * each.batch_size, sweep="before") for each in configs()]
    model = MemoryModel(peaks, limit_gib=6.0)
    assert [model.fits(each) for each in configs()] == [each.batch_size <= 256 for each in configs()]
    # Those measured here count more.
    own = [PeakRecord(config=each, peak_gib=0.015 * each.batch_size) for each in configs()[:6]]
    expected = MemoryModel([*peaks, *own], limit_gib=50.0).predict(configs()[-1])
    assert expected is not None
    assert expected.gib == pytest.approx(15.4, rel=0.1)
