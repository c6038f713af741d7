"""The race at the end of a tune: in which order it runs, and what it says of the arms' training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.recording import Recording
from sweeper.race.log import BASELINE, Company, Event, Round, Started, Turned, Verified, rounds_of
from sweeper.race.verify import OTHER_SEEDS
from sweeper.results.numbers.confirmation import ratios
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.script.changes.change import CLOSE, EXACT
from sweeper.sweep.phases.lives import REPORT_SECONDS
from sweeper.sweep.stopping import StopHandler
from sweeper.tuning import final_race
from sweeper.tuning.final_race import NOT_COMPARED, FinalRace, record_seed
from sweeper.tuning.verifier import SeedRun

SEED_SECONDS = 7.0
EXACTLY = Verified(1, 0.0, kind=EXACT, extent="300 steps")
CLOSELY = Verified(1, 0.0, kind=CLOSE, extent="300 steps")
UNDECIDED = Verified(1, 0.0, kind=EXACT, is_open=True)
DIFFERENT = Verified(1, 0.0, fault="its losses differ in step 1")


def rounds(*speeds: Mapping[int, float], laps: int = 3) -> list[Round]:
    """Rounds whose processes take turns of a second, from samples per second of each arm."""
    log: list[Event] = []
    for number, one in enumerate(speeds):
        lives = {arm: number * len(one) + place for place, arm in enumerate(one)}
        log += [Started(life, arm, 0.0, 1.0, number) for arm, life in lives.items()]
        log.append(Company(is_possible=True, at=0.0))
        for lap in range(laps):
            # No two turns are equal.
            log += [Turned(lives[arm], 0.0, 1.0, 10, one[arm] * (1 + 0.001 * lap * arm)) for arm in one]
    return rounds_of(log)


@dataclass
class ScriptedRace:
    """A race whose runs are known beforehand: the rounds and what is verified after each."""

    runs: list[tuple[list[Round], dict[int, Verified]]]
    happened: list[str]
    rounds: list[Round] = field(default_factory=list)
    verified: dict[int, Verified] = field(default_factory=dict)

    def run(self, numbers: Sequence[int], fewest: int, most: int, reserve: float) -> None:
        self.happened.append(f"race but {reserve - REPORT_SECONDS:g} s")
        self.rounds, self.verified = self.runs.pop(0)

    def ratios(self) -> list[Any]:
        return ratios(self.rounds)

    def record(self) -> None:
        self.happened.append("recorded")

    def result(self, unfit: set[int]) -> ConfirmationResult:
        faster = [ratio.trial for ratio in self.ratios() if ratio.low > 1 and ratio.trial not in unfit]
        return ConfirmationResult(winner=faster[0] if faster else None, infeasible=tuple(unfit))


@dataclass
class Seeds:
    """What a verifier wants to know, and says then."""

    wanted: dict[int, list[int]]
    says: dict[int, Verified] = field(default_factory=dict)

    def seed_wanted(self, arm: int) -> SeedRun | None:
        shift = next(iter(self.wanted.get(arm, ())), None)
        return None if shift is None else SeedRun(BASELINE, shift)

    def enter_seed(self, run: SeedRun, folder: Path) -> Mapping[int, Verified]:
        for shifts in self.wanted.values():
            if run.shift in shifts:
                shifts.remove(run.shift)
        return self.says


class Raced:
    """A race that has run, with what happened in its order."""

    def __init__(
        self,
        *runs: tuple[list[Round], dict[int, Verified]],
        seeds: Seeds | None,
        events: Mapping[int, Verified] = {},
        has_time: bool = True,
        stops_in_seed: bool = False,
    ) -> None:
        self.happened: list[str] = []
        self._has_time, self._stops, self._stopping = has_time, stops_in_seed, StopHandler()
        race = cast(Any, ScriptedRace(list(runs), self.happened))
        numbers = sorted({arm for one in runs[0][0] for arm in one.lives} - {BASELINE})
        self.race = FinalRace(race, numbers, self._stopping, cast(Any, seeds), events)
        self.race.run(3, SEED_SECONDS, self.record_seed)

    def record_seed(self, run: SeedRun) -> Path | None:
        self.happened.append(f"seed {run.shift}")
        self._stopping.is_requested = self._stops
        return Path(f"seed-{run.shift}") if self._has_time else None

    def result(self) -> tuple[ConfirmationResult, set[int], Mapping[int, Verified]]:
        answers = self.race.answers()
        return *self.race.result(answers), answers


FASTER, SLOWER = {BASELINE: 100.0, 1: 150.0}, {BASELINE: 100.0, 1: 80.0}


def test_what_is_exact_needs_no_seed_and_the_time_that_is_left_is_used():
    raced = Raced(
        (rounds(FASTER, FASTER), {1: EXACTLY}),
        (rounds(FASTER, FASTER, FASTER), {1: EXACTLY}),
        seeds=Seeds({}),
    )
    result, kept, answers = raced.result()
    assert raced.happened == [f"race but {SEED_SECONDS:g} s", "race but 0 s", "recorded"]
    assert (result.winner, kept, answers) == (1, {1}, {1: EXACTLY})


def test_seeds_are_recorded_between_the_runs_for_what_may_win():
    first, second = OTHER_SEEDS[:2]
    seeds = Seeds({1: [first, second], 2: [first, second]}, says={1: CLOSELY})
    speeds = {BASELINE: 100.0, 1: 150.0, 2: 80.0}
    verified = {1: CLOSELY, 2: CLOSELY}
    raced = Raced((rounds(speeds, speeds), verified), (rounds(speeds, speeds), verified), seeds=seeds)
    assert raced.happened[1:-1] == [f"seed {first}", f"seed {second}"]
    result, kept, answers = raced.result()
    assert (result.winner, kept) == (1, {1})
    assert not answers[2].fault


def test_no_seed_is_recorded_for_what_cannot_win():
    run = rounds(SLOWER, SLOWER), {1: CLOSELY}
    raced = Raced(run, run, seeds=Seeds({1: list(OTHER_SEEDS)}))
    assert not [one for one in raced.happened if "seed" in one]
    assert raced.result()[0].winner is None


@pytest.mark.parametrize("later", [EXACTLY, DIFFERENT])
def test_the_latest_word_decides_wherever_it_is_from(later):
    faster = rounds(FASTER, FASTER)
    seeds = Seeds({1: [OTHER_SEEDS[0]]}, says={1: CLOSELY})
    raced = Raced((faster, {1: DIFFERENT}), (faster, {1: later}), seeds=seeds)
    # A later process has said something new; else the seeds have the last word.
    expected = later if later != DIFFERENT else CLOSELY
    assert raced.result()[2] == {1: expected}


def test_what_has_no_record_of_other_seeds_in_time_does_not_win():
    run = rounds(FASTER, FASTER), {1: CLOSELY}
    raced = Raced(run, run, seeds=Seeds({1: list(OTHER_SEEDS)}), has_time=False)
    assert raced.happened[1:-1] == [f"seed {OTHER_SEEDS[0]}"]
    result, kept, answers = raced.result()
    assert (result.winner, kept, answers[1].fault) == (None, {1}, NOT_COMPARED)


def test_after_ctrl_c_nothing_more_is_run():
    run = rounds(FASTER, FASTER), {1: CLOSELY}
    raced = Raced(run, seeds=Seeds({1: list(OTHER_SEEDS)}), stops_in_seed=True)
    assert raced.happened == [f"race but {SEED_SECONDS:g} s", f"seed {OTHER_SEEDS[0]}"]


@pytest.mark.parametrize(
    ("known", "winner", "is_kept"),
    [(EXACTLY, 1, True), (CLOSELY, None, True), (DIFFERENT, None, True), (UNDECIDED, None, False)],
)
def test_without_records_only_what_was_exact_wins(known, winner, is_kept):
    run = rounds(FASTER, FASTER), {}
    result, kept, answers = Raced(run, run, seeds=None, events={1: known}).result()
    assert (result.winner, bool(kept)) == (winner, is_kept)
    assert bool(answers[1].fault) == (winner is None)


def test_what_was_not_verified_at_all_does_not_win():
    run = rounds(FASTER, FASTER), {}
    result, kept, _ = Raced(run, run, seeds=Seeds({})).result()
    assert (result.winner, kept) == (None, set())


@pytest.mark.parametrize(("laps", "carries"), [(1, False), (3, True)])
def test_a_single_turn_of_each_tells_nothing(laps, carries):
    run = rounds(FASTER, laps=laps), {1: EXACTLY}
    assert Raced(run, run, seeds=Seeds({})).race.carries_interval == carries


@pytest.mark.parametrize(
    ("run", "left", "name"),
    [
        (SeedRun(BASELINE, 1000), 9.0, "seed-1000"),
        (SeedRun(3, 1000), 9.0, "seed-1000-3"),
        # What the answer does not hang on is not begun when the time is up.
        (SeedRun(BASELINE, 1000), -1.0, "seed-1000"),
        (SeedRun(BASELINE, 3000), -1.0, None),
        (SeedRun(3, 1000), -1.0, None),
    ],
)
def test_the_arm_that_is_asked_for_is_recorded_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: SeedRun, left: float, name: str | None
):
    monkeypatch.setattr(final_race, "seconds_at_most", lambda *_: 100.0)
    monkeypatch.setattr(final_race, "limit_recording", lambda recording, *_: recording)
    ran: list[tuple[Path, Job]] = []
    trials = SimpleNamespace(
        budget=SimpleNamespace(seconds_left=left),
        job=lambda stage, config, params: Job(uid=stage, config=config, params=params),
        run=lambda folder, job: ran.append((folder, job)),
    )
    context = SimpleNamespace(journal=SimpleNamespace(setup_folder=lambda name: tmp_path / name))
    verifier = SimpleNamespace(long_recording=lambda shift: Recording(shift=shift))
    configs = [TrialConfig(args={"precision": arm}) for arm in ("original", "", "", "bf16")]
    folder = record_seed(cast(Any, context), cast(Any, trials), cast(Any, verifier), configs.__getitem__, run)
    assert folder == (tmp_path / name if name else None)
    assert [(at, job.config, job.recording) for at, job in ran] == (
        [(folder, configs[run.arm], Recording(shift=run.shift))] if name else []
    )
