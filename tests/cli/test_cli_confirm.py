"""`sweeper confirm` as a person and a program meet it."""

from __future__ import annotations

import json
import math

import pytest

from sweeper.cli.confirm import _json, duration
from sweeper.cli.screen import print_json
from sweeper.errors import UserError
from sweeper.results.numbers.confirmation import Ratio
from sweeper.schema import SweepSpec
from sweeper.sweep.phases.reconfirm import Reconfirmation, Soak
from sweeper.sweep.workloads import workload_of

BEFORE = Ratio(
    trial=3,
    ratio=2.5,
    low=2.0,
    high=3.0,
    throughput=500.0,
    rounds=(500.0,) * 8,
    sitting_low=2.2,
    sitting_high=2.8,
)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "5 m", "m", "-5m", "5d", "five"])
def test_what_is_no_duration_is_said(text):
    with pytest.raises(UserError, match="must be a time such as 90s, 5m or 1h, but got"):
        duration(text)


def test_what_a_person_reads():
    now = Ratio(trial=3, ratio=2.4, low=2.1, high=2.7, throughput=480.0, rounds=(480.0,) * 8)
    soak = Soak(seconds=300.0, throughput=470.0, held=0.98)
    (said, soaked) = Reconfirmation(name="toy", number=3, before=BEFORE, now=now, soak=soak).lines
    assert said == (
        "toy: Trial 3 is 2.4x as fast as your baseline today (95% interval [2.1, 2.7], 8 rounds); "
        "the sweep found 2.5x (95% interval for a later run [2, 3], 8 rounds)."
    )
    assert "Soak test: 470/s over 5 min 00 s in one process; the last third ran at 98%" in soaked
    lost = Ratio(trial=3, ratio=1.0, low=0.9, high=1.1, throughput=200.0, rounds=(200.0,) * 8)
    assert (
        "Trial 3 is not shown to be faster than your baseline today: 1x (95%"
        in Reconfirmation(name="toy", number=3, before=BEFORE, now=lost).lines[0]
    )
    assert (
        "too few processes finished" in Reconfirmation(name="toy", number=3, before=BEFORE, now=None).lines[0]
    )


def test_a_single_round_is_valid_json(capsys):
    now = Ratio(trial=3, ratio=2.4, low=0.0, high=math.inf, throughput=480.0, rounds=(480.0,))
    print_json(_json(Reconfirmation(name="toy", number=3, before=BEFORE, now=now)))
    said = capsys.readouterr().out
    assert "Infinity" not in said
    assert json.loads(said)["now"]["high"] is None


def test_mistakes_are_one_line(in_process):
    done = in_process("confirm", "nothing")
    assert done.returncode == 2
    assert "There is no sweep called 'nothing'" in done.stderr
    done = in_process("confirm", "nothing", "--soak", "soon")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_script_that_is_not_in_the_current_folder_is_named(tmp_path, monkeypatch):
    values = {"type": "categorical", "choices": [1, 2]}
    space = {"name": "mine", "space": {"n": values}, "baseline": {"n": 1}}
    monkeypatch.chdir(tmp_path)
    for command, absent in (
        (["python", "train.py", "{n}"], "train.py"),
        (["python", "-m", "train", "{n}"], ""),
        (["torchrun", "--nproc-per-node", "2", "train.py", "{n}"], "train.py"),
    ):
        spec = SweepSpec.from_dict({**space, "command": command})
        assert workload_of(spec).absent_file(spec) == absent
    (tmp_path / "train.py").touch()
    assert workload_of(spec).absent_file(spec) == ""
