"""What is known about the training of a race's processes, from their records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from measurements import measurement
from records import LOSSES, run

from sweeper.core.job import write_outcome
from sweeper.core.measurement import Failure, FailureKind
from sweeper.race.log import Ended, Started, Turned, Verified
from sweeper.race.policy import Start
from sweeper.race.verify import MORE_SEEDS, OTHER_SEEDS, Repeats, batches_of_a_pass
from sweeper.script.changes.change import CLOSE, EXACT, HALF
from sweeper.script.run.running import RECORD_ONLY
from sweeper.script.run.warm import WarmProcess, write_warm
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.verifier import FIRST_SECONDS, FIRST_STEPS, RaceVerifier, SeedRun

ROUNDING = [loss * (1 + 1e-6) for loss in LOSSES]
FAR = [loss * (1 + 0.01 * max(0, number - 5)) for number, loss in enumerate(LOSSES)]
MEMORY = ChangeValue(name="mine", value="on", kind=EXACT)
FUSED = ChangeValue(name="optimizer", value="fused", kind=CLOSE)


class Races:
    """Processes whose records are written down."""

    def __init__(self, folder: Path, changes: Sequence[ChangeValue] = (MEMORY,), **known: object) -> None:
        self._folder, self._number = folder, 0
        self.verifier = RaceVerifier(lambda start: changes, **known)  # type: ignore[arg-type]

    def started(
        self,
        arm: int,
        losses: Sequence[float],
        *,
        number: int = 0,
        end: str = "done",
        in_effect: Mapping[str, str] = {"optimizer": ""},
        failure: str = "",
    ) -> Sequence[Verified]:
        life, self._number = self._number, self._number + 1
        folder = self.write(f"{life}", losses, end=end, in_effect=in_effect)
        members = ("mine=on",) if arm else ()
        return self.verifier.verify(life, Start(arm, number, 1.0, members), folder, failure)

    def write(
        self,
        name: str,
        losses: Sequence[float],
        *,
        end: str = "done",
        in_effect: Mapping[str, str] = {},
    ) -> Path:
        folder = self._folder / name
        folder.mkdir()
        events = run(list(losses), end=end).events["record-0"] if losses else ()
        (folder / "record-0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        write_warm(folder, WarmProcess(measurement=measurement(), changes=in_effect))
        return folder


def test_what_equals_the_baseline_in_every_bit_is_exact(tmp_path):
    races = Races(tmp_path)
    assert races.started(0, LOSSES) == []
    (known,) = races.started(1, LOSSES)
    assert (known.fault, known.kind, known.extent, known.is_open) == ("", EXACT, "40 steps", False)


@pytest.mark.parametrize(("again", "fault", "kind"), [(LOSSES, True, ""), (ROUNDING, False, CLOSE)])
def test_another_process_of_the_baseline_shows_whose_difference_it_is(tmp_path, again, fault, kind):
    races = Races(tmp_path)
    races.started(0, LOSSES)
    nearly = [*LOSSES[:30], LOSSES[30] * (1 + 1e-9), *LOSSES[31:]]
    (known,) = races.started(1, nearly)
    assert known.is_open
    assert known.fault == "its losses differ after 30 steps"
    (known,) = races.started(0, again)
    assert known.life == 1
    assert (bool(known.fault), known.is_open, known.kind) == (fault, False, kind)


def test_a_close_change_is_judged_by_its_first_steps_and_later_by_other_seeds(tmp_path):
    known: dict[str, object] = {"batches": 20, "repeats": Repeats(are_equal=True)}
    races = Races(tmp_path, (FUSED,), **known)
    races.started(0, LOSSES)
    (said,) = races.started(1, FAR)
    assert (said.fault, said.kind) == ("", CLOSE)
    assert races.verifier.seed_wanted(1) == SeedRun(0, OTHER_SEEDS[0])
    races.started(0, [loss * 0.97 for loss in LOSSES], number=1)
    assert races.verifier.seed_wanted(1) == SeedRun(0, OTHER_SEEDS[1])
    folder = races.write("seed", [loss * 1.05 for loss in LOSSES])
    found = races.verifier.enter_seed(SeedRun(0, OTHER_SEEDS[1]), folder)
    assert "farther from the script's" in found[1].fault
    assert races.verifier.seed_wanted(1) is None


def test_half_precision_has_more_seeds_before_it_is_refused(tmp_path):
    half = replace(FUSED, rounding=HALF)
    races = Races(tmp_path, (half,), batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    races.started(1, FAR)
    for number, factor in ((1, 0.99), (2, 1.01)):
        races.started(0, [loss * factor for loss in LOSSES], number=number)
    # It has other seeds, too. There, it is as far off.
    for shift, factor in zip(OTHER_SEEDS, (0.99, 1.01), strict=True):
        assert races.verifier.seed_wanted(1) == SeedRun(1, shift)
        folder = races.write(f"arm-{shift}", [loss * factor for loss in FAR])
        assert races.verifier.enter_seed(SeedRun(1, shift), folder) == {}
    assert races.verifier.seed_wanted(1) == SeedRun(0, MORE_SEEDS[0])
    folder = races.write("more", [loss * 1.5 for loss in LOSSES])
    found = races.verifier.enter_seed(SeedRun(0, MORE_SEEDS[0]), folder)
    assert found[1].fault == ""


def test_one_run_in_half_precision_that_is_far_off_may_be_chance(tmp_path):
    races = Races(tmp_path, (replace(FUSED, rounding=HALF),), batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    races.started(1, FAR)
    for number, factor in ((1, 0.9), (2, 1.15)):
        races.started(0, [loss * factor for loss in LOSSES], number=number)
    said: dict[int, Verified] = {}
    for shift, factor in zip(OTHER_SEEDS, (0.9, 1.15), strict=True):
        # One that is near does not decide.
        assert races.verifier.seed_wanted(1) == SeedRun(1, shift)
        near = races.write(f"near-{shift}", [loss * factor for loss in LOSSES])
        said.update(races.verifier.enter_seed(SeedRun(1, shift), near))
    assert races.verifier.seed_wanted(1) is None
    assert said[1].fault == ""


def test_a_first_loss_that_differs_is_no_rounding(tmp_path):
    races = Races(tmp_path, (FUSED,), repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    (known,) = races.started(1, [loss * 1.01 for loss in LOSSES])
    assert known.fault == "its losses differ in step 1"


def test_what_is_not_in_effect_is_no_part_of_an_arm(tmp_path):
    races = Races(tmp_path, (MEMORY, FUSED))
    races.started(0, LOSSES)
    (known,) = races.started(1, LOSSES, in_effect={"optimizer": "it is fused already"})
    assert known.missing == ("optimizer: it is fused already",)
    (known,) = races.started(2, LOSSES, in_effect={})
    assert known.missing == ("optimizer: the training never uses what it changes",)


def test_a_process_that_fails_is_refused(tmp_path):
    races = Races(tmp_path)
    races.started(0, LOSSES)
    (known,) = races.started(1, LOSSES, failure="oom: out of memory")
    assert known.fault == "oom: out of memory"
    (known,) = races.started(1, [])
    assert known.fault == "its training was not observed"


def test_processes_that_race_have_changes_that_leave_the_arithmetic_alone(tmp_path):
    races = Races(tmp_path, (FUSED,), repeats=Repeats(are_equal=False, race=True))
    races.started(0, LOSSES)
    (known,) = races.started(1, ROUNDING)
    assert "race" in known.fault
    malloc = ChangeValue(
        name="device.malloc", value="retain", kind=EXACT, env={"A": "1"}, keeps_arithmetic=True
    )
    races = Races(tmp_path / "2", (malloc,), repeats=Repeats(are_equal=False, race=True))
    (tmp_path / "2").mkdir()
    races.started(0, LOSSES)
    (known,) = races.started(1, FAR)
    # A single run does not show how far apart they may lie.
    assert known.is_open
    assert races.verifier.recording(Start(0, 1, 1.0)).shift == OTHER_SEEDS[0]


def test_a_script_that_ends_with_its_record_is_compared_all_the_same(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES, end="exit", failure=f"no_result: {RECORD_ONLY}")
    (known,) = races.started(1, LOSSES, end="exit", failure=f"no_result: {RECORD_ONLY}")
    assert known.fault == ""
    # Its later processes are timed, and so not recorded.
    assert races.verifier.recording(Start(0, 1, 1.0)) is None


def test_the_race_at_the_end_records_again_what_has_failed(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES, failure="timeout: it took too long")
    assert races.verifier.recording(Start(0, 1, 1.0)).shift == 0
    races.started(0, LOSSES, number=1)
    assert races.verifier.recording(Start(0, 2, 1.0)).shift == OTHER_SEEDS[1]
    (known,) = races.started(1, LOSSES, failure="oom: out of memory")
    assert known.is_failure
    assert races.verifier.recording(Start(1, 1, 1.0)).shift == 0
    (known,) = races.started(1, LOSSES, number=1)
    assert (known.fault, known.kind) == ("", EXACT)
    assert races.verifier.recording(Start(1, 2, 1.0)).shift == OTHER_SEEDS[1]


def test_what_takes_long_to_make_has_more_time_for_its_record():
    compiled = ChangeValue(name="compile", value="model", kind=CLOSE)
    verifier = RaceVerifier(lambda start: [compiled], batches=20)
    verifier.limit_seconds = 60.0
    assert verifier.recording(Start(1, 0, 1.0)).limit_seconds == 300.0
    assert verifier.recording(Start(0, 0, 1.0)).limit_seconds == 60.0
    first = RaceVerifier(lambda start: [compiled])
    first.limit_seconds = 60.0
    assert first.recording(Start(1, 0, 1.0, ("compile=model",))).limit_seconds == 300.0


def test_first_records_have_the_steps_of_the_baselines(tmp_path):
    verifier = RaceVerifier(lambda start: ())
    first = verifier.recording(Start(0, 0, 1.0))
    assert (first.steps, first.seconds, first.batches) == (FIRST_STEPS, FIRST_SECONDS, 0)
    races = Races(tmp_path)
    races.started(0, LOSSES[:12], end="")
    later = races.verifier.recording(Start(1, 0, 1.0, ("mine=on",)))
    assert (later.steps, later.seconds) == (12, 0.0)


def test_the_race_at_the_end_records_all_processes_of_a_round_with_the_same_seed(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    races.started(3, LOSSES)
    for arm in (0, 3):
        terms = [races.verifier.recording(Start(arm, number, 1.0)) for number in range(4)]
        known = [None if one is None else (one.shift, one.batches) for one in terms]
        assert known == [(0, 20), (1000, 20), (2000, 20), None]


@pytest.mark.parametrize(("step", "batches"), [(0.0, 8), (0.001, 60), (0.05, 20), (3.0, 8)])
def test_a_pass_that_is_cut_short_takes_about_a_second(step, batches):
    assert batches_of_a_pass(step) == batches


def test_what_an_arm_does_with_another_seed_is_not_compared_with_the_scripts_own(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    (known,) = races.started(1, LOSSES)
    assert known.fault == ""
    assert list(races.started(1, FAR, number=1)) == []


@pytest.mark.parametrize(("with_the_seed", "is_refused"), [(0.97, False), (1.5, True)])
def test_an_arm_is_also_compared_with_the_baseline_of_the_same_other_seed(
    tmp_path, with_the_seed, is_refused
):
    drifting = [loss * (1 + 0.0035 * max(0, number - 5)) for number, loss in enumerate(LOSSES)]
    races = Races(tmp_path, (FUSED,), batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    races.started(1, drifting)
    races.started(1, [loss * with_the_seed for loss in LOSSES], number=1)
    races.started(0, [loss * 0.97 for loss in LOSSES], number=1)
    (known,) = races.started(0, [loss * 1.05 for loss in LOSSES], number=2) or [None]
    assert (known is not None and "farther from the script's" in known.fault) == is_refused


def test_a_race_that_goes_on_knows_the_records_of_its_processes(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    for name in ("0000", "0001"):
        races.write(name, LOSSES)
    log = [Started(0, 0, 3.0, 3.0, 0), Started(1, 4, 6.0, 3.0, 0), Ended(1, 9.0)]
    races.verifier.replay(log, tmp_path)
    # The baseline's next process has another seed, as if the race had not been cut off.
    assert races.verifier.recording(Start(0, 1, 1.0)).shift == OTHER_SEEDS[0]
    assert races.verifier.recording(Start(4, 1, 1.0)).shift == OTHER_SEEDS[0]
    assert races.verifier.seed_wanted(4) is None
    failed = Failure(kind=FailureKind.OOM, message="out of memory")
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    write_outcome(tmp_path / "0001", failed)
    races.verifier.replay(log, tmp_path)
    assert races.verifier.recording(Start(4, 1, 1.0)).shift == 0


def test_a_process_that_has_failed_after_its_turns_had_a_record(tmp_path):
    races = Races(tmp_path, batches=20, repeats=Repeats(are_equal=True))
    for name in ("0000", "0001"):
        races.write(name, LOSSES)
    write_outcome(tmp_path / "0001", Failure(kind=FailureKind.OOM, message="out of memory"))
    turns = [Turned(1, 7.0, 1.0, 9, 9.0), Ended(1, 8.0, is_failed=True)]
    races.verifier.replay([Started(0, 0, 3.0, 3.0, 0), Started(1, 4, 6.0, 3.0, 0), *turns], tmp_path)
    assert races.verifier.recording(Start(4, 1, 1.0)).shift == OTHER_SEEDS[0]


def test_a_later_record_of_an_arm_counts_where_its_first_process_has_failed(tmp_path):
    races = Races(tmp_path, (FUSED,), batches=20, repeats=Repeats(are_equal=True))
    races.started(0, LOSSES)
    races.started(1, LOSSES, failure="oom: out of memory")
    races.started(1, ROUNDING, number=1)
    assert races.verifier.seed_wanted(1) == SeedRun(0, OTHER_SEEDS[0])
