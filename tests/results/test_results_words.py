"""Each sentence about a decision has one home, and is true."""

from __future__ import annotations

import ast
import dataclasses
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from measurements import measurement, record_of
from replays import PIPELINE, Bench, spec_of
from rich.console import Console

from sweeper.cli.screen import race_table, status_line
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Quality
from sweeper.core.record import TrialRecord
from sweeper.race.scores import Score
from sweeper.results import words
from sweeper.results.decision_lines import decision_lines
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.decision import Decision, decide
from sweeper.results.numbers.limits import Yardstick
from sweeper.results.numbers.summary import Summary
from sweeper.results.numbers.time_to_loss import TimeToLoss
from sweeper.results.numbers.trial_table import NUM_SEEDS
from sweeper.sweep.observer import Racer, Status

ROOT = Path(__file__).parents[2]
LITERAL = re.compile(r"95%|interval")


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Text that may be printed: all but docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [(node.lineno, node.value)] if LITERAL.search(node.value) else []


def test_intervals_have_one_home():
    assert list(literals(ast.parse('f"{x}, 95% interval"')))
    assert not list(literals(ast.parse('"""95% interval"""\nx = "95 %"')))
    trees = {path: ast.parse(path.read_text("utf-8")) for path in (ROOT / "sweeper").rglob("*.py")}
    homes = {str(path.relative_to(ROOT)) for path, tree in trees.items() if list(literals(tree))}
    assert homes == {"sweeper/results/words.py"}


def ratio_of(
    ratio: float = 1.1, rounds: int = 5, sitting_low: float = 1.02, low: float = 0.93, high: float = 1.3
) -> Ratio:
    return Ratio(
        trial=12,
        ratio=ratio,
        low=low,
        high=high,
        throughput=ratio,
        rounds=(ratio,) * rounds,
        sitting_low=sitting_low,
        sitting_high=1.2,
    )


def quality(loss: float) -> Quality:
    return Quality(key="k", samples=20_000, seconds=1.0, train_loss=loss, val_loss=loss)


def record(number: int, loss: float) -> TrialRecord:
    return dataclasses.replace(record_of(measurement(), number), quality=quality(loss))


def summary_of(**changes: object) -> Summary:
    """A sweep with a baseline of three seeds and trial 12, of which nothing is decided."""
    base, other = record(0, 0.8136), record(12, 0.79)
    summary = Summary(
        name="toy",
        state="finished",
        device="a CPU",
        reason="all 12 trials are done",
        synthetic=False,
        yardstick=Yardstick(base, (0.8136, 0.78, 0.7563)),
        winner=None,
        ratio=None,
        baseline_throughput=None,
        per_size=(),
        per_loader=(),
        counts={"measured": 12},
        production_samples=None,
        records=(base, other),
        losses={0: (0.8136, 0.78, 0.7563)},
    )
    return dataclasses.replace(summary, **changes)  # type: ignore[arg-type]


def won(ratio: Ratio, **changes: object) -> Summary:
    summary = summary_of()
    return dataclasses.replace(summary, winner=summary.records[1], ratio=ratio, **changes)  # type: ignore[arg-type]


def status_of(done: int) -> Status:
    return Status(
        phase="confirming", done=done, total=8, best="", best_ratio=None, running=(), seconds_left=None
    )


def headline(summary: Summary) -> str:
    return words.headline(summary, decide(summary))


def test_a_winner_has_its_interval_unless_an_earlier_version_gave_it_none():
    assert headline(won(ratio_of(2.67, low=2.44))) == (
        "Trial 12 is 2.67x as fast as your baseline, confirmed"
        " (95% interval for a later run [2.44, 1.3], 5 rounds)."
    )
    assert headline(won(ratio_of(2.67, rounds=1, low=0.0, high=math.inf))) == (
        "Trial 12 is 2.67x as fast as your baseline (1 round, too few for an interval)."
    )


