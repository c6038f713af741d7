"""`sweeper.load`: a row a trial, every column in its type, and the table as a file."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pandas as pd
import pytest
from thousand import STARTED, write_sweep

import sweeper
from sweeper.core.metrics import METRICS
from sweeper.dataframe import FORMATS, render_table
from sweeper.errors import UserError
from sweeper.sweep.folder.load import load_sweep

TRIALS = 40


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A finished sweep; its last trial is still running."""
    made = write_sweep(tmp_path_factory.mktemp("home"), "toy", trials=TRIALS, with_series=False)
    (made.trial_folder(TRIALS - 1) / "outcome.json").unlink()
    return made


@pytest.fixture(scope="module")
def table(journal) -> pd.DataFrame:
    return sweeper.load("toy", journal.folder.parents[1])


def test_a_row_a_trial(table, journal):
    sweep = load_sweep(journal)
    assert table.index.name == "number"
    assert list(table.index) == list(range(TRIALS))
    for number, record in sweep.table.records.items():
        row = table.loc[number]
        assert row["name"] == sweep.name_of(record)
        assert row["feasible"] == record.feasible
        assert row["uid"] == record.uid
        for name in METRICS:
            assert row[name] == record.metric(name) or (pd.isna(row[name]) and record.metric(name) is None)
        told = dict(record.pipeline_metrics).get("val_accuracy")
        assert row["val_accuracy"] == told or (pd.isna(row["val_accuracy"]) and told is None)
        flat = record.config.canonical().flatten()
        for name in sweep.varied_names():
            assert row[f"param.{name}"] == flat[name]


def test_stages_and_ratios_are_as_confirmed(table, journal):
    sweep = load_sweep(journal)
    assert table.loc[0, "stage"] == "baseline"
    winner = sweep.result.confirmation.winner
    assert list(table.index[table["stage"] == "winner"]) == [winner]
    assert set(table.index[table["ratio"].notna()]) == set(sweep.ratios())
    found = sweep.ratios()[winner]
    assert tuple(table.loc[winner, ["ratio", "ratio_low", "ratio_high"]]) == (
        found.ratio,
        found.low,
        found.high,
    )
    assert table.loc[0, "speedup"] == 1
    assert table["speedup"].equals(table["throughput"] / table.loc[0, "throughput"])


def test_what_failed_and_what_runs(table):
    failed = table[table["failure"].notna()]
    assert set(failed["outcome"]) <= {"oom", "timeout"}
    assert len(failed) > 0
    assert failed["throughput"].isna().all()
    assert failed["verdict"].isna().all()
    assert not failed["feasible"].any()
    last = table.loc[TRIALS - 1]
    assert (last["outcome"], bool(last["feasible"])) == ("running", False)
    assert pd.isna(last["finished"])
    assert last["started"] == pd.Timestamp(STARTED + 6 * (TRIALS - 1) - 5, unit="s", tz="UTC")
    assert table.loc[3, "finished"] == pd.Timestamp(STARTED + 18, unit="s", tz="UTC")
    assert set(table["outcome"]) == {"measured", "running", *failed["outcome"]}


def test_columns_have_their_types(table):
    kinds = {name: str(kind) for name, kind in table.dtypes.items()}
    assert kinds["param.batch_size"] == "Int64"
    assert kinds["param.precision.tf32"] == "boolean"
    assert kinds["param.precision.amp"] == kinds["verdict"] == kinds["failure"] == "string"
    assert kinds["feasible"] == "bool"
    assert {kinds[name] for name in (*METRICS, "speedup", "ratio_low")} == {"float64"}
    assert kinds["started"] == kinds["finished"] == "datetime64[us, UTC]"


