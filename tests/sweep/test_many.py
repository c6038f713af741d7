"""Many trials at once and many in all: counted exactly, asked once each, and each at the same cost."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.search.memory import PeakRecord
from sweeper.sweep import memory_limit
from sweeper.sweep.budget import union_seconds
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.memory_limit import MAX_SEEN, Capacity, informative_trials
from sweeper.sweep.phases.search import Search

SLOTS = 64
GPUS = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in range(SLOTS)]
WIDE = {
    "batch_size": {"type": "int", "low": 64, "high": 65536, "log": True},
    "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
    "loader.num_workers": {"type": "int", "low": 0, "high": 16, "when": {"loader.kind": "workers"}},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
}


def many(trials: int, **search: object):
    return spec_of(space=WIDE, search={"trials": trials, **search}, confirm={"rounds": 0})


@pytest.mark.slow
def test_with_many_slots_as_many_trials_run_as_were_asked_for_each_once(bench: Bench):
    bench.run(many(150), surface, devices=GPUS, sleep_seconds=0.02)
    jobs = bench.jobs("search")
    assert len(jobs) == 150
    assert len({job.config.key() for job in jobs}) == 150
    assert len({job.device for job in jobs}) > 8


def test_what_was_cut_off_runs_again_on_all_slots_at_once(bench: Bench):
    spec = many(40)
    bench.run(spec, surface, devices=GPUS[:8])
    folder = bench.home / "sweeps" / "toy"
    (folder / "result.json").unlink()
    lost = [entry for entry in Journal(folder).trials() if entry.job.stage == "search"][-8:]
    for entry in lost:
        for name in ("outcome.json", "search_result.json"):
            (entry.folder / name).unlink()
    running, most = set(), []

    def slow(config: TrialConfig):
        running.add(config.key())
        most.append(len(running))
        found = surface(config)
        bench.launcher._closed.wait(0.3)
        running.discard(config.key())
        return found

    bench.run(spec, slow, devices=GPUS[:8])
    assert sorted(job.config.key() for job in bench.jobs("search")) == sorted(
        e.job.config.key() for e in lost
    )
    assert max(most) > 4
    assert len([e for e in Journal(folder).trials() if e.job.stage == "search"]) == 40


class Counting(dict):
    """A dictionary that counts how many of its entries are looked at."""

    looked = 0

    def __getitem__(self, key):
        Counting.looked += 1
        return super().__getitem__(key)

    def get(self, key, default=None):
        Counting.looked += 1
        return super().get(key, default)

    def _each(self, found: Iterator) -> Iterator:
        for one in found:
            Counting.looked += 1
            yield one

    def __iter__(self):
        return self._each(super().__iter__())

    def items(self):
        return self._each(iter(super().items()))

    def values(self):
        every = super().values()
        return SimpleView(lambda: self._each(iter(every)), lambda: self._each(reversed(every)))


class SimpleView:
    def __init__(self, forward, backward) -> None:
        self.forward, self.backward = forward, backward

    def __iter__(self):
        return self.forward()

    def __reversed__(self):
        return self.backward()


@pytest.mark.slow
def test_a_trial_looks_at_as_many_records_late_in_a_sweep_as_early(bench: Bench, monkeypatch):
    usual, looked = TrialTable.__init__, []

    def counting(self, *arguments) -> None:
        usual(self, *arguments)
        self.records, self.results = Counting(), Counting()

    def on_a_gpu(config: TrialConfig):
        looked.append(Counting.looked)
        if len(looked) % 7 == 0:
            return Failure(kind=FailureKind.NON_FINITE, message="")
        return dataclasses.replace(
            surface(config), gpu_mem_peak_gib=0.5 + config.batch_size / 65536, device=GPUS[0]
        )

    monkeypatch.setattr(TrialTable, "__init__", counting)
    bench.run(many(120), on_a_gpu, devices=GPUS[:1])
    assert len(looked) >= 120
    early, late = looked[50] - looked[30], looked[115] - looked[95]
    assert 0 < late <= 1.5 * early


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        # One after the other.
        ([(0.0, 5.0), (6.0, 5.0), (20.0, 1.0)], 11.0),
        # Beside one another.
        ([(0.0, 5.0), (1.0, 2.0), (4.0, 3.0), (10.0, 1.0)], 8.0),
        ([(0.0, 60.0)] * 64, 60.0),
        # The clock was set back by a day, by 20 seconds, and forth.
        ([(86_400.0, 60.0), (86_460.0, 60.0), (10.0, 60.0), (70.0, 60.0)], 240.0),
        ([(100.0, 30.0), (130.0, 30.0), (140.0, 30.0), (120.0, 30.0)], 100.0),
        ([(0.0, 30.0), (86_400.0, 30.0)], 60.0),
    ],
)
def test_trials_beside_one_another_take_their_time_together(spans, seconds):
    assert union_seconds(spans) == pytest.approx(seconds)


def test_what_ran_beside_the_best_one_is_no_sign_that_nothing_better_comes():
    def record(number: int, ended: bool = True) -> TrialRecord:
        outcome = synthetic(100.0 - number) if ended else None
        return TrialRecord(number=number, uid="", stage="search", config=TrialConfig(), outcome=outcome)

    def is_no_better(ended: int, running: int, patience: int) -> bool:
        records = {n: record(n, n <= ended) for n in range(1, ended + running + 1)}
        table = SimpleNamespace(best_trial=lambda: records[1], records=records)
        trials = SimpleNamespace(jobs=SimpleNamespace(running=range(running)))
        return Search._is_no_better(SimpleNamespace(_table=table, _trials=trials), patience)

    assert not is_no_better(5, 0, 5)
    assert is_no_better(6, 0, 5)
    # Seven others were asked before the first one was known.
    assert not is_no_better(12, 7, 5)
    assert is_no_better(13, 7, 5)


def test_the_memory_model_sees_what_tells_and_is_made_anew_when_it_must(monkeypatch):
    made: list[list[PeakRecord]] = []

    class Model:
        def __init__(self, seen, limit) -> None:
            made.append(list(seen))

        def fits(self, config, headroom) -> bool:
            return True

    monkeypatch.setattr(memory_limit, "MemoryModel", Model)
    spec = spec_of(space=WIDE)
    table = SimpleNamespace(records={}, ended=[], limits=lambda: ())
    judge = Capacity(table, SimpleNamespace(devices=GPUS[:1]), spec.search.memory_headroom)

    def ends(number: int, peak: float | None) -> None:
        found = dataclasses.replace(synthetic(1.0), gpu_mem_peak_gib=peak, device=GPUS[0])
        outcome = found if peak else Failure(kind=FailureKind.OOM, message="")
        table.records[number] = TrialRecord(
            number=number, uid="", stage="search", config=TrialConfig(batch_size=number + 1), outcome=outcome
        )
        table.ended.append(number)
        assert judge.objection(TrialConfig()) is None

    for number in range(1000):
        ends(number, 20.0 - number / 100)
    # One for each of the first 64, then 32 until they are twice as many.
    assert 64 + 3 * 32 < len(made) < 64 + 5 * 32
    assert all(len(seen) <= MAX_SEEN for seen in made)
    assert {20.0, 19.9} <= {each.peak_gib for each in made[-1]}
    before = len(made)
    ends(1000, None)
    assert len(made) == before + 1
    assert made[-1][-1].peak_gib is None


def test_of_many_that_did_not_fit_the_largest_that_did_are_kept():
    config = TrialConfig()
    fitted = [PeakRecord(config=config, peak_gib=float(i)) for i in range(50)]
    refused = [PeakRecord(config=config, peak_gib=None)] * 1000
    told = informative_trials([*fitted, *refused])
    assert len(told) <= MAX_SEEN
    assert [each for each in told if each.peak_gib is not None] == fitted


def test_several_lives_of_a_sweep_take_the_time_of_their_trials_together(bench: Bench):
    """64 trials of a minute at once are a minute, and not an hour, of `search.minutes`."""
    spec = many(64, minutes=30)
    bench.run(spec, surface, devices=GPUS)
    folder = bench.home / "sweeps" / "toy"
    from sweeper.core.job import read_job, read_outcome, write_job, write_outcome

    for entry in Journal(folder).trials():
        job, outcome = read_job(entry.folder), read_outcome(entry.folder)
        write_job(entry.folder, dataclasses.replace(job, created_at=1000.0))
        write_outcome(entry.folder, dataclasses.replace(outcome, seconds=60.0, finished_at=1060.0))
    (folder / "result.json").unlink()
    for entry in list(Journal(folder).trials())[-10:]:
        shutil.rmtree(entry.folder)
    bench.run(spec, surface, devices=GPUS)
    assert len(bench.jobs("search")) == 10
