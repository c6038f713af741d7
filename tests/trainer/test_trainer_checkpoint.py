"""Checkpoints: whole or not there, with every random number, and readable by whoever may read the folder."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sweeper.core.training import BEST, CHECKPOINTS, WEIGHTS
from sweeper.errors import UserError
from sweeper.trainer import checkpoint
from sweeper.trainer.checkpoint import Position
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.stepper import Stepper

CPU = torch.device("cpu")


class PowerCutError(Exception):
    """Nothing happens after this."""


@pytest.fixture
def stepper(make_job: Any) -> Stepper:
    return set_up(make_job())[1]


def filled(stepper: Stepper, value: float) -> None:
    with torch.no_grad():
        for parameter in stepper.parameters:
            parameter.fill_(value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_the_one_with_the_most_steps(tmp_path: Path, stepper: Stepper):
    assert checkpoint.newest_checkpoint(tmp_path) is None
    assert checkpoint.position_of(None) == Position()
    for steps in (7, 70, 999_999_999, 1_000_000_000):
        checkpoint.save(tmp_path, stepper, Position(steps=steps, disturbed={"noise": 1.5}), keep=9)
        found = checkpoint.newest_checkpoint(tmp_path)
        assert checkpoint.position_of(found) == Position(steps=steps, disturbed={"noise": 1.5})
    checkpoint.save(tmp_path, stepper, Position(steps=1_000_000_001), keep=1)
    assert names(tmp_path / CHECKPOINTS) == ["1000000001"]


def test_what_was_drawn_is_drawn_again(tmp_path: Path, stepper: Stepper):
    def drawn() -> list[Any]:
        return [
            torch.rand(3).tolist(),
            np.random.normal(size=3).tolist(),
            random.gauss(0, 1),
            random.random(),
        ]

    random.gauss(0, 1)  # The next one is kept by the generator: it draws two at once.
    np.random.normal()
    checkpoint.save(tmp_path, stepper, Position(steps=1), keep=1)
    first = drawn()
    found = checkpoint.newest_checkpoint(tmp_path)
    assert found is not None
    checkpoint.restore_random(found, CPU)
    assert drawn() == first


def test_gradients_are_kept_while_an_accumulation_is_under_way(tmp_path: Path, make_job: Any):
    for accumulated in (1, 2):
        first, second = (set_up(make_job({"accumulate_steps": 2}))[1] for _ in range(2))
        for parameter in first.parameters:
            parameter.grad = torch.full_like(parameter, 3.0)
        first.micro_steps = accumulated
        checkpoint.save(tmp_path, first, Position(steps=accumulated), keep=1)
        found = checkpoint.newest_checkpoint(tmp_path)
        assert found is not None
        checkpoint.restore(found, second)
        assert second.micro_steps == accumulated
        grads = [parameter.grad for parameter in second.parameters]
        assert [None if grad is None else grad.unique().item() for grad in grads] == (
            [3.0, 3.0] if accumulated == 1 else [None, None]
        )


def test_a_checkpoint_half_written_is_none(tmp_path: Path, stepper: Stepper, monkeypatch: pytest.MonkeyPatch):
    filled(stepper, 1.0)
    checkpoint.save(tmp_path, stepper, Position(steps=1), keep=2)
    filled(stepper, 2.0)
    for broken in ("_save_weights", "_fsync", "write_json", "_appear"):
        with monkeypatch.context() as patch:

            def cut(*arguments: Any) -> None:
                raise PowerCutError

            patch.setattr(checkpoint, broken, cut)
            with pytest.raises(PowerCutError):
                checkpoint.save(tmp_path, stepper, Position(steps=2), keep=2)
        found = checkpoint.newest_checkpoint(tmp_path)
        assert found is not None
        assert found.name == "000000001"
        checkpoint.restore(found, stepper)
        assert {parameter.unique().item() for parameter in stepper.parameters} == {1.0}
    assert ".making-000000002" in names(tmp_path / CHECKPOINTS)
    # The next one is not disturbed by what lies there.
    (tmp_path / CHECKPOINTS / ".making-000000002" / "rest").touch()
    checkpoint.save(tmp_path, stepper, Position(steps=2), keep=2)
    assert names(tmp_path / CHECKPOINTS) == ["000000001", "000000002"]
    assert names(tmp_path / CHECKPOINTS / "000000002") == [WEIGHTS, "position.json", checkpoint.STATE]


def test_old_checkpoints_go_only_once_the_new_one_is_there(
    tmp_path: Path, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
):
    checkpoint.save(tmp_path, stepper, Position(steps=1), keep=1)
    removed = []
    real = shutil.rmtree

    def rmtree(path: Path, **options: Any) -> None:
        removed.append((Path(path).name, names(tmp_path / CHECKPOINTS)))
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    checkpoint.save(tmp_path, stepper, Position(steps=2), keep=1)
    assert removed[-1] == ("000000001", ["000000001", "000000002"])
    assert names(tmp_path / CHECKPOINTS) == ["000000002"]


@pytest.mark.parametrize("cut_at", range(1, 6))
def test_of_two_best_weights_one_is_always_whole(
    cut_at: int, tmp_path: Path, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
):
    filled(stepper, 1.0)
    checkpoint.save_best(tmp_path, stepper.model, {"epoch": 1})
    filled(stepper, 2.0)
    calls = []

    def cut(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(real.__name__)
            if len(calls) == cut_at:
                raise PowerCutError
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for place, name in ((Path, "rename"), (checkpoint.shutil, "rmtree")):
            patch.setattr(place, name, cut(getattr(place, name)))
        with pytest.raises(PowerCutError):
            checkpoint.save_best(tmp_path, stepper.model, {"epoch": 2})
    whole = [path for path in tmp_path.iterdir() if (path / "about.json").exists()]
    values = {float(next(iter(load_file(path / WEIGHTS).values())).flatten()[0]) for path in whole}
    assert values <= {1.0, 2.0}
    assert whole
    checkpoint.recover_best(tmp_path)
    assert (tmp_path / BEST / WEIGHTS).exists()
    # What lies there never stands in the way of the next one, nor is taken for a checkpoint.
    assert checkpoint.newest_checkpoint(tmp_path) is None
    checkpoint.save_best(tmp_path, stepper.model, {"epoch": 3})
    assert names(tmp_path) == [BEST]
    assert float(next(iter(load_file(tmp_path / BEST / WEIGHTS).values())).flatten()[0]) == 2.0


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_are_for_whoever_may_read_the_folder(mask: int, tmp_path: Path, stepper: Stepper):
    before = os.umask(mask)
    try:
        checkpoint.save(tmp_path, stepper, Position(steps=1), keep=1)
    finally:
        os.umask(before)
    found = tmp_path / CHECKPOINTS / "000000001"
    assert {
        (found / name).stat().st_mode & 0o777 for name in (WEIGHTS, checkpoint.STATE, "position.json")
    } == {0o666 & ~mask}


class Tripwire:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", [checkpoint.STATE, "state.pt"])
def test_no_code_is_run_by_reading_a_checkpoint(name: str, tmp_path: Path, stepper: Stepper):
    checkpoint.save(tmp_path, stepper, Position(steps=1), keep=1)
    found = checkpoint.newest_checkpoint(tmp_path)
    assert found is not None
    (found / checkpoint.STATE).unlink()
    torch.save({"random": Tripwire(tmp_path / "run")}, found / name)
    message = "a pickle of an older sweeper" if name == "state.pt" else "damaged or not the state"
    with pytest.raises(UserError, match=message):
        checkpoint.restore_random(found, CPU)
    with pytest.raises(UserError, match=message):
        checkpoint.restore(found, stepper)
    assert not (tmp_path / "run").exists()


def test_the_optimiser_goes_on_where_it_was_to_the_bit(tmp_path: Path, make_job: Any):
    first, second = (set_up(make_job())[1] for _ in range(2))
    torch.manual_seed(7)
    for parameter in first.parameters:
        parameter.grad = torch.randn_like(parameter)
    first.optimizer.step()
    checkpoint.save(tmp_path, first, Position(steps=1), keep=1)
    found = checkpoint.newest_checkpoint(tmp_path)
    assert found is not None
    checkpoint.restore(found, second)
    one, other = first.optimizer.state_dict(), second.optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys() == set(range(len(first.parameters)))
    for key, state in one["state"].items():
        assert all(torch.equal(value, other["state"][key][name]) for name, value in state.items())
