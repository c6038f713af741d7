"""Production runs: the same to the last bit however often they were ended, and ended for the right reason."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model

from sweeper.core.config import TrialConfig
from sweeper.core.job import TRAINING_RUNNER, Job, MeasurePlan, read_outcome, write_job
from sweeper.core.measurement import Report
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.training import BEST, CHECKPOINTS, HISTORY, STOP, WEIGHTS, Training
from sweeper.launch.local import LocalLauncher
from sweeper.system.files import read_json
from sweeper.trainer import checkpoint, prepare, production
from sweeper.trainer.data.order import Order
from sweeper.trainer.quality import validate
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.fused import FusedStep

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

HERE = str(Path(__file__).parent)
BATCHES = 22
"""Of 90 samples in 2,000: four accumulated steps do not divide them."""

MODEL = {"batch_size": 90, "model.hidden": 16, "model.dropout": 0.3}
Train = Callable[..., Report]


class CutError(Exception):
    """The process ended here."""


class Run:
    """A production run in a folder, whose blocks are of one step."""

    def __init__(self, folder: Path, job: Job, **plan: Any) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        asked = {"folder": str(folder), "epochs": 2, "checkpoint_seconds": 1e9, **plan}
        self.job = dataclasses.replace(job, training=Training(**asked))

    def train(self, **plan: Any) -> Report:
        """Trains on; `plan` is what this attempt asks for differently."""
        assert self.job.training is not None
        training = dataclasses.replace(self.job.training, **plan)
        return production.run(dataclasses.replace(self.job, training=training), SilentProgress())

    def weights(self) -> dict[str, torch.Tensor]:
        newest = checkpoint.newest_checkpoint(self.folder)
        assert newest is not None
        return load_file(newest / WEIGHTS)

    def best(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / BEST / WEIGHTS)

    def history(self, name: str) -> dict[int, float]:
        """A figure by the steps at which it was taken; each was taken once."""
        lines = [json.loads(line) for line in (self.folder / HISTORY).read_text().splitlines()]
        found = [(line["steps"], line[name]) for line in lines if name in line]
        assert len(dict(found)) == len(found)
        return dict(found)

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / CHECKPOINTS).iterdir())


@pytest.fixture(autouse=True)
def steps_are_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(production, "WARM_UP_BLOCK_SECONDS", 0.0)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has checkpoints be written at some steps only, and the process end at others, in order."""
    real, opened = checkpoint.save, production.join_group

    def arrange(saves: Collection[int], cuts: Sequence[int] = ()) -> None:
        left = list(cuts)
        loaders = []

        def joined(*arguments: Any) -> Any:
            loaders.append(opened(*arguments))
            return loaders[-1]

        def save(folder: Path, stepper: Any, position: checkpoint.Position, keep: int) -> None:
            if position.steps in saves:
                real(folder, stepper, position, keep)
            if left and position.steps == left[0]:
                del left[0]
                loaders[-1].close()
                raise CutError

        monkeypatch.setattr(checkpoint, "save", save)
        monkeypatch.setattr(production, "join_group", joined)

    return arrange


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert list(a) == list(b)
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


CASES = {
    "resident": {"loader.kind": "resident"},
    "workers-2": {"loader.kind": "workers", "loader.num_workers": 2},
    "stream": {"loader.kind": "stream"},
    "ragged": {"loader.drop_last": False, "accumulate_steps": 2},
}


SLOW_CASES = {
    "rows": {"loader.kind": "rows"},
    "accumulating": {"accumulate_steps": 4},
    "sgd": {"optimizer.name": "sgd", "optimizer.clip_norm": 1.0},
    "bf16": {"precision.amp": "bf16"},
    "fp16": {"precision.amp": "fp16"},
    "warm-up": {"optimizer.warmup_steps": 30, "optimizer.weight_decay": 0.1},
    "rows-2": {"loader.kind": "rows", "loader.num_workers": 2},
    "workers-2-anew": {
        "loader.kind": "workers",
        "loader.num_workers": 2,
        "loader.persistent_workers": False,
    },
}


def ended_and_whole(tmp_path: Path, ends: Any, job: Job, batches: int) -> tuple[Run, Report, Run, Report]:
    """A run that was ended four times, in the midst of an epoch and at its end, and one that never was.

    The first end comes some steps after a checkpoint, which are then taken again.
    """
    last = 2 * batches
    saves = {2, batches, batches + 3, last}
    cuts = [5, batches, batches + 3, last - 1]
    whole = Run(tmp_path / "whole", job, schedule="cosine", checkpoint_seconds=0.0)
    ends(saves)
    unbroken = whole.train()
    broken = Run(tmp_path / "broken", job, schedule="cosine", checkpoint_seconds=0.0)
    ends(saves, cuts)
    for _ in cuts:
        with pytest.raises(CutError):
            broken.train()
    return whole, unbroken, broken, broken.train()


