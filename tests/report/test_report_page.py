"""The page: one file that needs nothing else, its numbers those of the summary."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import odd_sweeps as odd
import pytest

from sweeper.race.tally import Tally
from sweeper.report.before_after import before_and_after, changes
from sweeper.report.chart import Chart, axis_label, log_ticks
from sweeper.report.decision import commands, costs, facts
from sweeper.report.page import html
from sweeper.report.report_data import ReportData, gather
from sweeper.report.timeline_charts import breakdown, timelines
from sweeper.report.trial_charts import effects, history, outcomes
from sweeper.report.trial_tables import all_trials, failures, provenance, steps
from sweeper.report.winner_charts import race
from sweeper.results.numbers.summary import Summary
from sweeper.sweep.folder.journal import FINAL_RACE

SECTIONS = ["best", "effects", "machine", "failures", "untried", "trials", "provenance"]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    journal = odd.finished(tmp_path_factory.mktemp("home"), trials=40)
    return gather(odd.loaded(journal))


@pytest.fixture(scope="module")
def page(material: ReportData) -> str:
    return html(material)


def rows(table: Any) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_the_page_needs_nothing_else(page: str) -> None:
    assert page.count("plotly.js v") == 1
    assert len(page) < 6e6
    head = page[: page.index("</head>")]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', head)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_the_sections_stand_in_the_order_of_a_decision(page: str) -> None:
    assert re.findall(r'<section id="(\w+)"', page) == ["decision", *SECTIONS]
    assert re.findall(r'<li><a href="#(\w+)"', page) == SECTIONS
    figures = json.loads(page[page.index('id="figures">') + 13 : page.index("</script>")])
    drawn = re.findall(r'data-chart="([^"]*)"', page)
    assert sorted(drawn) == sorted(figures["charts"])
    assert set(figures["palettes"]) == {"light", "dark"}


def test_the_figures_from_afar_are_those_of_the_summary(material: ReportData) -> None:
    summary: Summary = material.summary
    assert summary.ratio is not None
    found = {fact.title: fact for fact in facts(material)}
    ratio = found["vs your baseline"]
    assert ratio.value == f"{summary.ratio.ratio:.3g}x"
    assert (
        ratio.note
        == f"95% interval for a later run [{summary.ratio.low:.3g}, {summary.ratio.high:.3g}], 8 rounds"
    )
    assert set(found) == {"vs your baseline", "per epoch", "your production run", "loss"}
    assert "at most 0.428" in found["loss"].note


def test_what_changes_is_what_differs_and_no_more(material: ReportData) -> None:
    table = changes(material)
    assert table is not None
    assert material.best is not None
    assert material.baseline is not None
    before, after = (r.config.canonical().flatten() for r in (material.baseline, material.best))
    differing = {name for name in before | after if before.get(name) != after.get(name)}
    assert set(rows(table)) == differing
    assert rows(table)["loader.kind"] == ["rows", material.best.config.loader.kind]


def test_the_learning_rate_in_effect_is_said_where_a_rule_changes_it(tmp_path: Path) -> None:
    fix = {"optimizer.lr_rule": "sqrt", "optimizer.lr": 1e-3}
    found = gather(odd.loaded(odd.finished(tmp_path, changes={"fix": fix})))
    assert found.best is not None
    table = changes(found)
    assert table is not None
    rate = 1e-3 * (found.best.config.batch_size / 64) ** 0.5
    assert rows(table)["learning rate in effect"] == ["0.001", f"{rate:.4g}"]


def test_before_and_after_has_the_limits_and_the_confirmed_speed(material: ReportData) -> None:
    table = before_and_after(material)
    assert table is not None
    found = rows(table)
    assert material.summary.ratio is not None
    assert found["throughput, samples/s"][1] == f"{material.summary.ratio.throughput:,.0f}"
    assert found["throughput, samples/s"][2] == f"{material.summary.ratio.ratio:.3g}x"
    assert found["per epoch"][2].startswith("1/")
    assert found["loss"][3].startswith("at most 0.428")


def test_the_ratio_of_the_speeds_is_the_confirmed_one(material: ReportData) -> None:
    other = dataclasses.replace(material, decision=dataclasses.replace(material.decision, speedup=1.5))
    table = before_and_after(other)
    assert table is not None
    assert rows(table)["throughput, samples/s"][2] == "1.5x"


def test_the_sweep_has_paid_for_itself_when_the_time_saved_is_its_own(material: ReportData) -> None:
    found = {fact.title: fact for fact in costs(material)}
    ratio = material.summary.throughput_of(material.best) / material.summary.throughput_of(material.baseline)  # type: ignore[arg-type]
    until = material.cost.seconds / (ratio - 1)
    assert found["pays for itself after"].value == f"{until:.3g} s"
    # Five seconds at 80 W or so, 40 trials, one after the other.
    assert material.cost.joules == pytest.approx(40 * 5 * 80, rel=0.05)
    assert found["GPU energy"].value == f"{material.cost.joules / 1e3:.3g} kJ"


def count(chart: Chart | None) -> dict[str, int]:
    assert chart is not None
    found: dict[str, int] = {}
    for marks in chart.marks:
        if marks.kind == "points":
            found[marks.name] = found.get(marks.name, 0) + len(marks.x)
    return found


def test_every_trial_has_its_mark(material: ReportData) -> None:
    failed = sum(record.failure is not None for record in material.ended)
    assert failed > 0
    expected = {"baseline": 1, "winner": 1, "feasible": 38 - failed, "failed": failed}
    assert count(history(material)) == expected
    assert count(outcomes(material)) == {"feasible": 40 - failed, "failed": failed}
    panels = {chart.title: chart for chart in effects(material)}
    assert list(panels) == list(material.spec.space)
    assert sum(count(panels["batch_size"]).values()) == 40 - failed
    # Where it has no effect it says nothing.
    workers = sum(r.config.loader.kind == "workers" for r in material.ended if r.measurement)
    assert sum(count(panels["loader.num_workers"]).values()) == workers
    assert panels["batch_size"].x.log
    assert panels["loader.kind"].x.categories == ("workers", "resident", "rows")


def test_a_trial_beyond_a_limit_is_marked_as_such(tmp_path: Path) -> None:
    limits = {"gpu_mem_peak_fraction": {"max": 0.1}, "val_loss": {"max_ratio_to_baseline": 1.02}}
    found = gather(odd.loaded(odd.finished(tmp_path, changes={"constraints": limits})))
    table = failures(found)
    assert table is not None
    assert {row[1].text for row in table.rows} >= {"beyond a limit"}
    assert "gpu_mem_peak_fraction 0.4 is 300.0% beyond the limit" in {row[2].text for row in table.rows}
    assert count(outcomes(found))["beyond a limit"] > 5
    (sizes,) = (chart for chart in effects(found) if chart.title == "batch_size")
    assert (
        count(sizes)["beyond a limit"] == count(outcomes(found))["beyond a limit"] - 2
    )  # The baseline and the winner stand apart.


def test_timelines_begin_where_measuring_does(material: ReportData) -> None:
    charts = {chart.key: chart for chart in timelines(material)}
    assert set(charts) == {"time-gpu_util_pct", "time-gpu_power_w", "time-cpu_util_pct"}
    base, best = charts["time-gpu_power_w"].marks
    assert (base.name, best.name) == ("baseline", "winner")
    assert base.x[0] == pytest.approx(-1.0)
    assert base.dashed


def test_the_breakdown_sums_to_a_step_and_a_script_has_none(material: ReportData) -> None:
    chart = breakdown(material)
    assert chart is not None
    for i in range(chart.rows):
        assert sum(each.x[i] or 0 for each in chart.marks) == pytest.approx(100)
    table = steps(material)
    assert table is not None
    assert [row[0].text for row in table.rows] == ["baseline", "winner", "best of workers"]


def test_the_table_of_trials_has_the_fastest_first_and_sorts_by_numbers(material: ReportData) -> None:
    table = all_trials(material)
    assert len(table.rows) == 40
    by_title = {column.title: i for i, column in enumerate(table.columns)}
    assert {"trial", "outcome", "vs baseline", "throughput, samples/s", "batch_size"} <= set(by_title)
    sizes = [row[by_title["batch_size"]].value for row in table.rows]
    assert sorted(sizes) == sorted(float(record.config.batch_size) for record in material.summary.records)
    faster = [row[by_title["vs baseline"]].value for row in table.rows]
    measured = [value for value in faster if value is not None]
    # Those without a speed, such as failures, come last.
    assert faster == [*sorted(measured, reverse=True), *[None] * (len(faster) - len(measured))]
    (strong,) = table.strong
    assert material.best is not None
    assert int(table.rows[strong][0].text) == material.best.number


def test_provenance_and_commands_are_enough_to_do_it_again(material: ReportData, page: str) -> None:
    found = rows(provenance(material))
    assert found["torch"] == ["2.9.0"]
    assert found["driver"] == ["570.1"]
    assert found["device"] == ["NVIDIA A10, 22.5 GiB"]
    assert found["began"][0].endswith(" UTC")
    assert f"--home {material.sweep.journal.folder.parents[1]}" in dict(commands(material))["show all trials"]
    assert "max_ratio_to_baseline: 1.02" in page


def test_a_thousand_trials_are_thinned_in_figures_and_whole_in_the_table(material: ReportData) -> None:
    record = material.ended[5]
    many = [dataclasses.replace(record, number=i) for i in range(6, 3000)]
    crowded = dataclasses.replace(material, ended=(*material.ended[:3], *many))
    chart = history(crowded)
    assert chart is not None
    assert all(len(each.x) <= 300 for each in chart.marks if each.kind == "points")


def test_axes_are_labelled_in_round_numbers() -> None:
    assert log_ticks([64, 4096], doubling=True) == (64, 128, 256, 512, 1024, 2048, 4096)
    assert log_ticks([900, 1.1e6]) == (1e3, 1e4, 1e5, 1e6)
    assert log_ticks([]) == ()
    assert [axis_label(each) for each in (0.25, 512, 30_000, 1_500_000, 2e9)] == [
        "0.25",
        "512",
        "30k",
        "1.5M",
        "2G",
    ]


def test_a_race_is_drawn_round_by_round_up_to_the_ratio_that_is_said(tmp_path: Path) -> None:
    sweep = odd.loaded(odd.finished(tmp_path, trials=12))
    chart = race(gather(sweep))
    assert chart is not None
    best = sweep.decision.best
    assert best is not None
    own = [marks for marks in chart.marks if marks.name.startswith(sweep.name_of(best.record))]
    assert [marks.dashed for marks in own] == [False, True, True]
    ratio, low, high = own
    assert ratio.x == tuple(range(1, len(sweep.rounds) + 1))
    assert ratio.y[-1] == pytest.approx(math.exp(Tally.of(sweep.rounds, best.record.number).mean))
    assert low.y[0] < low.y[-1] < ratio.y[-1] < high.y[-1] < high.y[0]
    assert chart.marks[-1].name == "baseline"


def test_without_a_race_none_is_drawn(tmp_path: Path) -> None:
    journal = odd.finished(tmp_path, trials=12)
    journal.race_log(FINAL_RACE).unlink()
    assert race(gather(odd.loaded(journal))) is None
