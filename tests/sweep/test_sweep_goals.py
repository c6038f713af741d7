"""Whole sweeps that aim for something else than speed alone: several objectives, hours, time to a loss."""

from __future__ import annotations

import dataclasses
import io
import math
import re

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of, throughput
from rich.console import Console

from sweeper.cli.summary import print_summary
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.results.decision_lines import decision_lines
from sweeper.results.numbers.summary import to_json
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import LoadedSweep, load_sweep

UNCONFIRMED = {"rounds": 0}


def loaded(bench: Bench) -> LoadedSweep:
    return load_sweep(Journal(bench.home / "sweeps" / "toy"))


def shown(sweep: LoadedSweep) -> list[str]:
    out = Console(file=io.StringIO(), width=120)
    print_summary(out, sweep.summary, "")
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def lossy(config: TrialConfig) -> float:
    """The faster, the worse, and bf16 worse than that: of its trials only the fastest is in the front."""
    return 1 + math.log2(config.batch_size / 64) ** 3 / 100 + 0.1 * (config.precision.amp == "bf16")


@pytest.mark.parametrize(
    ("rule", "words"), [("knee", "picked: the knee:"), ("lowest_loss", "picked: the fastest of those whose")]
)
def test_several_objectives_have_a_front_and_one_that_is_picked(bench, rule: str, words: str):
    spec = spec_of(
        objectives=[{"maximize": "throughput"}, {"minimize": "val_loss"}],
        constraints={},
        search={"trials": 24},
        confirm={**UNCONFIRMED, "pick": rule},
    )
    bench.run(spec, loss=lossy)
    sweep = loaded(bench)
    summary = sweep.summary
    front = [row.record for row in summary.front]
    assert 3 <= len(front) < len(summary.records)
    by_speed = sorted(front, key=lambda record: record.metric("throughput"))
    losses = [record.metric("val_loss") for record in by_speed]
    assert losses == sorted(losses)
    assert summary.picked in front
    if rule == "lowest_loss":
        assert summary.picked is [r for r in by_speed if r.metric("val_loss") <= 1.02 * min(losses)][-1]
    found = to_json(summary, sweep.stages())
    assert (found["front"], found["picked"], found["rule"]) == (
        sorted(record.number for record in front),
        summary.picked.number,
        rule,
    )
    lines = shown(sweep)
    at = lines.index("Pareto front")
    assert lines[at + 1].split() == ["trial", "throughput,", "samples/s", "val_loss", "(one", "seed)"]
    rows = lines[at + 2 : at + 2 + len(front)]
    (picked,) = (row for row in rows if row.endswith("◄ picked"))
    assert picked.startswith(sweep.name_of(summary.picked))
    assert lines[at + 2 + len(front)].startswith(words)
    for row, record in zip(rows, front, strict=True):
        assert f" {record.metric('throughput'):,.0f} " in row or record.metric("throughput") < 1000


def test_of_one_objective_there_is_no_front(bench):
    bench.run(spec_of(confirm=UNCONFIRMED))
    sweep = loaded(bench)
    assert not {"front", "picked", "rule"} & to_json(sweep.summary, {}).keys()
    assert "Pareto front" not in shown(sweep)


@pytest.mark.parametrize("place", ["objective", "constraint"])
def test_time_to_the_baselines_loss_needs_no_other_goal_on_the_loss(bench, place: str):
    """Each trial has a quality pass, the slow ones, too: speed is not what wins."""
    asked = (
        {"objectives": [{"minimize": "time_to_loss_s"}], "constraints": {}}
        if place == "objective"
        else {"constraints": {"time_to_loss_s": {"max": 100.0}}}
    )
    bench.run(spec_of(**asked, confirm=UNCONFIRMED), loss=lambda config: 1.0)
    records = loaded(bench).table.searched_trials()
    told = {entry.number: entry.result for entry in Journal(bench.home / "sweeps" / "toy").trials()}
    for record in records:
        seconds = record.metric("time_to_loss_s")
        assert (seconds is not None) == (record.quality is not None)
        if place == "objective":
            assert told[record.number].values == (pytest.approx(60_000 / throughput(record.config)),)
        if seconds is not None:
            assert record.notes == {"time_to_loss_how": "measured"}
            assert record.feasible == (place == "objective" or seconds <= 100)
    assert place == "constraint" or all(record.quality for record in records)
    assert any(record.quality for record in records)


