"""A tracker that is away costs the sweep nothing, and is caught up with later."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import time
from pathlib import Path

import pytest
from measurements import measurement, record_of
from parts.replay import ReplayLauncher
from replays import Bench, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.record import TrialRecord
from sweeper.errors import StorageError
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.sweep.publish import view_of
from sweeper.sweep.run import run_sweep
from sweeper.tracking import RejectedError, RunView, SweepInfo


class Shelf:
    """A tracker that remembers, and is away from its `away`-th call on, for `calls` calls."""

    place = ""

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
    trials = [
        sorted((bench.home / "sweeps/toy/trials").glob("*/search_result.json")) for bench in (one, other)
    ]
    return [p.read_text() for p in trials[0]] == [p.read_text() for p in trials[1]] and bool(trials[0])


@pytest.mark.parametrize("away", [0, 1, 5])
def test_a_tracker_that_is_away_changes_nothing_but_what_is_pending(bench, tmp_path, away):
    done = bench.run(tracker=Shelf(away))
    assert done.was_run
    assert done.problem == "the server does not answer"
    # At the end the winner, the finalist and the baseline have changed, and all that was never shown.
    assert done.pending > 0
    undisturbed = Bench(tmp_path / "undisturbed")
    assert undisturbed.run(tracker=Shelf()).pending == 0
    assert same_sweep(bench, undisturbed)


def test_a_tracker_that_is_away_is_asked_a_few_times_only(bench):
    shelf = Shelf(0)
    bench.run(tracker=shelf)
    # Two at once, one after a pause of a second or two, and three in a row at the end.
    assert 2 <= shelf.calls <= 9
    assert shelf.closed


def test_a_tracker_that_comes_back_is_shown_everything_at_the_end(bench):
    shelf = Shelf(3, calls=1)
    assert bench.run(tracker=shelf).pending == 0
    assert sorted(shelf.shown) == list(range(10))


def test_what_is_pending_is_shown_by_the_same_command_later(bench):
    assert bench.run(tracker=Shelf(0)).pending == 10
    shelf = Shelf()
    again = bench.run(tracker=shelf)
    assert not again.was_run
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
    assert sorted(stages.values()).count("winner") == 1
    assert sorted(stages.values()).count("candidate") == 1
    (winner,) = (view for view in shelf.shown.values() if view.stage == "winner")
    assert winner.rank == 1
    assert winner.confirmation is not None
    assert winner.confirmation.ratio is not None
    assert winner.speedup == pytest.approx(winner.confirmation.ratio)


def test_a_run_says_why_it_is_slow_and_what_disturbed_it(bench):
    def answer(config: TrialConfig) -> Measurement | Failure:
        if config.loader.kind == "rows":
            return measurement(data=0.5, fits_device=True)
        if config.batch_size > 400:
            return Failure(kind=FailureKind.OOM, message="CUDA out of memory")
        return measurement(
            windows={"disturbances": ("other processes took cores", "the host took cores (steal)")}
        )

    shelf = Shelf()
    bench.run(spec_of(search={"trials": 12}, confirm={"rounds": 0}), answer, tracker=shelf)
    baseline = shelf.shown[0]
    assert (baseline.verdict, baseline.contamination) == ("input-bound", "")
    lines = baseline.note.splitlines()
    assert "input-bound: waiting for data takes 50% of the step" in lines
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
            assert "do not rely on these figures" in view.note


def test_what_is_not_feasible_says_that_before_its_card():
    beyond = dataclasses.replace(record_of(measurement(data=0.5)), violations={"val_loss": 0.031, "b": -1.0})
    first, *trial_card = view_of(beyond, (), 1.5).note.splitlines()
    assert first == "Not feasible: over the limit on `val_loss` by 3.1%."
    assert trial_card[0] == ""
    assert trial_card[1].startswith("input-bound")
    assert any("◄ the cause" in line for line in trial_card)


def test_a_record_is_sent_once_for_every_state(bench):
    shelf = Shelf()
    bench.run(tracker=shelf)
    changed = len([view for view in shelf.shown.values() if view.confirmation or view.rank])
    # Opening, what the baseline has, its loss, the decision; ten trials, the baseline with its loss, and
    # what confirmation has changed. What follows within a moment may be sent as one.
    assert 11 + changed <= shelf.calls <= 4 + 10 + 1 + changed
    marks = list(Path(bench.home).rglob("publication"))
    assert len(marks) == 1 + 10


class Slow(Shelf):
    """A server that hangs: every call takes a second and comes to nothing."""

    def _call(self) -> None:
        super()._call()
        time.sleep(1)
        raise StorageError("it does not answer in time")


@pytest.mark.slow
def test_a_server_that_hangs_holds_up_no_trial(bench, tmp_path):
    def took(home: Path) -> float:
        folder = home / "sweeps/toy"
        return (folder / "result.json").stat().st_mtime - (folder / "sweep.yaml").stat().st_mtime

    undisturbed = Bench(tmp_path / "undisturbed")
    assert undisturbed.run(tracker=Shelf()).pending == 0
    ran = bench.run(tracker=Slow())
    # The first second is waited for, before the first trial; every call would be more than ten.
    assert took(bench.home) < took(undisturbed.home) + 4
    assert ran.pending == 10
    assert ran.problem == "it does not answer in time"
    assert same_sweep(bench, undisturbed)


class Poisoned(Shelf):
    """Does not take trial 4."""

    def track(self, record: TrialRecord, view: RunView) -> None:
        if record.number == 4:
            raise RejectedError("MLflow did not accept `004`: too odd")
        super().track(record, view)


def test_a_record_that_is_rejected_holds_up_no_other_and_is_named(bench):
    shelf = Poisoned()
    ran = bench.run(tracker=shelf)
    assert (ran.pending, ran.problem) == (1, "MLflow did not accept `004`: too odd")
    assert sorted(shelf.shown) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    shelf = Shelf()
    assert bench.run(tracker=shelf).pending == 0
    assert sorted(shelf.shown) == [4]


def test_another_place_gets_everything(bench):
    bench.run(tracker=Shelf())
    there = Shelf()
    there.place = "http://elsewhere"
    bench.run(tracker=there)
    assert sorted(there.shown) == list(range(10))


def test_what_is_made_at_the_end_is_shown_with_the_winner(bench, tmp_path):
    seen = []

    def finish(sweep: LoadedSweep) -> list[Path]:
        seen.append(sweep.state)
        report = sweep.journal.folder / "report.html"
        report.write_text("first")
        return [report]

    shelf = Shelf()
    run_sweep(bench.home, spec_of(), shelf, bench.watcher, launch=replaying, finish=finish)
    assert seen == ["finished"]
    files = {number: view.files for number, view in shelf.shown.items() if view.files}
    (winner,) = (number for number, view in shelf.shown.items() if view.rank == 1)
    assert files == {winner: (str(bench.home / "sweeps/toy/report.html"),)}
    # Made once; shown again where it has become another.
    shelf = Shelf()
    run_sweep(bench.home, spec_of(), shelf, bench.watcher, launch=replaying, finish=finish)
    assert (len(seen), shelf.calls) == (1, 0)
    (bench.home / "sweeps/toy/report.html").write_text("second")
    shelf = Shelf()
    bench.run(tracker=shelf)
    assert list(shelf.shown) == [winner]


def test_a_failure_to_make_it_costs_one_line(bench):
    def finish(sweep: LoadedSweep) -> list[Path]:
        raise ZeroDivisionError("no figures")

    ran = run_sweep(bench.home, spec_of(), Shelf(), bench.watcher, launch=replaying, finish=finish)
    assert ran.pending == 0
    assert ran.journal.result() is not None
    line = "No report was made (ZeroDivisionError: no figures); the sweep itself is complete."
    assert [each for each in bench.watcher.lines if "report" in each] == [line]


def test_the_experiment_says_the_decision_first_and_what_to_do_next(bench):
    shelf = Shelf()
    bench.run(tracker=shelf)
    assert shelf.info is not None
    first, *others = shelf.info.note.split("\n\n")
    assert re.fullmatch(
        r"\*\*Trial \d is .+x as fast as your baseline, confirmed"
        r" \(95% interval for a later run \[.*\], 3 rounds\)\.\*\*",
        first,
    )
    assert "Use it: `sweeper export toy`." in others
    assert others[-1].startswith("Ran ")
    assert {"throughput", "val_loss"} <= set(shelf.info.metrics)
    assert "gpu_util_pct" not in shelf.info.metrics


def test_where_nothing_is_better_the_experiment_says_so(bench):
    shelf = Shelf()
    bench.run(answer=lambda config: measurement(), tracker=shelf)
    assert shelf.info is not None
    assert shelf.info.note.startswith("**No trial is shown to be better than your baseline (")


def test_the_commit_and_the_data_are_known_and_no_secret_is(bench, monkeypatch):
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        mine = ["-c", "user.name=me", "-c", "user.email=me@x"]
        subprocess.run(["git", *mine, *command], check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    shelf = Shelf()
    # A password in it is refused before; a name is left out.
    data = {"source": "https://me@host/rows", "hub_token": "hunter2x", "rows": 5}
    bench.run(spec_of(data=data), tracker=shelf)
    info = shelf.info
    assert info is not None
    assert info.provenance["mlflow.source.git.commit"] == head.strip()
    assert info.provenance["sweeper.version"]
    assert info.dataset is not None
    assert (info.dataset.name, info.dataset.source) == ("rows", "https://host/rows")
    assert "hunter2x" not in repr(info)
    # What it began with, wherever the code has gone since.
    subprocess.run(["git", *mine, "commit", "-q", "--allow-empty", "-m", "y"], check=True)
    again = Shelf()
    again.place = "elsewhere"
    bench.run(spec_of(data=data), tracker=again)
    assert again.info is not None
    assert again.info.provenance == info.provenance


def test_without_a_repository_there_is_no_commit(bench, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path.cwd().parent))
    shelf = Shelf()
    bench.run(tracker=shelf)
    assert shelf.info is not None
    assert shelf.info.provenance["mlflow.source.git.commit"] == ""


def replaying(folder: Path) -> ReplayLauncher:
    return ReplayLauncher(surface)
