"""Races in virtual time: they end, in time, with an answer that their processes carry."""

from __future__ import annotations

import ast
import math
import random
import sys
from pathlib import Path

import pytest
from race.virtual import Nature, VirtualLives, raced

import sweeper.race
from sweeper.race import race
from sweeper.race.log import Company, Ended, Event, Started, Turned, is_over, rounds_of
from sweeper.race.policy import CLEAR, TIME, Done, Policy
from sweeper.race.tally import EARLY_LEVEL, Tally


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
    assert all(is_over(each, policy.arms) for each in rounds)
    # The same end from every prefix.
    again = Policy(policy.arms, policy.seconds, policy.seed)
    assert all(again.next(tuple(log[:events]), at) == action for events, at, action in policy.decided)
    (*_, (_, ended_at, done)) = policy.decided
    assert isinstance(done, Done)
    # Each process has taken as many turns as those of its round, but for one.
    if not nature.death:
        for each in rounds:
            turns = [len(life.turns) for life in each.lives.values()]
            assert min(turns) >= 1
            assert max(turns) == min(turns) or not each.is_in_company
    if done.why == CLEAR:
        for arm in range(1, policy.arms):
            tally = Tally.of(rounds, arm)
            half = tally.half_width(EARLY_LEVEL)
            assert abs(tally.mean) > half or half <= math.log(1.01)
        return
    assert done.why == TIME
    if nature.stall or len(rounds) == 1:
        return
    # A round is not begun unless one like the earlier ones fits, and its turns end with the time; but a start
    # may take longer than the earlier ones, and each process takes a turn.
    starts = [life.started.seconds for each in rounds for life in each.lives.values()]
    slower = policy.arms * (max(starts) - min(starts))
    one_turn = sum(life.turns[-1].seconds + 0.3 for life in rounds[-1].lives.values() if life.turns)
    assert ended_at <= seconds + max(15.0, 0.1 * seconds, slower + one_turn)


def test_random_races_end_in_time_with_an_answer_that_their_processes_carry():
    for seed in range(200):
        check(seed)


@pytest.mark.soak
def test_ten_thousand_random_races_do():
    for seed in range(10_000):
        check(seed)


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


def test_time_that_is_too_short_for_another_round_is_used_for_turns():
    log, policy, lives = raced(Nature(process=0.03), 1, 25.0)
    (found,) = rounds_of(log)
    assert 20 < lives.clock.now < 28
    assert len(found.lives[0].turns) == len(found.lives[1].turns) > 4
    assert policy.decided[-1][2] == Done(TIME)


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
        log, _, _ = raced(Nature(process=process, turn=turn, start_seconds=start), 4, 900.0)
        return [len(each.lives[0].turns) for each in rounds_of(log)]

    assert max(turns(0.0, 0.1)) > 5
    assert set(turns(0.2, 0.01)[4:]) == {1}
    assert max(turns(0.0, 0.1, start=0.01)) <= 3, "a new process costs nothing"


def test_turns_are_long_where_steps_are():
    def seconds(step: float) -> float:
        nature = Nature(logs=(0.0, -math.log(1.6)), step_seconds=step, process=0.0, turn=0.0)
        return Policy(2, 120.0).turn_seconds(rounds_of(raced(nature, 0)[0]))

    assert Policy(2, 300.0).turn_seconds([]) == 1.0
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
        race.run(Policy(2, 60.0), lives, [], clock=lives.clock)
    assert not lives.alive


def test_each_complete_round_is_told():
    told: list[int] = []
    log: list[Event] = []
    lives = VirtualLives(Nature(process=0.03), random.Random(0))

    def seen() -> None:
        told.append(len(rounds_of(log)))
        assert is_over(rounds_of(log)[-1], 2)

    race.run(Policy(2, 60.0), lives, log, seen, lives.clock)
    assert told == list(range(1, len(rounds_of(log)) + 1))


def test_a_race_needs_the_standard_library_alone():
    for path in Path(sweeper.race.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("sweeper.race"), path
