"""Races in virtual time: they end, in time, with an answer that their processes carry."""

from __future__ import annotations

import ast
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from race.virtual import Nature, VirtualLives, raced

import sweeper.race
from sweeper.race import race
from sweeper.race.drift import Drift
from sweeper.race.log import (
    Company,
    Ended,
    Event,
    Life,
    Started,
    Turned,
    Verified,
    drop_unfinished,
    rounds_of,
    rounds_of_speeds,
)
from sweeper.race.policy import CLEAR, FAILED, MAX_FAILURES, TIME, Done, Policy, Start, keeps_failing
from sweeper.race.storage import StoredLog, read
from sweeper.race.tally import EARLY_LEVEL, Tally, Variance

BOTH = (0, 1)


def drawn(seed: int) -> tuple[Nature, float]:
    """Returns a nature, quiet or wild, and a limit in seconds."""
    draw = random.Random(-seed - 1)
    nature = Nature(
        logs=(0.0, *(draw.choice([0.0, 0.03, -0.1, 0.5, -2.0]) for _ in range(draw.choice([1, 1, 1, 3])))),
        process=draw.choice([0.0, 0.02, 0.15]),
        turn=draw.choice([0.0, 0.02, 0.3]),
        start_seconds=draw.choice([0.1, 4.0, 40.0]),
        step_seconds=draw.choice([0.001, 0.05, 0.5, 4.0]),
        drift=draw.choice([0.0, 0.05]),
        death=draw.choice([0.0, 0.0, 0.1, 0.6]),
        stall=draw.choice([0.0, 0.0, 0.02]),
        company=draw.choice([0.0, 0.5, 1.0]),
    )
    return nature, draw.choice([10.0, 60.0, 300.0])


def check(seed: int) -> None:
    nature, seconds = drawn(seed)
    log, policy, lives = raced(nature, seed, seconds)
    rounds = rounds_of(log)
    assert not lives.alive
    assert policy.num_complete(rounds) == len(rounds)
    # The same end from every prefix.
    again = Policy(arms=policy.arms, seconds=policy.seconds, seed=policy.seed)
    assert all(again.next(tuple(log[:events]), at) == action for events, at, action in policy.decided)
    (*_, (_, ended_at, done)) = policy.decided
    assert isinstance(done, Done)
    # Each process has taken as many turns as those of its round, but for one.
    if not nature.death:
        for each in rounds:
            turns = [len(life.turns) for life in each.lives.values()]
            assert min(turns) >= 1
            assert max(turns) - min(turns) <= (ended_at > seconds) or not each.is_in_company
    if done.why == CLEAR:
        for arm in policy.arms_after(rounds)[1:]:
            tally = Tally.of(rounds, arm)
            half = tally.half_width(EARLY_LEVEL)
            assert abs(tally.mean) > half or half <= math.log(1.01)
        return
    if done.why == FAILED:
        latest = rounds[-MAX_FAILURES:]
        is_baseline_failing = not any(0 in one.speeds for one in latest)
        assert is_baseline_failing or all(keeps_failing(rounds, arm) for arm in policy.arms[1:])
        return
    assert done.why == TIME
    if nature.stall or len(rounds) == 1:
        return
    # A round is not begun unless one like the earlier ones fits, and its turns end with the time; but a start
    # may take longer than the earlier ones, and each process takes a turn.
    starts = [life.started.seconds for each in rounds for life in each.lives.values()]
    slower = len(policy.arms) * (max(starts) - min(starts))
    one_turn = sum(life.turns[-1].seconds + 0.3 for life in rounds[-1].lives.values() if life.turns)
    assert ended_at <= seconds + max(15.0, 0.1 * seconds, slower + one_turn)


def test_random_races_end_in_time_with_an_answer_that_their_processes_carry():
    for seed in range(100):
        check(seed)


@pytest.mark.soak
def test_ten_thousand_random_races_do():
    for seed in range(10_000):
        check(seed)


def test_where_the_fastest_fails_those_that_it_left_behind_go_on():
    policy = Policy(arms=(0, 1, 2), seconds=math.inf)
    rounds = rounds_of_speeds([{0: 1.0, 1: 4.0, 2: 1.5}] * 3)
    assert policy.arms_after(rounds) == [0, 1]
    for number in range(3, 3 + MAX_FAILURES):
        (alone,) = rounds_of_speeds([{0: 1.0}])
        alone.lives[1] = Life(9, 1, Started(9, 1, 0.0, 0.0, number), is_over=True)
        rounds.append(alone)
    assert policy.arms_after(rounds) == [0, 2]


