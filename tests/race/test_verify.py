"""What is known of a training from its record and those of its baseline."""

from __future__ import annotations

import pytest
from records import LOSSES, run

from sweeper.race.record import Record
from sweeper.race.verify import OTHER_SEEDS, RACES, Answer, Claim, Reference, Repeats
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT, HALF

ROUNDED = [loss * (1 + 1e-6) for loss in LOSSES]
FAR = [loss * (1 + 0.01 * max(0, number - 5)) for number, loss in enumerate(LOSSES)]


def reference(*records: Record, repeats: Repeats | None = None) -> Reference:
    found = Reference(repeats)
    for record in records:
        found.enter(record)
    return found


def test_what_is_equal_in_every_bit_needs_no_more_records():
    known = reference(run(LOSSES))
    for kind in (EXACT, CLOSE, DRAWS):
        claim = Claim(kind=kind)
        assert known.answer(run(LOSSES), claim) == Answer(kind=EXACT)
        assert known.shifts_wanted(claim, Answer(kind=EXACT)) == ()


def test_a_difference_of_what_claims_to_be_exact_is_open_until_the_baseline_is_repeated():
    known, claim = reference(run(LOSSES)), Claim(kind=EXACT)
    answer = known.answer(run(ROUNDED), claim)
    assert answer.is_open
    assert known.shifts_wanted(claim, answer) == (0,)
    known.enter(run(LOSSES))
    answer = known.answer(run(ROUNDED), claim)
    assert (answer.kind, answer.is_open) == ("", False)
    assert answer.fault == "its losses differ after 0 steps"
    assert known.shifts_wanted(claim, answer) == ()


def test_what_is_close_is_compared_with_other_seeds_before_it_is_said():
    known, claim = reference(run(LOSSES)), Claim()
    answer = known.answer(run(FAR), claim)
    assert answer == Answer(kind=CLOSE)
    assert known.shifts_wanted(claim, answer) == OTHER_SEEDS
    for shift, factor in zip(OTHER_SEEDS, (0.97, 1.05), strict=True):
        known.enter(run([loss * factor for loss in LOSSES], batch="b"), shift)
    assert "farther from the script's" in known.answer(run(FAR), claim).fault
    assert known.answer(run(ROUNDED), claim) == Answer(kind=CLOSE)
    assert known.shifts_wanted(claim, Answer(kind=CLOSE)) == ()


def test_seeds_that_have_failed_do_not_show_how_far_apart_curves_may_lie():
    known, claim = reference(run(LOSSES)), Claim()
    for shift in OTHER_SEEDS:
        known.enter(Record(failure="no such seed"), shift)
    # Only the first steps are compared, and nothing is recorded again.
    assert known.answer(run(FAR), claim) == Answer(kind=CLOSE)
    assert known.shifts_wanted(claim, Answer(kind=CLOSE)) == ()


def test_repeats_that_differ_in_half_precision_alone_leave_room_for_it():
    known = reference(run(LOSSES), run([loss * 1.01 for loss in LOSSES]))
    assert known.repeats.difference
    answer = known.answer(run([loss * 1.005 for loss in LOSSES]), Claim(rounding=HALF))
    assert (answer.kind, answer.fault) == (CLOSE, "")


@pytest.mark.parametrize("kind", [EXACT, CLOSE])
def test_a_script_that_does_not_repeat_itself_leaves_it_unknown(kind: str):
    known = reference(run(LOSSES), run([loss * 1.3 for loss in LOSSES]))
    answer = known.answer(run(ROUNDED), Claim(kind=kind))
    assert answer.is_unknown
    assert answer.fault == (
        "two runs of the unchanged script with the same seeds differ: its losses differ in step 1"
    )
    assert known.shifts_wanted(Claim(kind=kind), answer) == ()


def test_processes_that_race_are_known_by_their_repeats():
    def of_two(losses: list[float]) -> Record:
        events = run(losses).events["record-0"]
        return Record(events={"1": events, "2": events})

    known = reference(of_two(LOSSES), of_two([loss * 1.3 for loss in LOSSES]))
    assert known.repeats == Repeats(are_equal=False, race=True)
    assert known.answer(of_two(ROUNDED), Claim()) == Answer(fault=RACES, is_unknown=True)
    claim = Claim(kind=EXACT, keeps_arithmetic=True)
    answer = known.answer(of_two(ROUNDED), claim)
    assert (answer.kind, answer.fault) == (CLOSE, "")
    assert known.shifts_wanted(claim, answer) == OTHER_SEEDS
