"""Baseline and winner train to the baseline's loss, where the winner computes something else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from parts.noop import synthetic
from parts.replay import FALL
from replays import Bench, spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.errors import UserError
from sweeper.report.report_data import gather
from sweeper.report.winner_charts import learning_curves
from sweeper.results.decision_lines import decision_lines
from sweeper.results.formatting import seconds
from sweeper.results.numbers.time_to_loss import MAX_SAMPLES
from sweeper.results.numbers.trial_table import NUM_SEEDS
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.phases.to_loss import SEEDS

LIMIT = {"val_loss": {"max_ratio_to_baseline": 2.0}}


def slower_by(factor: float) -> Any:
    """Returns a loss that the baseline's samples leave `factor` times as high, but for the baseline."""
    return lambda config: 1.0 if config.loader.kind == "rows" else factor


def passes(bench: Bench) -> list[TrialConfig]:
    return [job.config for job in bench.launcher.jobs if Path(job.folder).name.startswith("to-loss-")]


def test_the_samples_that_the_winner_needs_count(bench: Bench) -> None:
    ran = bench.run(spec_of(constraints=LIMIT), loss=slower_by(1.2))
    confirmed = ran.sweep.confirmation
    found = confirmed.time_to_loss
    assert found is not None
    assert len(found.samples) == SEEDS
    needed = 1.2 ** (1 / FALL)
    assert found.samples_ratio == pytest.approx(1 / needed, rel=0.01)
    assert found.ratio == pytest.approx(confirmed.ratios[0].ratio / needed, rel=0.01)
    assert found.low <= found.ratio <= found.high
    # The baseline has been trained with the first seeds, for the limit of the loss.
    seeds = [(config.loader.kind == "rows", config.seed) for config in passes(bench)]
    assert seeds == [*((True, n) for n in range(NUM_SEEDS, SEEDS)), *((False, n) for n in range(SEEDS))]
    first, *_ = decision_lines(ran.sweep.summary)
    aim = f"{found.ratio:.3g}x as fast to your baseline's loss of 1 (95% interval for a later run ["
    assert f" is {aim}" in first
    assert f", {SEEDS} seeds); in samples per second, {confirmed.ratios[0].ratio:.3g}x as fast as" in first


def test_a_sweep_that_goes_on_asks_for_nothing_again(bench: Bench) -> None:
    spec = spec_of(constraints=LIMIT)
    before = bench.run(spec, loss=slower_by(1.2)).sweep
    (before.journal.folder / "result.json").unlink()
    again = bench.run(spec, loss=slower_by(1.2)).sweep
    assert passes(bench) == []
    assert again.confirmation.time_to_loss == before.confirmation.time_to_loss


def test_a_winner_that_does_not_get_there_is_said(bench: Bench) -> None:
    ran = bench.run(spec_of(constraints=LIMIT), loss=slower_by(1.5))
    assert ran.sweep.confirmation.winner is not None
    assert ran.sweep.confirmation.time_to_loss is None
    assert any(f"within {MAX_SAMPLES} times" in line for line in bench.watcher.lines)
    assert ran.sweep.confirmation.unreached_loss == pytest.approx(1.0)
    said = decision_lines(ran.sweep.summary)
    assert said[0].endswith(" rounds), but does not reach its loss.")
    assert any("it does not reach your baseline's loss of 1: it learns less" in line for line in said)


def test_a_winner_that_takes_longer_to_the_loss_is_slower(bench: Bench) -> None:
    def twice(config: TrialConfig) -> Measurement:
        return synthetic(1000.0 if config.loader.kind == "rows" else 2000.0)

    ran = bench.run(spec_of(constraints=LIMIT), twice, loss=slower_by(1.3))
    found = ran.sweep.confirmation.time_to_loss
    assert found is not None
    assert found.ratio < 1
    first = decision_lines(ran.sweep.summary)[0]
    assert f" is {found.ratio:.3g}x as fast to your baseline's loss of 1 (95% interval" in first


SAME = {"loader.kind": {"type": "categorical", "choices": ["workers", "resident"]}}


@pytest.mark.parametrize(
    "changes",
    [
        {"confirm": {"to_loss": False}},
        {"space": SAME, "baseline": {"loader.kind": "rows", "batch_size": 64}, "also_try": []},
        {"constraints": {}},
    ],
    ids=["not asked", "the same numerics", "no loss"],
)
def test_where_it_would_tell_nothing_it_is_not_measured(bench: Bench, changes: dict[str, Any]) -> None:
    ran = bench.run(spec_of(**{"constraints": LIMIT, **changes}), loss=slower_by(1.2))
    assert ran.sweep.confirmation.winner is not None
    assert ran.sweep.confirmation.time_to_loss is None
    assert passes(bench) == []


def test_without_time_it_is_left_out_unless_it_is_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.sweep.phases.to_loss.MAX_SECONDS", -1.0)
    assert bench.run(spec_of(constraints=LIMIT)).sweep.confirmation.time_to_loss is None
    asked = spec_of(name="asked", constraints=LIMIT, confirm={"to_loss": True})
    assert bench.run(asked).sweep.confirmation.time_to_loss is not None