def test_a_clear_difference_takes_one_process_of_each():
    log, policy, lives = raced(Nature(logs=(0.0, -math.log(1.4))), 0)
    assert len(rounds_of(log)) == 1
    assert policy.decided[-1][2] == Done(CLEAR)
    assert lives.most_alive == 2


def test_equals_take_the_time_there_is():
    log, policy, lives = raced(Nature(process=0.03), 1, 120.0)
    assert policy.decided[-1][2] == Done(TIME)
    assert 110 < lives.clock.now < 121
    assert len(rounds_of(log)) > 4


def test_a_round_whose_time_is_up_ends_after_a_turn_of_each():
    log, policy, lives = raced(Nature(process=0.03), 1, 5.0)
    assert [len(life.turns) for each in rounds_of(log) for life in each.lives.values()] == [1, 1]
    assert policy.decided[-1][2] == Done(TIME)
    assert lives.clock.now < 15


def test_a_lap_is_not_completed_after_the_time_is_up():
    """A turn may be asked for in an evaluation, which comes first: here, it takes a minute."""
    for seed in range(20):
        log, _, _ = raced(Nature(logs=(0.0, 0.0, 0.0, 0.0), stall=0.2), seed, 120.0)
        late = [event for event in log if isinstance(event, Turned) and event.at > 120.0]
        laps = max(len(life.turns) for life in rounds_of(log)[-1].lives.values())
        assert len(late) <= 1 or laps == 1


def test_time_that_is_too_short_for_another_round_is_used_for_turns():
    log, policy, lives = raced(Nature(process=0.03), 1, 18.0)
    (found,) = rounds_of(log)
    assert 16 < lives.clock.now < 20
    assert len(found.lives[0].turns) == len(found.lives[1].turns) > 3
    assert policy.decided[-1][2] == Done(TIME)


def test_no_time_is_left_over_where_a_round_of_many_turns_would_be_best():
    for seed in range(10):
        nature = Nature(logs=(0.0, 0.2), turn=0.3, start_seconds=12.0, step_seconds=0.3)
        _, _, lives = raced(nature, seed, 95.0)
        assert 85 < lives.clock.now < 100


@pytest.mark.parametrize(("seconds", "action"), [(37.0, Start), (35.0, Done)])
def test_a_round_of_one_turn_is_better_than_time_that_is_left_over(seconds: float, action: type):
    """The first round has taken 20 s: starts of 5 s, six turns of a second, and 4 s until all had ended."""
    policy = Policy(arms=(0, 1), seconds=seconds)
    log: list[Event] = [Started(0, 0, 5.0, 5.0), Company(is_possible=True, at=5.0), Started(1, 1, 10.0, 5.0)]
    log += [Turned(n % 2, 11.0 + n, 1.0, 50, 9.0 + 0.1 * n) for n in range(6)]
    log += [Ended(0, 18.0), Ended(1, 20.0)]
    assert isinstance(policy.next(log, 20.0), action)


def test_processes_take_turns_in_random_order():
    log, _, _ = raced(Nature(process=0.03), 2)
    turns = [event.life % 2 for event in log if isinstance(event, Turned)]
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert all(sorted(each) == [0, 1] for each in pairs)
    assert len(set(pairs)) == 2


def test_without_room_one_follows_the_other():
    log, _, lives = raced(Nature(company=0.0), 3)
    assert lives.most_alive == 1
    kinds = [type(event) for event in log if not isinstance(event, Company)]
    assert kinds[: kinds.index(Ended) + 2] == [Started, Turned, Turned, Turned, Ended, Started]


def test_turns_are_many_where_processes_are_alike():
    def turns(process: float, turn: float, start: float = 6.0) -> list[int]:
        log, _, _ = raced(Nature(process=process, turn=turn, start_seconds=start), 4, 60 * start + 90.0)
        return [len(each.lives[0].turns) for each in rounds_of(log)]

    assert max(turns(0.0, 0.1)) > 5
    assert set(turns(0.2, 0.01)[4:-1]) == {1}
    assert max(turns(0.0, 0.1, start=0.01)) <= 3, "a new process costs nothing"


