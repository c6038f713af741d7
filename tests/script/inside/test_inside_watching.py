"""The hook in a process: steps, samples, losses and pauses of trainings of many kinds, unedited."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hearing import TRAININGS, Run, run, training

Bare = Callable[[str], dict[str, Any]]

FAST, SOAK = ("plain",), ("compiled",)
KINDS = (
    *("plain", "workers", "careless", "accumulation", "scaler", "lbfgs", "gan", "folds", "by_hand", "cut"),
    *("time_first", "compiled", "stream", "tars", "ahead", "pictures", "rough", "two_loaders", "replay"),
    *("micro", "slotted", "packed", "features_first", "token_budget", "two_backwards", "gradients", "stages"),
)


def marked(names):
    slow, soak = pytest.mark.slow, pytest.mark.soak
    return [
        name if name in FAST else pytest.param(name, marks=soak if name in SOAK else slow) for name in names
    ]


@functools.cache
def watched(kind: str) -> Run:
    """A kind of training with the hook, run once for all that is asked of it here."""
    return training(kind)


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    """Runs a kind of training without the hook, and returns what it says of itself."""
    # They are forks of one process, which has imported torch: that is most of what such a training takes.
    # What imports more draws random numbers on the way, and has a process of its own, as with the hook.
    process = subprocess.Popen(
        [sys.executable, str(TRAININGS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(kind: str) -> dict[str, Any]:
        process.stdin.write(f"{kind}\n")
        process.stdin.flush()
        said: list[dict[str, Any]] = []
        for line in process.stdout:
            if line.startswith("{"):
                said.append(json.loads(line))
                if "status" in said[-1]:
                    break
        assert said
        assert said[-1] == {"status": 0}
        return said[-2]

    yield run
    process.communicate()


@pytest.mark.parametrize("kind", marked(KINDS))
def test_steps_samples_and_losses_are_right_and_nothing_changes(kind, bare: Bare):
    found = watched(kind)
    assert not found.watched.failures
    assert (sum_of_steps(found), found.watched.timeline.samples) == (
        found.truth["steps"],
        found.truth["samples"],
    )
    # Of the fastest steps, only some losses are read.
    error = 0.01 * found.truth["loss"] + 6 * found.truth["loss_spread"] / found.truth["steps"] ** 0.5
    assert mean_loss(found) == pytest.approx(found.truth["loss"], abs=error)
    # Every loss, in every bit.
    assert bare(kind) == found.truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("trainer", "transformers"),
        ("accelerated", "accelerate"),
        ("lightning", "lightning"),
        pytest.param("fabric", "lightning", marks=pytest.mark.soak),
    ],
)
def test_the_loops_of_libraries(kind, module, tmp_path):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (`make services`)")
    found = training(kind, folder=tmp_path)
    assert not found.watched.failures
    assert (sum_of_steps(found), found.watched.timeline.samples) == (
        found.truth["steps"],
        found.truth["samples"],
    )
    assert found.last["paused"] > 0
    # The losses, or the parameters at the end, in every bit.
    assert training(kind, folder=tmp_path, with_hook=False).truth == found.truth


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slices", "whole_batches"])
def test_batches_that_the_loader_does_not_show_are_found_after_some_steps(kind):
    found = training(kind)
    totals = [each for each in found.messages if "steps" in each]
    last = totals[-1]
    assert last["steps"] == found.truth["steps"]
    # How many messages there are, and at which steps, is up to the clock.
    middle = min(totals, key=lambda each: abs(each["steps"] - last["steps"] / 2))
    per_step = (last["samples"] - middle["samples"]) / (last["steps"] - middle["steps"])
    assert per_step == found.truth["samples"] / found.truth["steps"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", {"batch_size": 32, "num_workers": 0, "optimizer": "Adam", "precision": "fp32"}),
        pytest.param("cut", {"batch_size": 32, "accumulate_steps": 1}, marks=pytest.mark.slow),
        pytest.param("by_hand", {"batch_size": 8}, marks=pytest.mark.slow),
        pytest.param("two_loaders", {"batch_size": 96, "num_workers": 1}, marks=pytest.mark.slow),
        *(
            pytest.param(kind, {"batch_size": 32, "accumulate_steps": 1}, marks=pytest.mark.slow)
            for kind in ("micro", "two_backwards", "gradients")
        ),
        pytest.param("workers", {"num_workers": 2, "prefetch_factor": 2}, marks=pytest.mark.slow),
        pytest.param("accumulation", {"accumulate_steps": 4, "batch_size": 32}, marks=pytest.mark.slow),
        pytest.param("scaler", {"precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param("compiled", {"compiled": True}, marks=pytest.mark.soak),
    ],
)
def test_what_a_training_uses_is_known(kind, expected):
    facts = watched(kind).last["facts"]
    assert {name: facts.get(name) for name in expected} == expected


def test_where_the_loader_and_the_optimizer_are_made_is_known():
    lines = TRAININGS.read_text(encoding="utf-8").splitlines()
    places = watched("plain").last["facts"]["places"]
    for made, text in (("loader", "loader = DataLoader(rows()"), ("optimizer", "torch.optim.Adam(")):
        path, _, number = places[made].rpartition(":")
        assert path.endswith(TRAININGS.name)
        assert text in lines[int(number) - 1]


MOVES = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
os.chdir("/")
loader = DataLoader(TensorDataset(torch.randn(64, 2)), batch_size=4)
layer = torch.nn.Linear(2, 1)
for (x,) in loader:
    layer.zero_grad()
    layer(x).sum().backward()
    for each in layer.parameters():
        each.data.add_(each.grad, alpha=-0.1)
"""


