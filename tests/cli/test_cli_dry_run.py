"""`sweeper run --dry-run` in a process of its own; and how a plan reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sweeper.cli.check import space_lines
from sweeper.cli.run import expected_duration, plan_lines
from sweeper.core.config import TrialConfig
from sweeper.schema import SweepSpec
from sweeper.sweep.dry_run import Plan

REPOSITORY = Path(__file__).parents[2]
SPEC = SweepSpec.from_dict(
    {
        "name": "tiny",
        "pipeline": "pipelines.tabular",
        "space": {
            "batch_size": {"type": "int", "low": 32, "high": 256, "log": True},
            "loader.kind": {"type": "categorical", "choices": ["workers", "rows", "resident"]},
            "loader.num_workers": {
                "type": "int",
                "low": 0,
                "high": 2,
                "when": {"loader.kind": ["workers", "rows"], "batch_size": {"min": 64, "max": 128}},
            },
        },
        "baseline": {"loader.kind": "rows", "batch_size": 32},
        "search": {"trials": 2, "minutes": 5},
    }
)


def plan(**changes) -> Plan:
    usual = {
        "spec": SPEC,
        "device": "EPYC",
        "existing": "",
        "removed": (),
        "size": None,
        "references": (TrialConfig(batch_size=32),),
        "first": (TrialConfig(batch_size=99),),
        "minutes": 2.4,
        "at_most_minutes": 5.0,
    }
    return Plan(**{**usual, **changes})


def test_conditions_are_spelled_out():
    lines = list(space_lines(SPEC))
    assert lines[:2] == ["  batch_size: 32 to 256 (log)", "  loader.kind: workers, rows, resident"]
    condition = "loader.kind is workers or rows and batch_size is at least 64 and at most 128"
    assert lines[2] == f"  loader.num_workers: 0 to 2  when {condition}"
    assert "; 2,025 combinations; 2 trials or 5 minutes" in lines[3]
    assert "; 17 distinct configurations; " in list(space_lines(SPEC, 17))[3]


def test_a_plan_in_lines():
    lines = list(plan_lines(plan(existing="`tiny` is there.", removed=("bf16 left.",))))
    assert lines[1] == "`tiny` is there."
    assert lines[lines.index("Left out on this machine:") + 1] == "  bf16 left."
    assert lines[lines.index("Reference trials:") + 1].startswith("  000 baseline: bs32")
    after = lines.index("First configurations of the search:") + 1
    assert lines[after].startswith("  001 bs99")
    assert lines[-1].startswith("Duration without data preparation: about 2 minutes, at most 5")
    assert "Left out on this machine:" not in list(plan_lines(plan()))


def test_minutes():
    assert expected_duration(plan(minutes=1.04)) == "about 1 minute, at most 5"
    assert expected_duration(plan(minutes=0.26)) == "about 0.3 minutes, at most 5"
    assert (
        expected_duration(plan(at_most_minutes=None)) == "about 2 minutes; no limit is set (`search.minutes`)"
    )


@pytest.mark.slow
def test_a_process_of_its_own_leaves_nothing(sweeper, tmp_path, monkeypatch):
    shutil.copytree(REPOSITORY / "pipelines", "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    Path("tiny.yaml").write_text(
        """\
name: tiny
pipeline: pipelines.tabular
data: {rows: 2000, features: 4}
space:
  batch_size: {type: int, low: 32, high: 256, log: true}
  precision.tf32: {type: categorical, choices: [true, false]}
baseline: {loader.kind: rows, batch_size: 32}
measure: {quality_samples: 0}
search: {trials: 2, minutes: 5}
execution: {gpus: 0}
"""
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = sorted(tmp_path.rglob("*"))
    done = sweeper("run", "tiny.yaml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "225 distinct configurations" in done.stdout
    assert "precision.tf32: true removed from the space (TF32 is an NVIDIA format)." in done.stdout
    assert "\n  002 bs" in done.stdout
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before
    done = sweeper("run", "tiny.yaml", "--dry-run", "--set", "search.trials=none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