def test_turns_are_long_where_steps_are():
    def seconds(step: float) -> float:
        nature = Nature(logs=(0.0, -math.log(1.6)), step_seconds=step, process=0.0, turn=0.0)
        return Policy(arms=BOTH, seconds=120.0).turn_seconds(rounds_of(raced(nature, 0)[0]))

    assert Policy(arms=BOTH, seconds=300.0).turn_seconds([]) == 1.0
    assert seconds(0.001) == 1.0
    assert seconds(0.05) == pytest.approx(2.0), "the slowest decides"
    assert seconds(0.5) == 3.0
    assert seconds(2.0) == pytest.approx(9.6)


def test_a_fault_ends_all():
    class Broken(VirtualLives):
        def turn(self, life: int) -> race.Taken | None:
            raise ValueError("broken")

    lives = Broken(Nature(), random.Random(0))
    with pytest.raises(ValueError, match="broken"):
        race.run(Policy(arms=BOTH, seconds=60.0), lives, [], clock=lives.clock)
    assert not lives.alive


def test_each_complete_round_is_told():
    told: list[int] = []
    log: list[Event] = []
    lives = VirtualLives(Nature(process=0.03), random.Random(0))

    def seen() -> None:
        told.append(len(rounds_of(log)))
        assert rounds_of(log)[-1].is_over(BOTH)

    race.run(Policy(arms=BOTH, seconds=60.0), lives, log, seen, lives.clock)
    assert told == list(range(1, len(rounds_of(log)) + 1))


