"""Signs of life: each step is counted, a compilation is a stage of its own, and waiting is said."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest
import torch

from sweeper.core.progress import LocalSteps, SilentProgress
from sweeper.core.training import Training
from sweeper.system.files import write_atomic
from sweeper.trainer import checkpoint, measure, production, quality
from sweeper.trainer.on_demand import GO, read_ready
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock


class Heard(SilentProgress):
    """Knows all stages, and how many steps were counted by then."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.own = LocalSteps()
        self.all: list[tuple[str, int]] = []

    def stage(self, name: str) -> None:
        super().stage(name)
        self.all.append((name, self.own.count))


def test_all_steps_of_a_trial_are_counted(make_job):
    heard = Heard()
    result = measure.run(make_job({"accumulate_steps": 2}, quality_samples=1000), heard)
    assert [name for name, _ in heard.all] == ["build", "warmup", "window", "quality"]
    at = dict(heard.all)
    assert at["warmup"] == 0
    assert at["window"] >= result.warmup_steps > 0
    assert at["quality"] - at["window"] >= sum(window.steps for window in result.windows)
    # Ten steps, a validation half way and one at the end, and the pipeline's own evaluation.
    assert heard.own.count - at["quality"] == 10 + 2 + 1
    assert heard.own.pauses == 0


@pytest.fixture
def slow_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: torch.nn.Sequential(model))


def test_each_shapes_first_step_is_a_compilation(make_job, slow_compiler):
    heard = Heard()
    heard.stage("warmup")
    job = make_job({"compile.mode": "default"})
    pipeline, stepper, _ = set_up(job, heard)
    batch = {name: tensor[:100] for name, tensor in pipeline.train.tensors.items()}
    wider = {name: tensor[:200] for name, tensor in pipeline.train.tensors.items()}
    for each in (batch, batch, wider, batch, wider):
        stepper.train_through(each, NoClock(), stepper.compiled)
    stepper.train_through({name: tensor[:50] for name, tensor in batch.items()}, NoClock(), stepper.model)
    assert heard.all[1:] == [("compile", 0), ("warmup", 1), ("compile", 2), ("warmup", 3)]
    assert heard.own.count == 6
    # What goes on alone after the windows is compiled anew.
    stepper.leave_group()
    stepper.train_through(batch, NoClock(), stepper.compiled)
    assert heard.all[5:] == [("compile", 6), ("warmup", 7)]


@pytest.mark.parametrize(("mode", "runs"), [("default", 1), ("reduce-overhead", 2), ("max-autotune", 2)])
def test_a_shape_is_seen_once_its_graph_is_recorded(make_job, slow_compiler, mode: str, runs: int):
    pipeline, stepper, _ = set_up(make_job({"compile.mode": mode}), Heard())
    batch = {name: tensor[:100] for name, tensor in pipeline.train.tensors.items()}
    for count in range(1, 4):
        stepper.train_through(batch, NoClock(), stepper.compiled)
        assert stepper.has_seen(1) == (count >= runs)
        assert not stepper.has_seen(2)


def test_a_compilation_that_fails_says_where_it_was(make_job, slow_compiler, monkeypatch):
    heard = Heard()
    pipeline, stepper, _ = set_up(make_job({"compile.mode": "default"}), heard)
    monkeypatch.setattr(pipeline.model, "forward", lambda x: 1 / 0)
    batch = {name: tensor[:100] for name, tensor in pipeline.train.tensors.items()}
    with pytest.raises(ZeroDivisionError):
        stepper.train_through(batch, NoClock(), stepper.compiled)
    assert heard.reached == "compile"


@pytest.mark.parametrize("mode", ["default", "eager"])
def test_a_quality_pass_of_its_own_compiles_where_it_is_told_to(make_job, slow_compiler, mode):
    heard = Heard()
    quality.run(make_job({"compile.mode": mode}, quality_samples=500), heard)
    expected = ["build", "quality"] + (["compile", "quality"] if mode == "default" else [])
    assert [name for name, _ in heard.all] == expected


def test_a_wait_for_ones_turn_is_a_pause(make_job, tmp_path: Path):
    heard = Heard()
    job = dataclasses.replace(make_job(repeats=1), turns_folder=str(tmp_path))
    trial = threading.Thread(target=measure.run, args=(job, heard))
    trial.start()
    deadline = time.monotonic() + 30
    while read_ready(tmp_path) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heard.own.pauses == 1
    write_atomic(tmp_path / GO, "1")
    trial.join(30)
    assert heard.own.pauses == 0


def test_a_production_run_counts_and_pauses_for_its_checkpoints(make_job, tmp_path: Path, monkeypatch):
    heard = Heard()
    pauses = []
    save = checkpoint.save
    monkeypatch.setattr(
        production.checkpoints, "save", lambda *a: (pauses.append(heard.own.pauses), save(*a))
    )
    training = Training(folder=str(tmp_path), epochs=2)
    production.run(dataclasses.replace(make_job({"batch_size": 100}), training=training), heard)
    assert [name for name, _ in heard.all] == ["build", "training"]
    # Twenty steps in each epoch, a validation and an evaluation after it.
    assert heard.own.count == 2 * (20 + 2)
    assert pauses == [1]
