"""What moving the winner costs, as a line, as a table and for programs; and where `show` says it."""

from __future__ import annotations

import json
import sys

import pytest
from rich.console import Console

from sweeper.cli import main
from sweeper.cli.sensitivity import sensitivity_line, sensitivity_table
from sweeper.results.numbers.sensitivity import Sensitivity


def beside(name: str, value, ratio: float, how="measured") -> Sensitivity:
    return Sensitivity(name=name, value=value, ratio=ratio, how=how)


def printed(found: list[Sensitivity]) -> str:
    out = Console(width=120)
    with out.capture() as caught:
        for each in sensitivity_table(found):
            out.print(each)
    return caught.get()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], ""),
        ([beside("loader.kind", "rows", 0.1)], "What mattered most: loader.kind (rows costs 90%)."),
        ([beside("loader.kind", "rows", 0.999)], ""),
        # Those that cost most, by measurement and not by the order of the space; two are enough.
        (
            [
                *(beside("device.malloc", "default", 0.95), beside("loader.kind", "rows", 0.5, "predicted")),
                *(beside("precision.amp", "fp32", 0.61), beside("precision.amp", "bf16", 0.97)),
            ],
            "What mattered most: loader.kind (rows costs about 50%), precision.amp (fp32 costs 39%).",
        ),
        # A bound is rounded upwards.
        (
            [beside("batch_size", 256, 0.979), beside("batch_size", 64, 1.2)],
            "What mattered most: batch_size (256 costs 2%). "
            "The winner is on a plateau: no neighbouring number costs more than 3%.",
        ),
        (
            [beside("batch_size", 256, 0.0)],
            "The winner is on a peak: batch_size at 256 fails or breaks a limit.",
        ),
    ],
)
def test_a_line(found, said):
    assert sensitivity_line(found) == said


def test_a_table():
    """The parameter that costs most first."""
    found = [
        beside("batch_size", 256, 0.979),
        beside("batch_size", 1024, 1.02, "predicted"),
        beside("loader.pin_memory", True, 0.0),
    ]
    lines = [" ".join(text.split()) for text in printed(found).splitlines()]
    assert lines == [
        "What matters",
        "vs the winner's value",
        "loader.pin_memory true fails or breaks a limit",
        "batch_size 256 costs 2%; 1024 costs nothing",
        "about: predicted from all trials",
        "The winner is on a plateau: no neighbouring number costs more than 3%.",
    ]
    assert printed([]) == ""


@pytest.fixture
def show(finished_home, monkeypatch, capsys):
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sweeper", "show", "toy", "--home", str(finished_home), *arguments])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return run


def test_show_says_what_matters(show):
    """Ten trials: batches from 64 to 1024, of which throughput is a multiple."""
    out = show()
    assert (
        out.index("What matters") < out.index("The winner is on a peak: batch_size at ") < out.index("Look:")
    )
    found = json.loads(show("--json"))
    winner = found["winner"]["config"]
    assert winner["loader.kind"] == "resident"
    ratios = {(each["name"], each["value"]): each["ratio"] for each in found["sensitivity"]}
    assert ratios[("loader.kind", "workers")] < 0.8
    below = {value: ratio for (name, value), ratio in ratios.items() if name == "batch_size"}
    assert min(below.values()) == pytest.approx(min(below) / winner["batch_size"], rel=0.25)
    assert not [name for name, _ in ratios if name == "loader.num_workers"]
    assert {each["how"] for each in found["sensitivity"]} <= {"measured", "predicted"}