def test_hours_of_the_production_run_are_told_and_limited(bench):
    spec = spec_of(
        objectives=[{"minimize": "projected_hours"}],
        constraints={"projected_hours": {"max_ratio_to_baseline": 0.2}},
        production={"samples": 3.6e6},
        confirm=UNCONFIRMED,
    )

    def answer(config: TrialConfig) -> Measurement:
        return dataclasses.replace(synthetic(throughput(config)), startup_seconds=36.0, compile_seconds=36.0)

    bench.run(spec, answer)
    sweep = loaded(bench)
    feasible = [record for record in sweep.table.searched_trials() if record.feasible]
    assert feasible
    baseline = 0.02 + 1000 / 64
    for entry in sweep.journal.trials():
        hours = 0.02 + 1000 / throughput(entry.job.config)
        record = sweep.table.records[entry.number]
        assert record.metric("projected_hours") == pytest.approx(hours)
        assert record.feasible == (hours <= 0.2 * baseline)
        if record in feasible:
            assert entry.result.values == (pytest.approx(hours),)


def compiled_faster(times: float):
    """A surface on which compiled trials have this many times the speed, and start 10 s later."""

    def answer(config: TrialConfig) -> Measurement:
        compiled = config.compile.mode != "eager"
        found = synthetic(throughput(config) * (times if compiled else 1.0))
        return dataclasses.replace(found, compile_seconds=10.0 if compiled else 0.0)

    return answer


COMPILING = {
    "space": {"compile.mode": {"type": "categorical", "choices": ["eager", "default"]}},
    "also_try": [],
    "constraints": {},
}


def test_the_summary_says_when_compiling_has_paid(bench):
    bench.run(spec_of(**COMPILING), compiled_faster(2.0))
    sweep = loaded(bench)
    summary = sweep.summary
    assert summary.winner is not None
    assert summary.winner.config.compile.mode == "default"
    (eager,) = (r.number for r in sweep.table.searched_trials() if r.config.compile.mode == "eager")
    # 10 s, and of a batch of 64 it saves an eighth: 64 / 256 less 64 / 512 s.
    assert (
        decision_lines(summary).count(
            f"  Compiling (`default`) pays off from optimiser step 80 on, compared with eager trial {eager}."
        )
        == 1
    )
    assert to_json(summary, sweep.stages())["winner"]["break_even_steps"] == 80


def test_a_winner_that_compiling_made_no_faster_says_so(bench):
    """What it is faster than is the baseline."""
    space = {"compile.mode": {"type": "categorical", "choices": ["default"]}}
    also = [{"loader.kind": "resident", "batch_size": 128}]
    bench.run(spec_of(**{**COMPILING, "space": space, "also_try": also}), compiled_faster(2.0))
    sweep = loaded(bench)
    summary = sweep.summary
    compiled = next(r for r in sweep.table.searched_trials())
    # As fast as the eager one, whose batch is twice as large.
    assert summary.break_even(compiled) == (sweep.table.records[1], math.inf)
    summary = dataclasses.replace(summary, winner=compiled, ratio=next(iter(sweep.ratios().values())))
    assert "  Compiling (`default`) never pays off compared with eager trial 1." in decision_lines(summary)
    assert encode(to_json(summary, sweep.stages()))["winner"]["break_even_steps"] is None


def test_an_eager_winner_has_nothing_to_pay_for(bench):
    bench.run(spec_of(**COMPILING), compiled_faster(0.5))
    sweep = loaded(bench)
    summary = sweep.summary
    assert summary.winner is not None
    assert summary.winner.config.compile.mode == "eager"
    assert not any("Compiling" in line for line in decision_lines(summary))
    assert "break_even_steps" not in to_json(summary, sweep.stages())["winner"]


def test_the_decision_begins_with_what_was_asked_for(bench):
    spec = spec_of(
        objectives=[{"minimize": "projected_hours"}],
        production={"samples": 3.6e6},
        confirm={"to_loss": False},
    )
    first, *_ = decision_lines(bench.run(spec).sweep.summary)
    aim = r"toy: Trial \d+: projected_hours .+, baseline .+; .+x as fast as your baseline, confirmed \(.+\)\."
    assert re.fullmatch(aim, first)