def assert_equal(whole: Run, unbroken: Report, broken: Run, mended: Report) -> None:
    assert_same(whole.weights(), broken.weights())
    assert_same(whole.best(), broken.best())
    for name in ("loss", "lr", "val_loss"):
        assert whole.history(name) == broken.history(name)
    for name in ("ended", "steps", "samples", "train_loss", "val_loss", "best_loss", "best_epoch", "stale"):
        assert unbroken.values[name] == mended.values[name]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES)]
)
def test_a_run_that_was_ended_and_gone_on_with_is_the_one_that_never_ended(
    case: str, tmp_path: Path, make_job: Any, ends: Any
):
    # 23 where the last 20 samples are a batch of their own.
    batches = BATCHES + (case == "ragged")
    found = ended_and_whole(tmp_path, ends, make_job({**MODEL, **{**CASES, **SLOW_CASES}[case]}), batches)
    assert_equal(*found)
    assert len(found[0].history("loss")) == found[1].values["steps"] == 2 * batches


@pytest.mark.parametrize("accumulate", [1, 3])
def test_so_it_is_where_rows_and_loss_draw_random_numbers_of_their_own(
    accumulate: int, tmp_path: Path, ends: Any
):
    job = noisy_job(tmp_path, {"accumulate_steps": accumulate})
    assert_equal(*ended_and_whole(tmp_path, ends, job, 11))


def test_workers_that_draw_begin_each_epoch_as_they_would_have(tmp_path: Path, ends: Any):
    job = noisy_job(tmp_path, {"loader.num_workers": 2, "loader.persistent_workers": False})
    whole, broken = (Run(tmp_path / name, job, checkpoint_seconds=0.0) for name in ("whole", "broken"))
    ends({11, 22})
    unbroken = whole.train()
    ends({11, 22}, [11])
    with pytest.raises(CutError):
        broken.train()
    assert_equal(whole, unbroken, broken, broken.train())


def noisy_job(tmp_path: Path, config: dict[str, Any]) -> Job:
    job = Job(
        uid="n",
        pipeline="trainer_noisy",
        import_paths=(HERE,),
        prepared=str(tmp_path / "prepared"),
        config=TrialConfig().replace(
            {"batch_size": 20, "loader.kind": "rows", "device.cpu_threads": 1, "optimizer.lr": 0.01, **config}
        ),
        plan=MeasurePlan(repeats=0),
    )
    prepare.run(job, SilentProgress())
    return job


@pytest.mark.parametrize("kind", ["rows", "resident", pytest.param("stream", marks=pytest.mark.slow)])
def test_so_it_is_with_sequences_in_buckets(kind: str, tmp_path: Path, make_sequence_job: Any, ends: Any):
    job = make_sequence_job(
        {"batch_size": 50, "loader.kind": kind, "loader.buckets": 3, "loader.drop_last": False}
    )
    samples = set_up(job)[0].train
    order = Order(samples.length, 50, 0, drop_last=False, lengths=samples.lengths, buckets=3)
    assert (order.num_shapes, order.num_batches) == (3, 14)  # 12 whole ones, and what is left of two buckets
    assert_equal(*ended_and_whole(tmp_path, ends, job, order.num_batches))


def test_an_orderly_end_is_gone_on_from_too(tmp_path: Path, make_job: Any):
    job = make_job(MODEL)
    whole = Run(tmp_path / "whole", job)
    whole.train()
    stopped = Run(tmp_path / "stopped", job)
    (stopped.folder / STOP).touch()
    at_once = stopped.train()
    assert (at_once.values["ended"], at_once.values["steps"]) == ("stopped", 0)
    # Nothing was trained, and so nothing is validated: that is for the end.
    assert at_once.values["val_loss"] is None
    (stopped.folder / STOP).unlink()
    assert stopped.train().values["ended"] == "epochs"
    assert_same(whole.weights(), stopped.weights())
    assert whole.history("loss") == stopped.history("loss")


