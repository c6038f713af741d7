"""`list` and `show` on a finished sweep, for people and for programs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from measurements import measurement
from replays import PIPELINE, Bench, spec_of, throughput

from sweeper.cli import main
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.metrics import METRICS
from sweeper.sweep.folder.catalog import all_sweeps
from sweeper.sweep.folder.load import listed_sweep


@pytest.fixture
def cli(finished_home, monkeypatch, capsys):
    """Runs a command in this process: code, standard output, standard error."""
    monkeypatch.delenv("SWEEPER_HOME", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def home(finished_home) -> str:
    return str(finished_home)


def test_list(cli, home, monkeypatch):
    code, out, err = cli("list", "--home", home)
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert line.split()[:4] == ["toy", "finished", "8", "trials"]
    monkeypatch.setenv("SWEEPER_HOME", home)
    assert cli("list")[1] == out
    code, out, _ = cli("list", "--json")
    (entry,) = json.loads(out)
    assert entry.keys() == {"name", "state", "device", "trials", "ratio", "is_provisional"}
    assert (entry["name"], entry["state"], entry["trials"]) == ("toy", "finished", 8)


def test_a_ratio_that_no_new_processes_have_confirmed_is_only_so_far(cli, home, monkeypatch):
    (journal,) = all_sweeps(Path(home))
    entry = dataclasses.replace(listed_sweep(journal), ratio=3.78)
    for is_provisional, how in ((False, "confirmed"), (True, "so far")):
        shown = dataclasses.replace(entry, is_provisional=is_provisional)
        monkeypatch.setattr("sweeper.cli.list.listed_sweep", lambda journal, shown=shown: shown)
        assert f"3.78x {how} " in cli("list", "--home", home)[1]


def test_list_of_an_empty_home(cli, tmp_path):
    assert cli("list", "--home", str(tmp_path))[0] == 0
    assert cli("list", "--home", str(tmp_path), "--json")[1].strip() == "[]"


def test_show_says_what_the_preflight_took_out(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)

    def refuses(config):
        failed = config.precision.amp == "bf16"
        return Failure(kind=FailureKind.UNSUPPORTED, message="no bf16") if failed else None

    Bench(tmp_path / "home").run(spec_of(search={"trials": 2}), refuses=refuses)
    line = "precision.amp: bf16 removed from the space (no bf16)."
    assert line in cli("show", "toy", "--home", str(tmp_path / "home"))[1].splitlines()


def test_show_says_the_decision_before_its_reasons(cli, home):
    code, out, err = cli("show", "toy", "--home", home)
    assert (code, err) == (0, "")
    assert out.count("\n  0") >= 9
    assert "70.4x as fast as your baseline, confirmed (95% interval" in out
    assert f"sweeper export toy --home {home}" in out
    assert "The data is synthetic" in out
    assert all(line.endswith("compute-bound") for line in out.splitlines() if line.startswith("  0"))
    assert "Your baseline is compute-bound: arithmetic takes 100% of the step." in out
    assert "The winner is compute-bound" in out
    assert "disturbed" not in out


TRIAL = {"number", "origin", "outcome", "feasible", "stage", "config", "metrics", "notes"}
VERDICT = {"verdict", "why", "next", "next_changes", "contamination"}


def test_show_json_is_as_documented(cli, home):
    code, out, _ = cli("show", "toy", "--home", home, "--json")
    assert code == 0
    found = json.loads(out, parse_constant=pytest.fail)
    assert set(found) == {"name", "state", "device", "baseline", "winner", "trials", "sensitivity", "race"}
    assert (found["name"], found["state"], found["device"]) == ("toy", "finished", "none")
    # Three rounds of two candidates and the baseline.
    assert [(process["round"], process["trial"]) for process in found["race"][:3]] == [(0, 0), (0, 3), (0, 7)]
    assert {process["round"] for process in found["race"]} >= {0, 1, 2}
    assert set(found["race"][0]["turns"][0]) == {"at", "seconds", "steps", "samples", "foreign"}
    one = {"number", "config", "metrics", "notes"}
    assert set(found["baseline"]) == one
    assert set(found["winner"]) == one | {
        *("ratio", "ratio_low", "ratio_high", "ratio_sitting_low", "ratio_sitting_high"),
        *("throughput_low", "throughput_high", "time_to_loss"),
    }
    assert [trial["number"] for trial in found["trials"]] == list(range(10))
    for trial in found["trials"]:
        assert set(trial) == TRIAL | VERDICT
        assert (trial["verdict"], trial["why"]) == ("compute-bound", "arithmetic takes 100% of the step")
        assert trial["next"].startswith("the device is at its limit")
        assert (trial["next_changes"], trial["contamination"]) == ({}, [])
        assert trial["metrics"].keys() <= METRICS.keys()
        assert trial["outcome"] == "measured"
    by_number = {trial["number"]: trial for trial in found["trials"]}
    assert by_number[found["winner"]["number"]]["stage"] == "winner"
    assert by_number[0]["stage"] == "baseline"
    assert by_number[0]["metrics"]["throughput"] == 64.0
    # 60,000 samples: where its own pass ended, and where that of the baseline's loss did.
    assert by_number[0]["metrics"]["time_to_loss_s"] == 937.5
    assert by_number[0]["notes"] == found["baseline"]["notes"] == {"time_to_loss_how": "measured"}
    assert found["winner"]["ratio"] == pytest.approx(70.4)


def test_show_why_tells_where_each_configuration_came_from(cli, home):
    code, out, _ = cli("show", "toy", "--why", "--home", home)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"  000 baseline +the space's `baseline`", lines[0])
    assert re.search(r"entry 1 of the space's `also_try`$", lines[1])
    said = [line[41:] for line in lines]
    assert sum(line.startswith("start: usually fast values") for line in said) >= 2
    assert "spread over the space (Sobol)" in said or any("one step from trial" in line for line in said)
    number = next(i for i, line in enumerate(said) if line.startswith("start: "))
    shown = cli("show", "toy", "--trial", str(number), "--home", home)[1]
    assert shown.splitlines()[1] == f"  tried because: {said[number]}"
    trials = json.loads(cli("show", "toy", "--home", home, "--json")[1])["trials"]
    assert [trial["origin"] for trial in trials] == said


def test_show_one_trial(cli, home):
    code, out, _ = cli("show", "toy", "--trial", "0", "--home", home)
    assert code == 0
    assert out.splitlines()[0] == "000 baseline (baseline)"
    lines = out.splitlines()
    assert "  loader.kind: rows" in lines
    card = lines.index("compute-bound: arithmetic takes 100% of the step")
    assert lines[card + 2] == "  └─ forward             100% " + 40 * "█" + "  ◄ the cause"
    assert card < lines.index("Result") < lines.index("  throughput: 64 samples/s") < lines.index("Times")
    assert "  window of 1 s: 64/s, 0.00 cores busy (0.00 by others)" in lines
    code, out, _ = cli("show", "toy", "--trial", "2", "--home", home, "--json")
    found = json.loads(out)
    assert found["outcome"]["throughput"] > 0
    assert found["number"] == 2
    assert set(found) == TRIAL | VERDICT | {"outcome"}
    assert found["verdict"] == "compute-bound"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "tay"], 2, "Did you mean `toy`?"),
        (["show", "toy", "--why", "--json"], 2, "`--why` excludes other options; `--trial N` and"),
        (["show", "toy", "--trial", "99"], 2, "`toy` has no trial 99; it has 10, numbered from 0."),
        (["ui", "tay"], 2, "Did you mean `toy`?"),
        (["ui"], 2, "`toy` has no runs in MLflow yet"),
    ],
)
def test_a_mistake_is_one_line(cli, home, arguments, code, says):
    got, out, err = cli(*arguments, "--home", home)
    assert got == code, err
    assert says in err
    assert err.count("\n") == 1
    assert err.startswith("sweeper: ")
    assert out == ""


def test_what_cannot_be_printed_is_escaped(cli, home):
    _, _, err = cli("show", "\x1b[31mred", "--home", home)
    assert "\x1b" not in err


def test_a_sweep_without_a_winner_says_so(cli, tmp_path, monkeypatch):
    from parts.noop import synthetic

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)
    Bench(tmp_path / "home").run(answer=lambda config: synthetic(10.0))
    out = cli("show", "toy", "--home", "home")[1]
    assert "toy: No trial is shown to be better than your baseline (" in out
    assert json.loads(cli("show", "toy", "--home", "home", "--json")[1])["winner"] is None


def test_a_sweep_whose_time_is_up_before_its_first_trial_does_not_compare(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)
    Bench(tmp_path / "home").run(spec_of(search={"minutes": 1e-6}, also_try=[]))
    out = cli("show", "toy", "--home", "home")[1]
    assert "toy: Only the baseline has been measured (" in out
    assert "the time is up after 0 trials" in out


def test_a_confirmation_that_decides_nothing_says_what_it_knows(cli, tmp_path, monkeypatch):
    """Faster in the search, and in the rounds now faster, now slower."""
    from parts.noop import synthetic

    speeds = itertools.cycle([400.0, 30.0, 900.0])

    def answer(config):
        return synthetic(100.0 if config.loader.kind == "rows" else next(speeds))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)
    Bench(tmp_path / "home").run(spec_of(confirm={"rounds": 3, "top": 1}), answer)
    out = cli("show", "toy", "--home", "home")[1]
    assert "toy: Undecided: trial " in out
    assert "x as fast as your baseline (95% interval for a later run [0." in out
    assert "More rounds (`confirm.rounds`) or a quieter machine" in out
    assert "is better than" not in out
    # Measured in the rounds, but not confirmed.
    assert "confirmed in interleaved rounds" not in out
    assert "*" not in out


def test_disturbed_and_failed_trials_say_so(cli, tmp_path, monkeypatch):
    """Of the searched trials the first fails; all others wait for data, beside something else."""
    failures = [Failure(kind=FailureKind.OOM, message="CUDA out of memory")]

    def answer(config):
        if config.loader.kind != "rows" and failures:
            return failures.pop()
        flags = () if config.loader.kind == "rows" else ("other processes took cores",)
        found = measurement(data=0.6, fits_device=True, windows={"disturbances": flags})
        return dataclasses.replace(found, throughput=throughput(config))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text(PIPELINE)
    Bench(tmp_path / "home").run(spec_of(confirm={"rounds": 0}), answer)
    _, out, _ = cli("show", "toy", "--home", "home")
    lines = [line for line in out.splitlines() if line.startswith("  0")]
    assert "oom: CUDA out of memory" in lines[2]
    said = [line.partition("input-bound")[2] for line in lines]
    assert said == ["", "", ""] + ["  disturbed (other processes took cores)"] * 7
    assert "~ timings stayed disturbed" in out
    # The best is only searched: what its own windows say.
    decision = out[out.index("toy: ") :]
    assert "Your baseline is input-bound: waiting for data takes 60% of the step." in decision
    assert "Next: `loader.kind: resident`; adding workers will not help." in decision
    assert "The fastest trial is input-bound" in decision
    assert decision.count("stayed disturbed: other processes took cores.") == 1

    trials = json.loads(cli("show", "toy", "--home", "home", "--json")[1])["trials"]
    assert set(trials[2]) == TRIAL | {"verdict"}
    assert (trials[2]["outcome"], trials[2]["verdict"]) == ("oom", None)
    assert (trials[0]["verdict"], trials[0]["contamination"]) == ("input-bound", [])
    assert trials[0]["why"] == "waiting for data takes 60% of the step"
    assert trials[0]["next_changes"] == {"loader.kind": "resident"}
    assert {tuple(trial["contamination"]) for trial in trials[3:]} == {("other processes took cores",)}
    assert "disturbed" in cli("show", "toy", "--trial", "3", "--home", "home")[1]
    assert "oom in stage" in cli("show", "toy", "--trial", "2", "--home", "home")[1]


def test_another_system_than_linux_is_one_line(cli, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    code, out, err = cli("list")
    assert (code, out, err) == (2, "", "sweeper runs on Linux only (this is darwin).\n")


def test_the_version(cli):
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("sweeper ")