def test_the_price_of_the_production_run_is_in_the_decision(bench: Bench) -> None:
    spec = spec_of(
        constraints={"val_loss": {"max_ratio_to_baseline": 2.0}, "cost_per_run": {"max": 1e9}},
        production={"samples": 1e9, "price_per_hour": 1.2},
    )
    summary = bench.run(spec, loss=slower_by(1.2)).sweep.summary
    (said,) = [line for line in decision_lines(summary) if "production run" in line]
    assert summary.winner is not None
    cost = summary.cost(summary.winner)
    assert cost == pytest.approx(1.2 * (summary.projected_hours(summary.winner) or 0.0))
    assert f"(to the loss that the baseline reaches); {cost:,.3g} instead of" in said
    assert said.endswith("at 1.2 per hour.")


def test_a_projection_that_assumes_equal_samples_says_so(bench: Bench) -> None:
    spec = spec_of(constraints=LIMIT, production={"samples": 1e9}, confirm={"to_loss": False})
    (said,) = [line for line in decision_lines(bench.run(spec).sweep.summary) if "production run" in line]
    assert said.endswith("(for the same number of samples).")


def test_a_later_speed_has_the_unit_of_the_speed(bench: Bench) -> None:
    summary = bench.run(spec_of(constraints=LIMIT)).sweep.summary
    winner, ratio = summary.winner, summary.ratio
    assert winner is not None
    assert winner.measurement is not None
    assert ratio is not None
    ends = (
        winner.measurement.train_samples / (speed or 1)
        for speed in (ratio.throughput_high, ratio.throughput_low)
    )
    shown = ", ".join(map(seconds, ends))
    assert any(f" per epoch [{shown}], down from " in line for line in decision_lines(summary))


def test_a_winner_by_memory_may_take_longer(bench: Bench) -> None:
    def lean(config: TrialConfig) -> Measurement:
        is_plain = config.loader.kind == "rows"
        return dataclasses.replace(
            synthetic(1000.0 if is_plain else 500.0), host_mem_peak_gib=4.0 if is_plain else 1.0
        )

    spec = spec_of(objectives=[{"minimize": "host_mem_peak_gib"}], production={"samples": 1e9})
    said = "\n".join(decision_lines(bench.run(spec, lean).sweep.summary))
    assert " per epoch, up from " in said or "], up from " in said
    assert "h, up from " in said


def test_a_price_that_comes_too_late_is_not_silently_ignored(bench: Bench) -> None:
    production = {"samples": 1e9}
    bench.run(spec_of(constraints=LIMIT, production=production))
    bench.run(spec_of(constraints=LIMIT, production=production))
    assert not any("has ended" in line for line in bench.watcher.lines)
    bench.run(spec_of(constraints=LIMIT, production={**production, "price_per_hour": 1.2}))
    assert any("the `production` that it began with. --new" in line for line in bench.watcher.lines)


def test_a_price_needs_an_hour_to_be_of(bench: Bench) -> None:
    with pytest.raises(UserError, match=r"`cost_per_run` needs the price of an hour.*--price 1.2"):
        spec_of(constraints={"cost_per_run": {"max": 1}}, production={"samples": 1e9})


def test_a_curve_with_few_points_shows_no_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.sweep.phases.to_loss.MIN_POINTS", 17)
    ran = bench.run(spec_of(constraints=LIMIT), loss=slower_by(1.2))
    assert ran.sweep.confirmation.time_to_loss is None
    assert any("`measure.quality_samples`" in line for line in bench.watcher.lines)


def test_where_it_is_asked_for_the_loss_is_measured_without_a_limit(bench: Bench) -> None:
    ran = bench.run(spec_of(constraints={}, confirm={"to_loss": True}), loss=slower_by(1.2))
    assert ran.sweep.confirmation.time_to_loss is not None


def test_the_report_draws_both_learning_curves_over_time(bench: Bench) -> None:
    sweep = bench.run(spec_of(constraints=LIMIT), loss=slower_by(1.2)).sweep
    material = gather(sweep)
    chart = learning_curves(material)
    assert chart is not None
    assert [each.name for each in chart.marks if not each.dashed] == ["baseline", "winner"]
    ends = {each.name: (each.x[-1], each.y[-1]) for each in chart.marks if not each.dashed}
    (slow, loss), (fast, reached) = ends["baseline"], ends["winner"]
    assert loss == pytest.approx(1.0)
    assert reached <= loss
    # The winner's last point is the first one at or below the loss.
    assert slow / fast == pytest.approx(sweep.confirmation.time_to_loss.ratio, rel=0.05)


def test_a_report_without_curves_of_an_earlier_version_draws_none(bench: Bench) -> None:
    sweep = bench.run(spec_of(constraints=LIMIT), loss=slower_by(1.2)).sweep
    path = sweep.journal.folder / "result.json"
    tree = json.loads(path.read_text())
    for name in ("baseline", "winner"):
        del tree["time_to_loss"][name]
    path.write_text(json.dumps(tree))
    assert learning_curves(gather(load_sweep(sweep.journal))) is None
