"""Rounds while the search goes on: when there are any, and what the confirmation makes of them."""

from __future__ import annotations

import json
import shutil

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of, surface, throughput

from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.record import BASELINE
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases import early_rounds
from sweeper.sweep.progress import SweepProgress

pytestmark = pytest.mark.slow

SPEC = {
    "space": {"batch_size": {"type": "categorical", "choices": [64, 128, 256, 512]}},
    "search": {"trials": 4, "minutes": 60},
}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_rounds, "AT", (0.0,))


def rounds_of(bench: Bench) -> list[dict[int, float]]:
    rounds = early_rounds.early_rounds(Journal(bench.home / "sweeps" / "toy"))
    return [one.speeds for one in rounds]


def result_of(bench: Bench) -> dict:
    return json.loads((bench.home / "sweeps" / "toy" / "result.json").read_text())


def test_a_short_sweep_has_none(bench):
    bench.run(spec_of(**SPEC))
    assert rounds_of(bench) == []


def test_the_best_so_far_runs_beside_the_baseline_and_counts_in_the_end(bench, at_once):
    bench.run(spec_of(**SPEC))
    early, journal = rounds_of(bench), Journal(bench.home / "sweeps" / "toy")
    assert len(early) == 1
    assert all(BASELINE in each and len(each) == 2 for each in early)
    assert len(journal.rounds("final")) == 3


def test_a_sweep_that_goes_on_repeats_none(bench, at_once):
    bench.run(spec_of(**SPEC))
    first = rounds_of(bench)
    folder = bench.home / "sweeps" / "toy"
    # As if it had been killed after two searched trials.
    (folder / "result.json").unlink()
    for number in sorted(int(each.name) for each in (folder / "trials").iterdir())[-2:]:
        shutil.rmtree(folder / "trials" / f"{number:04d}")
    bench.run(spec_of(**SPEC))
    assert bench.jobs("search")
    assert rounds_of(bench) == first


def test_a_round_that_was_cut_off_does_not_count(bench, at_once):
    bench.run(spec_of(**SPEC))
    folder = bench.home / "sweeps" / "toy"
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "trials" / "0004")
    log = folder / "races/early-0000/race.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    bench.run(spec_of(**SPEC))
    assert [len(each) for each in rounds_of(bench)] == [2]
    assert len(list(folder.glob("races/early-*"))) == 2


def test_where_there_may_be_none_those_of_before_are_no_obstacle(bench, at_once):
    bench.run(spec_of(**SPEC))
    folder = bench.home / "sweeps" / "toy"
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "trials" / "0004")
    bench.run(spec_of(**SPEC, confirm={"rounds": 0}))
    assert result_of(bench)["search_end"]


@pytest.mark.parametrize(
    "change",
    [
        {"confirm": {"rounds": 0}},
        {"search": {"trials": 4, "minutes": None}},
        {"objectives": [{"maximize": "throughput"}, {"minimize": "val_loss"}], "constraints": {}},
    ],
)
def test_some_sweeps_have_none(bench, at_once, change):
    bench.run(spec_of(**{**SPEC, **change}))
    assert rounds_of(bench) == []


def test_a_round_that_would_take_long_is_left_out(bench, at_once, monkeypatch):
    monkeypatch.setattr(early_rounds, "MAX_SHARE", 1e-6)
    bench.run(spec_of(**SPEC))
    assert rounds_of(bench) == []


def test_a_failed_process_spoils_its_round_alone(bench, at_once):
    seen = []

    def answer(config):
        job = bench.launcher.jobs[-1]
        if job.stage == "race" and not seen:
            seen.append(config)
            return Failure(kind=FailureKind.CRASH, message="died")
        return surface(config)

    bench.run(spec_of(**SPEC), answer)
    assert [len(each) for each in rounds_of(bench)] == [2]
    assert len(list((bench.home / "sweeps" / "toy").glob("races/early-*"))) == 2
    assert result_of(bench)["winner"] is not None


def test_no_two_rounds_follow_each_other(bench, monkeypatch):
    monkeypatch.setattr(early_rounds, "AT", (0.0, 0.0))
    bench.run(spec_of(**SPEC))
    assert len(rounds_of(bench)) == 1


def test_there_is_none_long_after_its_time(bench, monkeypatch):
    monkeypatch.setattr(early_rounds, "AT", (-1.0,))
    bench.run(spec_of(**SPEC))
    assert rounds_of(bench) == []


def test_a_machine_that_has_drifted_widens_the_interval(bench, at_once):
    def drifting(config):
        # As the search ends, the baseline gets slower for good.
        is_late = sum(each.stage == "race" for each in bench.launcher.jobs) > 4
        return synthetic(throughput(config) * (0.7 if is_late and config.batch_size == 64 else 1.0))

    only = {"batch_size": {"type": "categorical", "choices": [512]}}
    bench.run(spec_of(**{**SPEC, "space": only}), drifting)
    (found,) = (each for each in result_of(bench)["ratios"] if each["trial"] == result_of(bench)["winner"])
    now = found["sitting_low"] * found["sitting_high"]
    assert found["ratio"] ** 2 < 0.95 * now


def test_the_search_goes_on_after_one_also_on_the_screen(bench, at_once, monkeypatch):
    phases: list[str] = []
    begin = SweepProgress.begin

    def noted(self: SweepProgress, phase: str, total: int = 0) -> None:
        phases.append(phase)
        begin(self, phase, total)

    monkeypatch.setattr(SweepProgress, "begin", noted)
    bench.run(spec_of(**SPEC))
    first = phases.index("confirming")
    assert phases[first - 1] == phases[first + 1] == "searching"
    assert phases[first + 2] == "confirming"
