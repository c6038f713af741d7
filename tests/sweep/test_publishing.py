"""A tracker that is away costs the sweep nothing, and is caught up with later."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from measurements import measurement, record_of
from replays import Bench, spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.errors import StorageError
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.record import TrialRecord
from sweeper.sweep.publishing import view_of
from sweeper.tracking import RunView, SweepInfo


class Shelf:
    """A tracker that remembers, and is away from its `away`-th call on, for `calls` calls."""

    def __init__(self, away: int = 10**9, calls: int = 10**9) -> None:
        self.shown: dict[int, RunView] = {}
        self.info: SweepInfo | None = None
        self.calls, self._away = 0, range(away, away + calls)
        self.closed = False

    def _call(self) -> None:
        self.calls += 1
        if self.calls - 1 in self._away:
            raise StorageError("the server does not answer")

    def open(self, sweep: SweepInfo) -> None:
        self.info = sweep
        self._call()

    def track(self, record: TrialRecord, view: RunView) -> None:
        assert self.info is not None
        self._call()
        self.shown[record.number] = view

    def close(self) -> None:
        self.closed = True


def same_sweep(one: Bench, other: Bench) -> bool:
    trials = [sorted((bench.home / "sweeps/toy/trials").glob("*/told.json")) for bench in (one, other)]
    return [p.read_text() for p in trials[0]] == [p.read_text() for p in trials[1]] and bool(trials[0])


@pytest.mark.parametrize("away", [0, 1, 5])
def test_a_tracker_that_is_away_changes_nothing_but_what_is_pending(bench, tmp_path, away):
    ran = bench.run(tracker=Shelf(away))
    assert ran.ran
    assert ran.problem == "the server does not answer"
    # At the end the winner, the finalist and the baseline have changed, and all that was never shown.
    assert ran.pending > 0
    undisturbed = Bench(tmp_path / "undisturbed")
    assert undisturbed.run(tracker=Shelf()).pending == 0
    assert same_sweep(bench, undisturbed)


def test_a_tracker_that_is_away_is_asked_once_and_at_the_end(bench):
    shelf = Shelf(0)
    bench.run(tracker=shelf)
    assert shelf.calls == 2
    assert shelf.closed


def test_a_tracker_that_comes_back_is_shown_everything_at_the_end(bench):
    shelf = Shelf(3, calls=1)
    assert bench.run(tracker=shelf).pending == 0
    assert sorted(shelf.shown) == list(range(10))


def test_what_is_pending_is_shown_by_the_same_command_later(bench):
    assert bench.run(tracker=Shelf(0)).pending == 10
    shelf = Shelf()
    again = bench.run(tracker=shelf)
    assert not again.ran
    assert again.pending == 0
    assert sorted(shelf.shown) == list(range(10))
    assert bench.launcher.jobs == []
    shelf = Shelf()
    bench.run(tracker=shelf)
    assert shelf.calls == 0


def test_every_trial_is_shown_as_it_stands_at_the_end(bench):
    shelf = Shelf()
    bench.run(tracker=shelf)
    assert shelf.info is not None
    assert shelf.info.name == "toy"
    assert shelf.info.synthetic
    stages = {number: view.stage for number, view in shelf.shown.items()}
    assert stages[0] == "baseline"
    assert sorted(stages.values()).count("confirmed") == 1
    assert sorted(stages.values()).count("finalist") == 1
    (winner,) = (view for view in shelf.shown.values() if view.stage == "confirmed")
    assert winner.rank == 1
    assert winner.confirmation is not None
    assert winner.confirmation.ratio is not None
    assert winner.x_baseline == pytest.approx(winner.confirmation.ratio)


def test_a_run_says_why_it_is_slow_and_what_disturbed_it(bench):
    def answer(config: TrialConfig) -> Measurement | Failure:
        if config.loader.kind == "rows":
            return measurement(data=0.5, fits_device=True)
        if config.batch_size > 400:
            return Failure(kind=FailureKind.OOM, message="CUDA out of memory")
        return measurement(windows={"flags": ("other processes took cores", "the host took cores (steal)")})

    shelf = Shelf()
    bench.run(spec_of(search={"trials": 12}, confirm={"rounds": 0}), answer, tracker=shelf)
    baseline = shelf.shown[0]
    assert (baseline.verdict, baseline.contamination) == ("input-bound", "")
    lines = baseline.note.splitlines()
    assert "input-bound: data wait 50 % of the step" in lines
    assert any(line.startswith("next: `loader.kind: resident`") for line in lines)
    # The tree as it stands, words as words.
    fence, end = (number for number, line in enumerate(lines) if line == "```")
    assert [line.startswith(" ") for line in lines[fence + 1 : end]] == [True] * 5
    assert not any(line.startswith(" ") for line in lines[:fence] + lines[end:])
    others = [view for number, view in shelf.shown.items() if number > 1]
    failed = [view for view in others if view.verdict is None]
    assert 0 < len(failed) < len(others)
    assert {(view.note, view.contamination) for view in failed} == {("**oom**: CUDA out of memory", "")}
    for view in others:
        if view.verdict is not None:
            assert view.verdict == "compute-bound"
            assert view.contamination == "other processes took cores, the host took cores (steal)"
            assert "do not rely on its figures" in view.note


def test_what_is_not_feasible_says_that_before_its_card():
    beyond = dataclasses.replace(record_of(measurement(data=0.5)), violations={"val_loss": 0.031, "b": -1.0})
    first, *card = view_of(beyond, (), 1.5).note.splitlines()
    assert first == "Not feasible: beyond the limit on `val_loss` by 3.1%."
    assert card[0] == ""
    assert card[1].startswith("input-bound")
    assert any("◄ the cause" in line for line in card)


def test_a_record_is_sent_once_for_every_state(bench):
    shelf = Shelf()
    bench.run(tracker=shelf)
    # Opening, ten trials, the baseline with its loss, then what confirmation has changed.
    assert shelf.calls == 1 + 10 + 1 + len(
        [view for view in shelf.shown.values() if view.confirmation or view.rank]
    )
    marks = list(Path(bench.home).rglob("tracked"))
    assert len(marks) == 10