def test_parameters_of_other_kinds(tmp_path):
    """A number that is a float in some trials, and one that is a word in others."""
    space = {
        "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
        "model.width": {"type": "categorical", "choices": [64, "wide"]},
        "model.dropout": {"type": "categorical", "choices": [0, 0.5]},
    }
    baseline = {"optimizer.lr": 1e-3, "model.width": 64, "model.dropout": 0, "batch_size": 64}
    write_sweep(tmp_path, trials=8, with_series=False, changes={"space": space, "baseline": baseline})
    found = sweeper.load("thousand", str(tmp_path))
    kinds = {name: str(found[f"param.{name}"].dtype) for name in space}
    assert kinds == {"optimizer.lr": "float64", "model.width": "string", "model.dropout": "float64"}
    assert set(found["param.model.width"]) == {"64", "wide"}
    assert found.equals(pd.read_parquet(io.BytesIO(render_table(found, "parquet"))))


def test_what_has_no_effect_has_its_default(tmp_path):
    """As in `show --json`; and when an older trial was asked for is not known."""
    baseline = {"loader.kind": "resident", "loader.num_workers": 4, "model.hidden_size": 64}
    journal = write_sweep(tmp_path, trials=3, with_series=False, changes={"baseline": baseline})
    path = journal.trial_folder(1) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_at": 0.0}))
    found = sweeper.load("thousand", tmp_path)
    assert found.loc[0, "param.loader.num_workers"] == 0
    assert list(found["started"].isna()) == [False, True, False]


def test_a_sweep_that_has_only_begun(tmp_path):
    begun = write_sweep(tmp_path, "toy", trials=1, with_series=False)
    (begun.trial_folder(0) / "outcome.json").unlink()
    (begun.folder / "result.json").unlink()
    assert list(sweeper.load("toy", tmp_path)["outcome"]) == ["running"]
    (begun.trial_folder(0) / "config.json").unlink()
    empty = sweeper.load("toy", tmp_path)
    assert len(empty) == 0
    assert {"name", "throughput", "param.batch_size", "started"} <= set(empty.columns)
    assert all(render_table(empty, form) for form in FORMATS)


def test_it_reads_back(table):
    assert table.equals(pd.read_parquet(io.BytesIO(render_table(table, "parquet"))))
    text = render_table(table, "csv").decode()
    read = pd.read_csv(io.StringIO(text), index_col="number", parse_dates=["started", "finished"])
    assert (read["throughput"].dropna() == table["throughput"].dropna()).all()
    assert (read["started"] == table["started"]).all()
    assert list(read["param.batch_size"]) == list(table["param.batch_size"])
    rows = json.loads(render_table(table, "json"), parse_constant=pytest.fail)
    assert [row["number"] for row in rows] == list(table.index)
    assert rows[3]["speedup"] == pytest.approx(table.loc[3, "speedup"], rel=1e-14)
    assert rows[0]["started"] == "2026-09-21T14:13:15.000Z"
    assert rows[-1]["finished"] is None
    lines = render_table(table, "table").decode().splitlines()
    # A head of two lines; a column that is empty for all is left out.
    assert len(lines) == TRIALS + 2
    assert "host_mem_peak_gib" not in lines[0]
    assert lines[2].split()[:3] == ["0", "000", "baseline"]


def test_another_format_is_an_error(table):
    with pytest.raises(UserError, match="must be one of csv, json, parquet, table, but got 'parkett'"):
        render_table(table, "parkett")


def test_another_name_is_an_error(journal):
    with pytest.raises(ValueError, match="Did you mean `toy`"):
        sweeper.load("tay", journal.folder.parents[1])
    with pytest.raises(AttributeError, match="has no attribute 'lood'"):
        sweeper.lood  # noqa: B018


def test_a_script_that_meters_imports_nothing_of_it():
    code = (
        "import sys, sweeper\n"
        "mine = [name for name in sys.modules if name.startswith('sweeper.')]\n"
        "assert mine == ['sweeper._version', 'sweeper.script', 'sweeper.script.metering'], mine\n"
        "assert not {'pandas', 'numpy', 'optuna', 'pydantic'} & set(sys.modules)\n"
        "assert sweeper.load.__module__ == 'sweeper.dataframe'\n"
        "assert not {'pandas', 'torch', 'mlflow', 'plotly'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