def test_a_race_needs_the_standard_library_alone():
    for path in Path(sweeper.race.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                # The hook and the changes run in any script's interpreter.
                ours = ("sweeper.race", "sweeper.script.inside.", "sweeper.script.changes.")
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(ours), path


def test_an_arm_that_is_clearly_slower_is_not_continued():
    nature = Nature(logs=(0.0, 0.7, 0.71, 0.0))
    log, policy, _ = raced(nature, 5, precision=math.log(1.05), min_rounds=4)
    arms = [set(one.lives) for one in rounds_of(log)]
    assert arms[0] == {0, 1, 2, 3}
    assert all(one == {0, 1, 2} for one in arms[2:])
    assert len(arms) >= 4
    assert policy.decided[-1][2] == Done(CLEAR)


def test_an_interval_that_is_to_be_narrow_takes_its_processes():
    def num_rounds(precision: float, **rules: Any) -> int:
        log, _, _ = raced(Nature(logs=(0.0, 0.5), process=0.1), 6, 3600.0, precision=precision, **rules)
        return len(rounds_of(log))

    assert num_rounds(0.5) == 1
    assert num_rounds(0.5, min_rounds=4) == 4
    assert num_rounds(0.05) > 10
    assert num_rounds(0.05, max_rounds=5) == 5
    # Beside the drift until a later measurement, it need not be narrow.
    much = Variance(0.2**2, 26)
    assert num_rounds(0.05, drift=Drift(ratio=much, speed=much)) < 8


def test_what_never_takes_a_turn_is_given_up():
    class Stillborn(VirtualLives):
        def turn(self, life: int) -> race.Taken | None:
            return None

    lives, log = Stillborn(Nature(), random.Random(0)), list[Event]()
    assert race.run(Policy(arms=BOTH, seconds=60.0), lives, log, clock=lives.clock) == Done(FAILED)
    assert len(rounds_of(log)) == 2
    assert not lives.alive


def test_where_none_can_rest_each_takes_one_turn():
    nature = Nature(process=0.0, turn=0.1, company=0.0)
    log, _, lives = raced(nature, 8, max_turns=1, shortest_turn=3.0, longest_turn=3.0)
    assert {len(life.turns) for one in rounds_of(log) for life in one.lives.values()} == {1}
    assert min(event.seconds for event in log if isinstance(event, Turned)) >= 3.0
    assert lives.most_alive == 1


@pytest.mark.parametrize("company", [0.0, 1.0])
def test_a_race_that_was_cut_off_goes_on_as_if_nothing_had_been(tmp_path: Path, company: float):
    """Its file has what happened; a process that had not ended is gone."""

    class CutOffError(Exception):
        pass

    class Cut(StoredLog):
        at = 0

        def append(self, event: Event) -> None:
            if len(self) == self.at:
                raise CutOffError
            super().append(event)

    nature, path = Nature(process=0.03, company=company), tmp_path / "race.jsonl"
    for cut in range(3, 40):
        path.unlink(missing_ok=True)
        Cut.at = cut
        policy, lives = Policy(arms=BOTH, seconds=200.0), VirtualLives(nature, random.Random(cut))
        with pytest.raises(CutOffError):
            race.run(policy, lives, Cut(path), clock=lives.clock)
        before = read(path)
        assert len(before) == cut
        with path.open("a") as file:
            file.write('{"event": "tur')
        log = StoredLog(path)
        assert read(path) == log == drop_unfinished(before)
        complete = [one for one in rounds_of(before) if one.is_over(BOTH)]
        assert [one for one in rounds_of(log) if one.is_over(BOTH)] == complete, "no complete round is lost"
        lives = VirtualLives(nature, random.Random(0))
        race.run(policy, lives, log, clock=lives.clock)
        assert read(path) == list(log)
        assert policy.num_complete(rounds_of(log)) == len(rounds_of(log))
        assert sorted({event.life for event in log if isinstance(event, Started)}) == list(
            range(sum(isinstance(event, Started) for event in log))
        )
        assert [event.at for event in log] == sorted(event.at for event in log)


def failing(life_fails: Callable[[int, int], bool]) -> type[VirtualLives]:
    """Returns lives that fail after their turns, by arm and number of the round."""

    class Failing(VirtualLives):
        starts: ClassVar[dict[int, Start]] = {}

        def start(self, life: int, start: Start) -> Sequence[Verified]:
            self.starts[life] = start
            return super().start(life, start)

        def end(self, life: int) -> list[race.Taken] | None:
            start = self.starts[life]
            rest = super().end(life)
            return None if life_fails(start.arm, start.round) else rest

    return Failing


@pytest.mark.parametrize("company", [0.0, 1.0])
def test_turns_of_a_process_that_fails_do_not_count(company: float):
    """It may be fast because it is broken."""
    lives = failing(lambda arm, number: arm == 1)(
        Nature(logs=(0.0, 1.0, 0.1), company=company), random.Random(0)
    )
    log = list[Event]()
    policy = Policy(arms=(0, 1, 2), seconds=600.0, precision=0.05, min_rounds=4)
    race.run(policy, lives, log, clock=lives.clock)
    rounds = rounds_of(log)
    assert not Tally.of(rounds, 1).logs
    assert [1 in one.lives for one in rounds[:3]] == [True, True, False], "it is given up"
    assert Tally.of(rounds, 2).mean == pytest.approx(0.1, abs=0.05)
    assert any(isinstance(event, Ended) and event.is_failed for event in log)


def test_what_worked_once_and_never_again_is_given_up():
    lives = failing(lambda arm, number: arm == 1 and number > 0)(
        Nature(logs=(0.0, 1.0, 0.9)), random.Random(0)
    )
    log = list[Event]()
    policy = Policy(arms=(0, 1, 2), seconds=600.0, precision=0.05, min_rounds=6)
    assert race.run(policy, lives, log, clock=lives.clock).why in (CLEAR, TIME)
    rounds = rounds_of(log)
    assert [1 in one.lives for one in rounds[:4]] == [True, True, True, False]
    assert keeps_failing(rounds, 1)
    assert not keeps_failing(rounds, 2)


def test_a_baseline_that_fails_again_and_again_ends_the_race():
    lives = failing(lambda arm, number: arm == 0 and number > 0)(Nature(process=0.1), random.Random(0))
    assert race.run(Policy(arms=BOTH, seconds=600.0), lives, [], clock=lives.clock) == Done(FAILED)


def test_what_a_round_that_is_repeated_has_shown_of_others_is_gone_with_it():
    whole = [
        Started(0, 0, 3.0, 3.0, 0),
        Company(is_possible=True, at=3.0),
        Started(1, 1, 6.0, 3.0, 0),
        Verified(1, 6.0, kind="exact"),
        Turned(0, 7.0, 1.0, 9, 9.0),
        Turned(1, 8.0, 1.0, 9, 9.0),
        Ended(0, 9.0),
        Ended(1, 9.0),
    ]
    cut = [
        Started(2, 0, 12.0, 3.0, 1),
        Verified(1, 12.0, fault="its losses differ"),
        Company(is_possible=True, at=12.0),
    ]
    assert drop_unfinished([*whole, *cut]) == whole
