"""`compare`, and `show --format`: what is printed, for people and for programs, and the exit codes."""

from __future__ import annotations

import io
import json
import re
import sys

import pandas as pd
import pytest
from thousand import write_sweep

from sweeper.cli import main
from sweeper.sweep.folder.journal import FINAL_RACE

SCRIPT = {
    "pipeline": None,
    "command": ["python", "train.py", "--bs", "{batch_size}", "{precision.amp: bf16 -> --amp}"],
    "space": {
        "batch_size": {"type": "int", "low": 64, "high": 4096, "log": True},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    },
    "baseline": {"batch_size": 64, "precision.amp": "fp32"},
    "constraints": None,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with `mine`, its like `again`, one that is a fifth slower, and others; read only, please."""
    made = tmp_path_factory.mktemp("home")
    for name, about in {
        "mine": {},
        "again": {"seed": 1},
        "slower": {"faster": 0.8, "seed": 4},
        "little": {"faster": 0.955, "seed": 3},
        "unconfirmed": {"rounds": 0},
        "hopeless": {"faster": 0.001},
        "script": {"changes": SCRIPT},
        "elsewhere": {"device": "NVIDIA H200"},
    }.items():
        write_sweep(made, name, **{"trials": 12, "with_series": False, **about})
    return made


@pytest.fixture
def cli(home, monkeypatch, capsys):
    """Runs a command in this process: code, standard output, standard error."""
    monkeypatch.setenv("SWEEPER_HOME", str(home))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_the_decision_comes_first(cli):
    code, out, err = cli("compare", "mine", "slower")
    assert (code, err) == (0, "")
    first = out.splitlines()[0]
    found = re.fullmatch(
        r"B's best runs at (0\.\d{3})x the speed of A's \(95% interval \[(0\.\d{3}), (0\.\d{3})\]\): "
        r"([\d,]+)/s vs ([\d,]+)/s\.",
        first,
    )
    assert found
    assert float(found[2]) < 0.8 < float(found[3])
    assert "  A: mine, finished, 11 trials, NVIDIA A10, 22.5 GiB, torch 2.9.0" in out
    assert "Caveats" not in out
    assert "The winners' configurations are the same." in out
    assert re.search(r"^  samples/s +[\d,]+ +[\d,]+ +0\.\d{3}x \[0\.\d{3}, 0\.\d{3}\]", out, re.MULTILINE)
    assert re.search(r"^  vs its baseline +[\d.]+x \[[\d.]+, [\d.]+\] ", out, re.MULTILINE)
    assert re.search(r"Measured in both: \d+ configurations, with a median B / A of 0\.\d{3}x", out)
    assert "Code, data, space and device are the same." in out
    assert max(map(len, out.splitlines())) <= 120


def test_what_cannot_be_told_apart_is_said(cli):
    assert cli("compare", "mine", "again")[1].startswith("B's best and A's cannot be told apart: ")
    code, out, _ = cli("compare", "mine", "mine")
    assert code == 0
    assert "1.000x" in out


@pytest.mark.parametrize(
    ("other", "allowed", "code", "winner"),
    [
        ("slower", "5%", 1, "slower by more than 5%"),
        ("slower", "60 %", 0, "not slower by more than 60%"),
        ("again", "10%", 0, "not slower by more than 10%"),
        ("little", "5%", 0, "not decided whether slower by more than 5%"),
        ("unconfirmed", "5%", 0, "not decided whether slower by more than 5%"),
        ("hopeless", "5%", 1, "slower by more than 5%"),
    ],
)
def test_slower_by_more_than_allowed_is_an_exit_code(cli, other, allowed, code, winner):
    """`little` is slower by less than the interval tells; `unconfirmed` has none."""
    got, out, err = cli("compare", "mine", other, "--fail-if-slower", allowed)
    assert (got, err) == (code, "")
    baseline, best = out.splitlines()[-2:]
    assert baseline.startswith("The baseline: ")
    assert best.startswith(f"The winner: {winner}: ")
    assert ("crosses 0.95" in best) == (other == "little")
    assert ("without an interval" in best) == (other == "unconfirmed")


def test_a_slower_baseline_is_enough(cli, home, tmp_path):
    """Its rounds are cut to a third; the winner's are not."""
    journal = write_sweep(tmp_path, "third", trials=12, with_series=False)
    path = journal.race_log(FINAL_RACE)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    lives = {event["life"] for event in events if event.get("arm") == 0}
    for event in events:
        if event["event"] == "turn" and event["life"] in lives:
            event["samples"] /= 3
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    code, out, _ = cli("compare", "mine", str(journal.folder), "--fail-if-slower", "5%")
    assert code == 1
    baseline, winner = out.splitlines()[-2:]
    assert baseline.startswith("The baseline: slower by more than 5%: 0.333x [")
    assert winner.startswith("The winner: not slower by more than 5%")


def test_a_sweep_is_a_name_or_a_home_with_a_name_or_a_folder(cli, home, tmp_path, monkeypatch):
    wanted = cli("compare", "mine", "slower")[1]
    monkeypatch.chdir(home.parent)
    there = home.name
    monkeypatch.delenv("SWEEPER_HOME")
    folder = f"{there}/sweeps/slower"
    for a, b in ((f"{there}:mine", folder), (f"{home}/sweeps/mine", f"{home}:slower")):
        assert cli("compare", a, b)[1] == wanted
    assert cli("compare", "mine", folder, "--home", there)[1] == wanted


def test_json_is_as_documented(cli):
    code, out, _ = cli("compare", "mine", "slower", "--json", "--fail-if-slower", "5%")
    assert code == 1
    found = json.loads(out, parse_constant=pytest.fail)
    assert list(found) == [
        *("a", "b", "unfair", "differences", "baseline", "winner", "gain"),
        *("configuration", "searched", "pairs", "median"),
    ]
    assert list(found["b"]) == ["name", "state", "device", "torch", "synthetic", "baseline", "winner"]
    assert found["b"]["winner"].keys() >= {
        "number",
        "how",
        "throughput",
        "epoch_seconds",
        "rounds",
        "verdict",
    }
    assert (found["b"]["winner"]["how"], found["b"]["winner"]["rounds"]) == ("confirmed", 8)
    assert found["winner"]["check"] == "slower"
    assert found["baseline"]["check"] in ("not slower", "not decided")
    assert found["winner"]["low"] < found["winner"]["ratio"] < found["winner"]["high"] < 0.95
    assert "check" not in found["gain"]
    assert found["pairs"][0].keys() == {"a", "b", "ratio"}
    found = json.loads(cli("compare", "mine", "unconfirmed", "--json")[1], parse_constant=pytest.fail)
    assert "check" not in found["winner"]
    assert (found["winner"]["low"], found["gain"]) == (None, None)


def test_a_winner_without_an_interval_is_valid_json(cli, tmp_path):
    journal = write_sweep(tmp_path, "single", trials=12, with_series=False)
    path = journal.folder / "result.json"
    result = json.loads(path.read_text())
    for each in result["ratios"]:
        # As after a single round.
        each.update(low=0.0, high=None)
    path.write_text(json.dumps(result))
    out = cli("compare", "mine", str(journal.folder), "--json")[1]
    winner = json.loads(out, parse_constant=pytest.fail)["b"]["winner"]
    assert (winner["low"], winner["high"]) == (0.0, None)


def test_what_is_not_fair_is_said(cli):
    out = cli("compare", "mine", "elsewhere")[1]
    assert "Caveats:\n  The devices differ: NVIDIA A10, 22.5 GiB and NVIDIA H200." in out
    assert 'Other differences (A -> B):\n  device: "NVIDIA A10, 22.5 GiB" -> "NVIDIA H200"' in out
    out = cli("compare", "mine", "hopeless")[1]
    assert re.search(r"^winner +\d{3} +000 \(nothing is faster\)", out, re.MULTILINE)
    assert re.search(r"^  loader\.kind +resident +rows$", out, re.MULTILINE)


def test_scripts_are_compared_and_share_few_names_with_a_pipeline(cli):
    out = cli("compare", "script", "script")[1]
    assert "The winners' configurations are the same." in out
    out = cli("compare", "mine", "script")[1]
    assert "They do not run the same pipeline or command." in out
    assert "optimizer.lr" not in out
    assert re.search(r"^  loader\.kind +resident +–", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mine", "agin"], "Did you mean `again`?"),
        (
            ["mine", "no/such/folder"],
            "A sweep must be a name, HOME:NAME, or a folder with a sweep.yaml in it",
        ),
        (["mine", "/no/home:mine"], "There is no sweep called 'mine' in /no/home."),
        (["mine", ""], "There is no sweep called ''"),
        *(
            (["mine", "again", "--fail-if-slower", text], "must be a percentage below 100")
            for text in ("5", "x%", "-5%", "100%", "")
        ),
    ],
)
def test_a_mistake_is_one_line(cli, arguments, says):
    code, out, err = cli("compare", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_all_trials_as_a_table(cli, home, tmp_path):
    table = pd.read_csv(io.StringIO(cli("show", "mine", "--format", "csv")[1]), index_col="number")
    assert len(table) == 12
    assert len(json.loads(cli("show", "mine", "--format", "json")[1])) == 12
    assert "param.batch_size" in cli("show", "mine", "--format", "table")[1].splitlines()[0]
    out = tmp_path / "trials.csv"
    assert cli("show", "mine", "--format", "csv", "--out", str(out))[1].strip() == f"Written to {out}."
    assert len(out.read_text().splitlines()) == 13
    path = home / "sweeps" / "mine" / "trials.parquet"
    assert "trials.parquet" in cli("show", "mine", "--format", "parquet")[1]
    assert len(pd.read_parquet(path)) == 12
    path.unlink()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--format", "cvs"], 2, "Did you mean `csv`?"),
        (["--format", "csv", "--json"], 2, "`--format` excludes `--json`"),
        (["--format", "csv", "--trial", "1"], 2, "`--format` excludes `--json` and `--trial`"),
        (["--out", "trials.csv"], 2, "`--out` needs `--format`"),
        (["--format", "csv", "--out", "no/folder/x.csv"], 2, "`--out` must be a file in a folder"),
        (["--format", "csv", "--out", "/proc/x.csv"], 6, "cannot write in /proc"),
    ],
)
def test_a_mistake_in_showing_a_table_is_one_line(cli, arguments, code, says):
    got, out, err = cli("show", "mine", *arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1