def test_the_ratio_by_which_a_winner_was_found_is_not_confirmed():
    known = dataclasses.replace(
        ratio_of(2.67, rounds=1, low=2.3, high=3.1), sitting_low=2.5, sitting_high=2.9
    )
    assert headline(won(known, is_provisional=True)) == (
        "Trial 12 is 2.67x as fast as your baseline so far (95% interval [2.5, 2.9], 1 round), and not"
        " confirmed by new processes."
    )


def test_a_winner_that_no_new_process_has_confirmed_is_not_called_confirmed():
    found = decide(won(ratio_of(2.67, low=2.3), is_provisional=True))
    assert found.kind == "unconfirmed"
    assert found.ratio is not None
    assert decide(won(ratio_of(2.67, low=2.3))).kind == "confirmed"


def test_a_tune_of_which_nothing_runs_and_trains_the_same_has_no_limits_to_meet():
    base, other = record(0, 0.8), record_of(Failure(kind=FailureKind.DIFFERENT, message="x"), 12)
    said = headline(summary_of(records=(base, other), is_tune=True))
    assert said == "No change is handed over: none was shown to run and to train the same."


def test_an_interval_of_an_earlier_version_is_not_said_to_be_of_a_later_run():
    old = dataclasses.replace(ratio_of(2.67, low=2.44), sitting_low=None, sitting_high=None)
    assert "confirmed (95% interval [2.44, 1.3], 5 rounds)" in headline(won(old))


@pytest.mark.parametrize(
    ("ratio", "said", "remedy"),
    [
        (
            ratio_of(),
            "Undecided: trial 12 was 1.1x as fast as your baseline (95% interval [1.02, 1.2], 5 rounds), but"
            " speeds on this machine drift; a later run may be anywhere in [0.93, 1.3].",
            "A quieter machine would settle it (`sweeper doctor`).",
        ),
        (
            ratio_of(sitting_low=0.95),
            "Undecided: trial 12 was 1.1x as fast as your baseline"
            " (95% interval for a later run [0.93, 1.3], 5 rounds).",
            "More rounds (`confirm.rounds`) or a quieter machine (`sweeper doctor`) would settle it.",
        ),
        (
            ratio_of(rounds=1, high=math.inf),
            "Undecided: trial 12 was 1.1x as fast as your baseline (1 round, too few for an interval).",
            "More rounds (`confirm.rounds`) or a quieter machine (`sweeper doctor`) would settle it.",
        ),
    ],
)
def test_what_is_undecided_says_what_is_known(ratio: Ratio, said: str, remedy: str):
    summary = summary_of(undecided=ratio)
    assert headline(summary) == said
    assert decision_lines(summary)[:2] == [f"toy: {said}", f"  {remedy}"]


def test_without_a_winner_it_says_why():
    assert (
        headline(summary_of()) == "No trial is shown to be better than your baseline (1 min 40 s per epoch)."
    )
    slow = dataclasses.replace(summary_of().records[1], violations={"val_loss": 0.1})
    base = summary_of().records[0]
    assert headline(summary_of(records=(base, slow))) == "Only the baseline met the limits."
    assert headline(summary_of(records=(base,))).startswith("Only the baseline has been measured (")
    assert headline(summary_of(yardstick=None, records=())) == "The baseline has not been measured."


def test_the_time_to_a_loss_comes_first():
    sooner = TimeToLoss(loss=0.43, ratio=1.9, low=1.5, high=2.4, samples=((3.0, 2.0),) * 5)
    assert headline(won(ratio_of(low=1.01), time_to_loss=sooner)) == (
        "Trial 12 is 1.9x as fast to your baseline's loss of 0.43"
        " (95% interval for a later run [1.5, 2.4], 5 seeds); in samples per second, 1.1x as fast as your"
        " baseline, confirmed (95% interval for a later run [1.01, 1.3], 5 rounds)."
    )
    lone = dataclasses.replace(sooner, low=0.0, high=float("inf"), samples=((3.0, 2.0),))
    assert "baseline's loss of 0.43 (1 seed, too few" in headline(won(ratio_of(), time_to_loss=lone))


