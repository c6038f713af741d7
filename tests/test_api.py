"""`sweeper.run`: a real sweep from Python, its result as a notebook shows it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from measurements import measurement
from productions import PIPELINE
from thousand import write_sweep

import sweeper
from sweeper import api
from sweeper.core.measurement import Window
from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.script.changes.change import CLOSE, EXACT
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.observer import Status
from sweeper.sweep.run import SweepRun
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.gains import ChangeGain
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.result import TuneResult
from sweeper.tuning.watch import WatchResult, watch

SPEC = {
    "name": "lines",
    "pipeline": "line_pipeline",
    "space": {"batch_size": {"type": "categorical", "choices": [48, 480]}},
    "baseline": {"batch_size": 48},
    "search": {"trials": 2},
    "measure": {"window_seconds": 0.2, "repeats": 1, "warmup_cap_seconds": 0.2, "trace": False}
    | {"quality_samples": 0},
    "confirm": {"rounds": 0},
}
PROGRAM = """\
import json, sys
import sweeper

sweep = sweeper.run(json.loads(sys.argv[1]), ["search.trials=1"], home="home", progress=sys.argv[2] == "bar")
print(json.dumps([sweep.name, sweep.state, str(sweep.folder), len(sweep.frame()), sweep.lines]))
"""


@pytest.mark.slow
def test_a_program_runs_a_sweep_and_continues_it(tmp_path: Path):
    (tmp_path / "line_pipeline.py").write_text(PIPELINE)

    def run(progress: str) -> tuple[list[object], str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(SPEC), progress],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        *before, last = done.stdout.splitlines()
        return json.loads(last), "\n".join(before) + done.stderr

    found, said = run("bar")
    name, state, folder, trials, lines = found
    assert (name, state, folder) == ("lines", "finished", str(tmp_path / "home/sweeps/lines"))
    assert trials == 2
    assert "000 baseline" in said
    assert str(lines[0]).startswith("lines: ")
    # It has ended: nothing is run again, and the answer is the same.
    assert run("none") == (found, "")


def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> api.Sweep:
    """A finished sweep, loaded as `run` would."""
    journal = write_sweep(tmp_path / "home", "toy", trials=12, with_series=False)
    sweep = load_sweep(journal)
    done = SweepRun(sweep, was_run=False, pending=2, problem="no answer")
    monkeypatch.setattr(api, "run_sweep", lambda *_, **__: done)
    spec = {**SPEC, "pipeline": "pipelines.tabular"}
    return sweeper.run(spec, home=tmp_path / "home", progress=False)


def test_a_notebook_shows_the_decision_and_the_fastest_trials(tmp_path, monkeypatch):
    found = replayed(tmp_path, monkeypatch)
    assert found.ratio is not None
    assert f"{found.ratio.ratio:.3g}x as fast as your baseline, confirmed" in repr(found)
    shown = found._repr_html_()
    assert shown.startswith("<p>toy: ")
    # Two rows of headings: the index has a name.
    assert shown.count("<tr") == 2 + api.MAX_ROWS
    table = found.frame()
    assert isinstance(table, pd.DataFrame)
    fastest = table.sort_values("speedup", ascending=False).iloc[0]
    assert shown.index(fastest["name"]) < shown.index(table.sort_values("speedup").iloc[-3]["name"])
    winner = table.loc[table["stage"] == "winner"].iloc[0]
    assert found.config["batch_size"] == winner["param.batch_size"]
    (unsent,) = found.unsent
    home = tmp_path / "home"
    assert unsent == (
        f"2 runs are not in MLflow yet (no answer). `sweeper sync toy --home {home}` sends them."
    )


def test_a_bad_specification_is_one_error_with_a_line_per_mistake():
    with pytest.raises(UserError) as caught:
        sweeper.run({**SPEC, "serach": {}, "search": {"trials": "many"}}, ["confirm.rounds=-1"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert any("but got 'line_pipeline'" in line for line in lines)
    assert any("`serach`" in line and "search" in line for line in lines)
    assert any(line.startswith("--set confirm.rounds=-1: ") for line in lines)
    assert SPEC["search"] == {"trials": 2}
    with pytest.raises(UserError, match="nowhere"):
        sweeper.run("nowhere")


def test_the_bar_counts_each_phase_of_its_own(capsys):
    def status(**changes: object) -> Status:
        values: dict[str, object] = {
            "phase": "searching", "done": 0, "total": 4, "best": "", "best_ratio": None,
            "running": (), "seconds_left": None,
        }  # fmt: skip
        return Status(**{**values, **changes})  # type: ignore[arg-type]

    with api._Bar() as bar:
        bar.status(status(done=3, best="002 bs64", best_ratio=2.5))
        bar.line("a note")
        bar.status(status(phase="confirming", done=1, total=8))
    said = capsys.readouterr()
    assert "a note" in said.out
    assert re.search(r"searching: \S+ +\S* *3/4 \[00:00, best 2.5x: 002 bs64\]", said.err)
    assert re.search(r"confirming: \S+ +\S* *1/8", said.err)


@pytest.mark.parametrize(
    ("command", "rule", "remedy"),
    [
        ("", "the command must name a program, but got ''", "Write `python train.py`"),
        ([], "the command must name a program, but got \\[\\]", "Write `python train.py`"),
        ("python 'train.py", "the command must be a command line, but got", "Fix its quotes"),
        ("python no.py", "the command must name an existing script, but 'no.py'", "Change to its folder"),
        ("python -V | cat", "must be one command that needs no shell, but contains '\\|'", "Remove it"),
        ("srun python -V", "runs the command .*, but `srun` starts it elsewhere", ""),
    ],
)
@pytest.mark.parametrize("function", [api.tune, api.watch])
def test_a_wrong_command_is_said_before_anything_runs(function, command, rule, remedy):
    with pytest.raises(UserError, match=f"{rule}.*{remedy}"):
        function(command, progress=False)


@pytest.mark.parametrize("function", [api.tune, api.watch])
def test_a_program_that_does_not_exist_or_does_not_train_is_said(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"a program that can be run, but got 'no-program' .* Give its path"):
        function("no-program --lr 1", progress=False)
    with pytest.raises(TrialFailedError, match=r"exited with status 0 .* Name the command that trains"):
        function([sys.executable, "-c", "print(1)"], progress=False)


def test_a_line_is_split_as_a_shell_would(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").write_text("")
    line = "python 'my train.py' --name \"a b\" --lr 1"
    expected = ("python", "my train.py", "--name", "a b", "--lr", "1")
    assert TuneOptions.of(line).command == TuneOptions.of(list(expected)).command == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: sweeper.tune("python train.py"),
        lambda: sweeper.watch("python train.py"),
        lambda: sweeper.judge(["python"], ["python"]),
        lambda: sweeper.run(SPEC),
        lambda: sweeper.confirm("lines"),
    ],
)
@pytest.mark.parametrize("variable", ["SWEEPER_METER", "SWEEPER_SWEEP"])
def test_a_training_that_is_measured_measures_nothing(call, variable, monkeypatch):
    monkeypatch.setenv(variable, "x")
    with pytest.raises(
        UserError, match=r"called in one that is being measured\. Call it from another program"
    ):
        call()


def test_a_judgement_runs_both_to_their_end_where_that_is_asked_for(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(api, "judge_arms", lambda *_, whole: asked.append(whole))
    sweeper.judge(["python"], ["python"], folder=tmp_path)
    sweeper.judge(["python"], ["python"], folder=tmp_path, whole=True)
    assert asked == [False, True]


def test_a_tune_shows_its_decision_and_its_changes():
    gain = ChangeGain(name="loader", value="gathered", alone=(2.0, 1.9, 2.1), stacked=None, is_kept=True)
    result = TuneResult(
        name="tune-train",
        watched=measurement(),
        changes=(
            ChangeValue(name="loader", value="gathered", kind=EXACT),
            ChangeValue(name="compile", value="model", kind=CLOSE, refused="there is too little time"),
        ),
        gains=(gain,),
        lines=("2x as <fast>", "  indeed"),
    )
    table = result.frame()
    assert list(table.index) == ["loader", "compile"]
    assert table.loc["loader", "alone"] == 2.0
    assert list(table["is_kept"]) == [True, False]
    assert list(table["remark"]) == ["", "there is too little time"]
    assert math.isnan(table.loc["compile", "alone"])
    assert repr(result) == "2x as <fast>\n  indeed"
    shown = result._repr_html_()
    assert shown.startswith("<p>2x as &lt;fast&gt;</p><p>indeed</p><table")
    assert result.state == "nothing to try"


def test_a_watch_shows_the_parts_of_a_step():
    result = WatchResult(measurement())
    assert result.samples_per_s == measurement().throughput
    assert repr(result).startswith(f"{result.samples_per_s:,.0f}/s, ")
    table = result.frame()
    assert math.isclose(table["share"].sum(), table["seconds"].sum() / measurement().breakdown.step_s)
    assert f"<p>{result.verdict.kind}: " in result._repr_html_()


@pytest.mark.parametrize("progress", [True, False])
def test_a_watch_says_its_stages_and_windows_if_asked(progress, monkeypatch, tmp_path):
    def run(command, folder, shown):
        shown.stage("build")
        shown.window(Window(start_s=0.0, seconds=2.0, steps=10, samples=640))
        return measurement()

    monkeypatch.setattr("sweeper.tuning.watch.watch_script", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said: list[str] = []
    watch([sys.executable, "-V"], tmp_path / "output", said.append, progress=progress)
    assert said == (["Starting the script.", "  320/s, 200 ms per step"] if progress else [])


def test_an_export_is_the_file_that_the_command_writes(tmp_path):
    home = tmp_path / "home"
    write_sweep(home, "toy", trials=12, with_series=False)
    text = sweeper.export("toy", home=home, out=tmp_path / "best.yaml")
    assert (tmp_path / "best.yaml").read_text() == text
    assert sweeper.export("toy", "args", home=home).startswith("--")
    with pytest.raises(UserError, match="nowhere"):
        sweeper.export("nowhere", home=home)