def test_a_run_ends_after_its_time_and_goes_on_with_more(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
):
    ticks = itertools.count()
    # A second for every look at the clock: whatever else this machine does, some steps fit into twenty.
    monkeypatch.setattr(production, "time", SimpleNamespace(time=time.time, perf_counter=lambda: next(ticks)))
    job = make_job(MODEL)
    whole = Run(tmp_path / "whole", job)
    unbroken = whole.train()
    run = Run(tmp_path / "run", job)
    first = run.train(max_seconds=1).values
    assert (first["ended"], first["steps"]) == ("time", 0)
    assert math.isfinite(first["val_loss"])
    # Time that was spent before counts.
    more = first["seconds"] + 20
    second = run.train(max_seconds=more).values
    assert second["ended"] == "time"
    assert 0 < second["steps"] < unbroken.values["steps"]
    assert second["seconds"] >= more
    assert second["validated_at"] == second["steps"]
    again = run.train(max_seconds=second["seconds"]).values
    assert (again["ended"], again["steps"]) == ("time", second["steps"])
    last = run.train().values
    assert (last["ended"], last["val_loss"]) == ("epochs", unbroken.values["val_loss"])
    assert_same(whole.weights(), run.weights())


@pytest.mark.parametrize("cut", [None, 2 * BATCHES])
def test_patience_is_validations_without_a_better_loss(
    cut: int | None, tmp_path: Path, make_job: Any, ends: Any
):
    # Nothing becomes better with such a rate: the first loss stays the best one.
    job = make_job({**MODEL, "optimizer.lr": 1e-30})
    run = Run(tmp_path / "run", job, epochs=9, patience=3, checkpoint_seconds=0.0 if cut else 1e9)
    if cut:
        ends({cut, 4 * BATCHES}, [cut])
        with pytest.raises(CutError):
            run.train()
    values = run.train().values
    assert (values["ended"], values["epochs"], values["best_epoch"], values["stale"]) == ("patience", 4, 1, 3)


def test_a_loss_that_becomes_better_has_patience_begin_anew(tmp_path: Path, make_job: Any):
    run = Run(tmp_path / "run", make_job(MODEL), epochs=4, patience=1)
    run.train()
    losses = list(run.history("val_loss").values())
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 4


