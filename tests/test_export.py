"""The export: complete in itself, with provenance, and honest about what it rests on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replays import PIPELINE, Bench, failing

from sweeper import __version__
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.errors import NothingFeasibleError, UserError
from sweeper.core.measurement import FailureKind, Report
from sweeper.export import FORMATS, exported, rendered
from sweeper.spec import read_yaml
from sweeper.sweep.journal import Journal
from sweeper.sweep.loading import LoadedSweep, load_sweep, summarise
from sweeper.testing.noop import made_up


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")


def loaded(bench: Bench) -> LoadedSweep:
    return load_sweep(Journal(bench.home / "sweeps" / "toy"))


def test_the_configuration_is_the_one_that_was_measured(bench):
    bench.run()
    sweep = loaded(bench)
    summary = summarise(sweep)
    found = exported(summary, sweep.spec)
    assert summary.winner is not None
    assert decode(TrialConfig, found["config"]) == summary.winner.config.canonical()
    assert found["provenance"]["trial"] == summary.winner.number
    assert found["provenance"]["uid"] == summary.winner.uid
    assert found["provenance"]["sweeper"] == __version__
    assert found["measured"]["x_baseline"]["rounds"] == 3
    assert found["measured"]["val_loss"] == 1.0
    assert found["holds_for"]["device"] == "none"
    assert found["pipeline"] == "toy_pipeline"


def test_warnings_stand_where_the_numbers_rest_on_little(bench):
    bench.run()
    sweep = loaded(bench)
    assert [w.partition(":")[0] for w in exported(summarise(sweep), sweep.spec)["warnings"]] == [
        "Measured on made-up data"
    ]
    searched = exported(summarise(sweep), sweep.spec, 5)
    assert searched["measured"]["x_baseline"] is None
    assert any("Not confirmed" in warning for warning in searched["warnings"])


def test_on_real_data_a_confirmed_winner_has_no_warning(bench):
    bench.run(prepared=Report(values={"synthetic": False, "notes": []}))
    sweep = loaded(bench)
    assert exported(summarise(sweep), sweep.spec)["warnings"] == []


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "args"])
def test_every_format_reads_back(bench, tmp_path, form):
    bench.run()
    sweep = loaded(bench)
    value = exported(summarise(sweep), sweep.spec)
    path = tmp_path / f"best.{form}"
    path.write_text(rendered(value, form))
    assert read_yaml(path) == json.loads(json.dumps(value))


def test_only_what_was_measured_and_is_feasible(bench):
    bench.run(answer=failing(FailureKind.OOM))
    sweep = loaded(bench)
    with pytest.raises(UserError, match="but 2 is not: it broke"):
        exported(summarise(sweep), sweep.spec, 2)
    with pytest.raises(UserError, match="has no trial 77"):
        exported(summarise(sweep), sweep.spec, 77)
    with pytest.raises(UserError, match=r"Did you mean `json`\?"):
        rendered({}, "jsn")


def test_without_a_winner(bench):
    bench.run(answer=lambda config: made_up(5.0))
    sweep = loaded(bench)
    with pytest.raises(NothingFeasibleError, match="no winner to export"):
        exported(summarise(sweep), sweep.spec)


def test_a_pipelines_winner_has_no_command_line(bench):
    bench.run()
    sweep = loaded(bench)
    with pytest.raises(UserError, match="needs the sweep of a `command`"):
        rendered(exported(summarise(sweep), sweep.spec), "args")