def test_a_winner_that_misses_the_loss_is_said_to():
    lines = decision_lines(won(ratio_of(low=1.01), unreached_loss=0.43))
    assert lines[0].endswith("5 rounds), but does not reach its loss.")
    assert (
        "  Within 3 times the samples, it does not reach your baseline's loss of 0.43:"
        " it learns less from each sample."
    ) in lines


def test_a_loss_says_of_how_many_seeds_it_is():
    def line(**changes: object) -> str:
        (found,) = [line for line in decision_lines(won(ratio_of(), **changes)) if "after the same" in line]
        return found.strip()

    assert line() == (
        "Loss after the same 20,000 samples: 0.79 (one seed), baseline 0.7833 (mean of 3 seeds)."
    )
    both = {0: (0.8136, 0.78, 0.7563), 12: (0.79, 0.77, 0.76)}
    assert line(losses=both) == (
        "Loss after the same 20,000 samples (mean of 3 seeds): 0.7733, baseline 0.7833."
    )


def test_the_loss_of_the_headline_is_that_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)

    def loss(config: TrialConfig) -> float:
        return 1.0 + 0.01 * config.seed

    sweep = Bench(tmp_path / "home").run(spec_of(confirm={"to_loss": False}), loss=loss).sweep
    summary = sweep.summary
    decision = decide(summary)
    assert decision.baseline is not None
    assert decision.best is not None
    assert len(decision.baseline.losses) == len(decision.best.losses) == NUM_SEEDS
    assert decision.best.loss == decision.baseline.loss == pytest.approx(1.01)
    rows = [*summary.per_size, *summary.per_loader]
    assert {row.loss for row in rows if not row.is_one_seed} == {decision.baseline.loss}
    winner = next(row for row in rows if row.record is summary.winner)
    assert not winner.is_one_seed


def test_more_rounds_than_the_fewest_are_no_share_of_them():
    assert status_line(status_of(7)) == "confirming · 7 of 8"
    assert status_line(status_of(18)) == "confirming · 18 rounds"


RACE = (
    Racer("000 baseline", Score(arm=0, turns=6, processes=2)),
    Racer("003 bs512", Score(arm=3, turns=6, processes=2, ratio=2.5, low=2.25, high=2.75)),
    Racer("004 bs64", Score(arm=4, turns=3, processes=1, ratio=1.5, low=1.25, high=1.75, is_continued=False)),
)


def test_a_race_has_its_ratio_so_far_and_a_table_with_who_is_not_continued():
    status = dataclasses.replace(status_of(2), race=RACE, best="003 bs512", best_ratio=9.0)
    assert status_line(status) == "confirming · 2 of 8 · 003 bs512 2.5x [2.25, 2.75] so far"
    out = Console(width=80, record=True, file=io.StringIO())
    out.print(race_table(RACE))
    head, *rows = [line.rstrip() for line in out.export_text().splitlines()]
    assert head.split() == ["starts", "turns", "so", "far"]
    assert rows[0].split() == ["000", "baseline", "2", "6"]
    assert rows[1].endswith("2      6  2.5x [2.25, 2.75]")
    assert rows[2].endswith("1      3  1.5x [1.25, 1.75] not continued")


def test_a_race_without_a_common_turn_says_no_ratio():
    started = (RACE[0], Racer("003 bs512", Score(arm=3, turns=0, processes=0)))
    assert status_line(dataclasses.replace(status_of(0), race=started)) == "confirming · 0 of 8"


def test_names_and_states_are_those_of_the_decision():
    assert words.title(Decision(kind="confirmed")) == "the winner"
    assert words.title(Decision(kind="unconfirmed")) == "the fastest trial"
    assert words.state(summary_of(state="stopped")) == "The sweep was stopped; the same command continues it."
    assert words.state(summary_of()) == ""
    assert words.tie_text(("003 a", "004 b", "005 c")) == (
        "Tied with 003 a, 004 b and 005 c; the simplest was chosen."
    )
    assert words.disturbance("the winner", "heat") == "The timings of the winner stayed disturbed: heat."
