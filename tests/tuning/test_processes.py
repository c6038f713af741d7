"""How many processes of a launcher train fastest."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from pathlib import Path

import pytest
from parts.noop import synthetic

from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.tuning.processes import (
    ProcessSpeed,
    compare_processes,
    num_processes,
    process_lines,
    with_processes,
)

RANKS = Path(__file__).parents[2] / "benchmarks" / "unedited" / "ranks.py"


@pytest.mark.parametrize(
    ("command", "number", "one"),
    [
        ("torchrun --nproc-per-node 4 train.py", 4, "torchrun --nproc-per-node 1 train.py"),
        ("torchrun --nproc_per_node=2 train.py", 2, "torchrun --nproc_per_node=1 train.py"),
        ("accelerate launch --num_processes 8 train.py", 8, "accelerate launch --num_processes 1 train.py"),
        (
            "python -m torch.distributed.run --standalone --nproc-per-node=3 train.py",
            3,
            "python -m torch.distributed.run --standalone --nproc-per-node=1 train.py",
        ),
        ("torchrun --nproc-per-node gpu train.py", 0, ""),
        ("torchrun train.py", 0, ""),
        ("python train.py --num_processes 4", 0, ""),
        ("torchrun --nproc-per-node", 0, ""),
    ],
)
def test_the_number_of_processes_is_the_launchers(command: str, number: int, one: str) -> None:
    words = command.split()
    assert num_processes(words) == number
    if number:
        assert with_processes(words, 1) == one.split()


def speed(number: int, ratio: float, answer: Speed, *, has_same_steps: bool = True) -> ProcessSpeed:
    measured = synthetic(1000.0 * ratio)
    comparison = SpeedComparison(
        answer=answer,
        ratio=ratio,
        low=ratio / 1.1,
        high=ratio * 1.1,
        before=[synthetic(1000.0)],
        after=[measured],
    )
    return ProcessSpeed(number=number, comparison=comparison, has_same_steps=has_same_steps)


def test_one_is_used_where_it_is_faster_or_as_fast() -> None:
    lines = list(process_lines(4, [speed(1, 1.3, Speed.FASTER), speed(2, 1.2, Speed.FASTER)]))
    assert lines == [
        "1 process: 1,300/s, 1.3x [1.18, 1.43] of your 4.",
        "2 processes: 1,200/s, 1.2x [1.09, 1.32] of your 4.",
        "Use 1 process.",
    ]
    assert list(process_lines(4, [speed(1, 1.0, Speed.SAME), speed(2, 1.01, Speed.SAME)]))[-1] == (
        "Use 1 process."
    )
    assert list(process_lines(4, [speed(1, 0.5, Speed.SLOWER), speed(2, 1.2, Speed.FASTER)]))[-1] == (
        "Use 2 processes."
    )


def test_more_than_one_have_their_efficiency() -> None:
    lines = list(process_lines(4, [speed(1, 0.4, Speed.SLOWER, has_same_steps=False)]))
    assert lines == [
        "1 process: 400/s, 0.4x [0.364, 0.44] of your 4, with fewer samples in a step.",
        "4 processes are 2.5x [2.27, 2.75] as fast as one: 62% of 4 times.",
    ]


def test_a_number_that_fails_says_why_and_decides_nothing() -> None:
    failed = ProcessSpeed(number=1, why="out of memory")
    assert list(process_lines(2, [failed])) == ["1 process: fails (out of memory)."]
    assert list(process_lines(2, [])) == []


@pytest.mark.slow
def test_processes_of_torchrun_are_compared_with_the_same_samples_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(RANKS, tmp_path / "train.py")
    shutil.copy(RANKS.with_name("mlp.py"), tmp_path / "mlp.py")
    monkeypatch.chdir(tmp_path)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
    ]
    measured = dataclasses.replace(synthetic(100.0), observed={"batch_size": 64})
    said: list[str] = []
    (one,) = compare_processes(command, measured, 10.0, said.append)
    assert said[0] == "Racing 1 process against 2."
    assert one.number == 1
    assert one.comparison is not None
    assert math.isfinite(one.comparison.ratio)
    assert {m.observed["ranks"] for m in one.comparison.before} == {2}
    assert {m.observed["batch_size"] for m in one.comparison.after} == {128}
    assert one.has_same_steps