@pytest.mark.parametrize(("every", "after"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_validation_after_some_epochs_and_at_the_end(
    every: int, after: list[int], tmp_path: Path, make_job: Any
):
    run = Run(tmp_path / "run", make_job(MODEL), epochs=5, validate_epochs=every)
    run.train()
    assert list(run.history("val_loss")) == [BATCHES * epoch for epoch in after]


def test_validating_changes_nothing_of_what_follows(tmp_path: Path):
    runs = [Run(tmp_path / str(every), noisy_job(tmp_path, {}), validate_epochs=every) for every in (1, 2)]
    for run in runs:
        run.train()
    assert_same(runs[0].weights(), runs[1].weights())


@pytest.mark.parametrize("keep", [1, 3])
def test_the_latest_checkpoints_are_kept(keep: int, tmp_path: Path, make_job: Any):
    run = Run(tmp_path / "run", make_job({**MODEL, "batch_size": 400}), keep=keep, checkpoint_seconds=0.0)
    run.train()
    assert run.checkpoints() == [f"{10 - i:09d}" for i in reversed(range(keep))]


def test_a_checkpoint_is_written_when_it_is_due_and_at_the_end(tmp_path: Path, make_job: Any):
    run = Run(tmp_path / "run", make_job(MODEL), keep=5)
    run.train()
    assert run.checkpoints() == [f"{2 * BATCHES:09d}"]


def test_the_best_weights_are_those_of_the_best_loss(tmp_path: Path, make_job: Any):
    config = {**MODEL, "optimizer.lr": 0.3, "model.dropout": 0.0}
    run = Run(tmp_path / "run", make_job(config), epochs=8)
    values = run.train().values
    losses = run.history("val_loss")
    steps, least = min(losses.items(), key=lambda item: item[1])
    assert steps < values["steps"], "the best one is to be another than the last"
    assert (values["best_loss"], values["best_epoch"]) == (least, steps // BATCHES)
    assert values["val_loss"] == losses[values["steps"]] > least
    about = read_json(run.folder / BEST / "about.json")
    told = run.history("metrics")[steps]
    assert told["mae"] > 0
    assert values["metrics"] == run.history("metrics")[values["steps"]] != told
    facts = {"val_loss": least, "metrics": told, "epoch": steps // BATCHES}
    assert about == facts | {"steps": steps, "samples": 90 * steps}
    pipeline, stepper, _ = set_up(run.job)
    load_model(stepper.model, run.folder / BEST / WEIGHTS)
    assert validate(pipeline, stepper, stepper.model) == least


def test_a_loss_that_is_not_finite_ends_it_and_the_checkpoint_from_before_stays(
    tmp_path: Path, make_job: Any
):
    run = Run(
        tmp_path / "run",
        make_job({**MODEL, "model.fault": "nan", "model.fault_at": 4}),
        checkpoint_seconds=0.0,
    )
    with pytest.raises(TrialFailedError) as caught:
        run.train()
    assert caught.value.kind == "non_finite"
    assert str(caught.value) == ("the training loss became nan after 360 samples")
    assert run.checkpoints() == ["000000003", "000000004"]
    assert all(tensor.isfinite().all() for tensor in run.weights().values())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_share_of_the_peak_rate(schedule: Any):
    share = production.make_rate(schedule, 10, 110)
    assert [share(step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert [share(60), share(110), share(500)] == pytest.approx([0.5, 0.0, 0.0])
    quarter = 0.75 if schedule == "linear" else 0.5 * (1 + math.sqrt(0.5))
    assert share(35) == pytest.approx(quarter)
    # Without a warm-up, or with nothing but one.
    assert production.make_rate(schedule, 0, 100)(0) == 1.0
    assert production.make_rate(schedule, 10, 10)(9) == 1.0


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_is_set_on_the_optimiser(
    schedule: Any, accumulate: int, tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
):
    used = []
    step = FusedStep.__call__

    def watched(self: FusedStep) -> None:
        used.append(self._optimizer.param_groups[0]["lr"])
        step(self)

    monkeypatch.setattr(FusedStep, "__call__", watched)
    config = {**MODEL, "accumulate_steps": accumulate, "optimizer.warmup_steps": 5, "optimizer.lr": 0.01}
    Run(tmp_path / "run", make_job(config), schedule=schedule).train()
    updates = 2 * BATCHES // accumulate
    shares = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1 - done,
        "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    }
    falling = [0.01 * shares[schedule](i / (updates - 5)) for i in range(updates - 5)]
    assert used == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01, *falling])


def test_throughput_counts_from_when_it_is_steady(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(production, "is_steady", lambda blocks: len(blocks) == 7)
    monkeypatch.setattr(production, "of_host", lambda window, canary: ("noise",) * (window.samples > 0))
    run = Run(tmp_path / "run", make_job(MODEL))
    values = run.train().values
    assert values["timed_samples"] == 90 * (2 * BATCHES - 7)
    assert values["disturbed"] == {"noise": pytest.approx(values["timed_seconds"])}
    assert list(run.history("steady").values()) == [0] * 7 + [1] * (2 * BATCHES - 7)
    timed = {steps: rate for steps, rate in run.history("throughput").items() if steps > 7}
    assert sum(90 / rate for rate in timed.values()) == pytest.approx(values["timed_seconds"])
    assert values["timed_seconds"] < values["seconds"]


@pytest.mark.slow
def test_two_ranks_train_and_go_on_with_equal_weights(tmp_path: Path, make_job: Any):
    config = {**MODEL, "model.dropout": 0.0, "device.count": 2}
    job = dataclasses.replace(make_job(config, repeats=0), runner=TRAINING_RUNNER)
    whole, ended = (
        Run(tmp_path / name, job, epochs=6, schedule="linear", checkpoint_seconds=0.0)
        for name in ("whole", "ended")
    )
    (tmp_path / "home").mkdir()
    launcher = LocalLauncher(tmp_path / "home")
    try:
        outcomes = [of_processes(launcher, run, kills) for run, kills in ((whole, 0), (ended, 1))]
    finally:
        launcher.close()
    for outcome in outcomes:
        assert isinstance(outcome, Report)
        assert (outcome.values["ended"], outcome.values["epochs"]) == ("epochs", 6)
        # Both ranks' samples: 11 steps of 2 x 90 are an epoch.
        assert (outcome.values["steps"], outcome.values["samples"]) == (66, 66 * 180)
    assert_same(whole.weights(), ended.weights())
    assert outcomes[0].values["val_loss"] == outcomes[1].values["val_loss"]


def of_processes(launcher: LocalLauncher, run: Run, kills: int) -> Any:
    """Runs it in processes of its own, which are killed after some checkpoints."""
    for kill in range(kills + 1):
        folder = run.folder / f"job-{kill}"
        write_job(folder, run.job)
        handle = launcher.submit(folder)
        before = checkpoint.newest_checkpoint(run.folder)
        deadline = time.monotonic() + 60
        while (
            kill < kills
            and checkpoint.newest_checkpoint(run.folder) == before
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        if kill < kills:
            handle.cancel()
        handle.result(timeout=120)
        assert (read_outcome(folder) is None) == (kill < kills)
    return read_outcome(folder)