@pytest.mark.parametrize(
    "words",
    [("train.py",), ("-c", "import runpy, torch; runpy.run_path('train.py')")],
    ids=["absolute", "relative"],
)
def test_a_place_is_known_although_the_script_moves_on(tmp_path, words):
    """A script that is run by path has a relative name, as every script had before Python 3.9."""
    (tmp_path / "train.py").write_text(MOVES)
    found = run([sys.executable, *words], folder=tmp_path)
    assert found.status == 0, found.errors
    number = next(i for i, line in enumerate(MOVES.splitlines(), 1) if line.startswith("loader"))
    assert found.last["facts"]["places"] == {"loader": f"{tmp_path / 'train.py'}:{number}"}


@pytest.mark.soak
def test_without_a_loader_a_compiled_model_is_left_alone():
    found = training("compiled_step")
    assert (found.last["steps"], found.last["samples"]) == (found.truth["steps"], 0)
    assert training("compiled_step", with_hook=False).truth == found.truth


@pytest.mark.slow
def test_processes_that_train_side_by_side_add_up():
    found = training("hogwild")
    assert (sum_of_steps(found), found.watched.timeline.samples) == (
        found.truth["steps"],
        found.truth["samples"],
    )
    assert len(found.watched.trainers) == 2


def sum_of_steps(found):
    return sum({each["pid"]: each["steps"] for each in found.messages if "steps" in each}.values())


def mean_loss(found):
    """The mean over all steps of the losses reported, each of which is a mean over some steps."""
    steps, total = 0, 0.0
    for each in found.messages:
        if "loss" in each:
            total += each["loss"] * (each["steps"] - steps)
            steps = each["steps"]
    return total / steps


@pytest.mark.slow
def test_of_several_ranks_the_first_reports_for_all(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = run([*command, str(TRAININGS), "distributed"])
    assert found.status == 0, found.errors
    assert (found.last["samples"], found.last["steps"]) == (640, 10)
    # torchrun itself, and two ranks.
    assert len(found.watched.programs) == 3
    assert len({each["pid"] for each in found.messages if "steps" in each}) == 1


@pytest.mark.parametrize("kind", marked(("plain", "careless", "cut")))
def test_evaluation_is_a_pause(kind):
    found = watched(kind)
    if kind != "careless":
        assert found.last["paused"] > 0.09
        assert any(each["pausing"] for each in found.messages if "pausing" in each)
    assert found.last["paused"] < found.last["t"] - found.messages[1]["t"]
