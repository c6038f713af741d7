"""`sweeper train` as a person meets it: real processes, really killed, and what is said at the end."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from productions import SLOWER, export_in, values_of

from sweeper.cli import train as training
from sweeper.cli.train import TrainOptions, train_command
from sweeper.core.training import BEST, CHECKPOINTS, HISTORY, WEIGHTS
from sweeper.errors import UserError
from sweeper.launch.local import leftovers
from sweeper.production.promise import assess
from sweeper.production.request import RunRequest
from sweeper.production.run import TrainResult
from sweeper.system.files import read_json
from sweeper.tracking.ui import store_uri

REPOSITORY = Path(__file__).parents[2]
SEED = 20
SECONDS = 90.0
"""For what must come to pass; far more than it takes."""

SLOWLY = ("--set", "config.model.step_seconds=0.02", "--set", "train.checkpoint_minutes=0.002")
FOLDER = Path("home/train/lines-007")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wait_for(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Program:
    """`sweeper train best.yaml ...` in the current directory, a process of its own."""

    def __init__(self, *arguments: str, home: str = "home") -> None:
        self.history = Path(home) / "train" / "lines-007" / HISTORY
        self._before = self._inode()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", "train", "best.yaml", "--home", home, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"},
        )

    def _inode(self) -> int:
        return self.history.stat().st_ino if self.history.exists() else 0

    def is_training(self) -> bool:
        """Whether it has taken its first steps."""
        assert self.process.poll() is None, self.process.communicate()
        if self._inode() in (0, self._before):
            return False
        lines = self.history.read_text().splitlines()
        begun = max(number for number, line in enumerate(lines) if '"pid"' in line)
        return any('"loss"' in line for line in lines[begun:])

    def send(self, number: int) -> None:
        wait_for(self.is_training, "it never began to train")
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Waits for its end; returns its code, what it said, and what it complained of."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for folder in tmp_path.glob("*/train/*"):
        wait_for(lambda folder=folder: not leftovers(folder), "processes were left behind")


def outcome(folder: Path = FOLDER) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "job" / "outcome.json")["values"]
    return found


def runs(home: str = "home") -> tuple[MlflowClient, list[Any]]:
    client = MlflowClient(store_uri(Path(home)))
    experiment = client.get_experiment_by_name("lines production")
    return client, client.search_runs([experiment.experiment_id])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_killed_at_any_moment_it_comes_to_the_same(here: Path, kills: int):
    export_in(here)
    asked = ("--epochs", "24", "--set", "train.schedule=cosine")
    code, _, complaint = Program(*asked, home="whole").end()
    assert (code, complaint) == (0, "")
    rng = random.Random(SEED)
    reached = [""]
    for _ in range(kills):
        program = Program(*asked, *SLOWLY)
        wait_for(program.is_training, "it never began to train")
        time.sleep(rng.uniform(0.0, 1.5))
        program.send(signal.SIGKILL)
        assert program.end()[0] == -signal.SIGKILL
        wait_for(lambda: not leftovers(FOLDER), "processes were left behind")
        checkpoints = sorted(path.name for path in (FOLDER / CHECKPOINTS).glob("[0-9]*"))
        reached.append(checkpoints[-1] if checkpoints else "")
    assert reached == sorted(reached)
    assert reached[-1] > "000000020", "the kills are to meet it in the midst of training"
    code, out, complaint = Program(*asked, *SLOWLY).end()
    assert (code, complaint) == (0, "")
    assert "Resuming `lines-007`." in out
    whole, ended = outcome(Path("whole/train/lines-007")), outcome()
    for name in ("ended", "steps", "samples", "epochs", "val_loss", "best_loss", "best_epoch", "stale"):
        assert whole[name] == ended[name]
    assert whole["val_loss"] < 1
    for weights in (Path(CHECKPOINTS) / "000000480" / WEIGHTS, Path(BEST) / WEIGHTS):
        assert (FOLDER / weights).read_bytes() == (Path("whole/train/lines-007") / weights).read_bytes()
    client, (run,) = runs()
    assert (run.info.status, run.data.tags["sweeper.outcome"]) == ("FINISHED", "trained")
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "val/loss")]
    # Thinned to one a second, and each of them once.
    assert len(set(steps)) == len(steps) > 4
    assert set(steps) <= {20 * epoch for epoch in range(1, 25)}
    assert run.data.metrics["result/val_loss"] == pytest.approx(ended["val_loss"], rel=1e-4)
    assert any(name.startswith("system/") for name in run.data.metrics)


@pytest.mark.slow
def test_asked_to_end_it_leaves_a_checkpoint_and_goes_on(here: Path):
    export_in(here)
    # No checkpoint is due of itself.
    asked = ("--epochs", "12", *SLOWLY[:2])
    # However late a signal comes on a busy machine, it meets it amid training.
    (here / SLOWER).touch()
    reached = 0
    for number, code, said in (
        (signal.SIGTERM, 143, "sweeper: stopped (SIGTERM)."),
        (signal.SIGINT, 130, "Stopped; the same command continues from the last checkpoint."),
    ):
        program = Program(*asked)
        program.send(number)
        got, out, complaint = program.end()
        assert got == code
        assert said in out + complaint
        assert "Traceback" not in complaint
        assert not leftovers(FOLDER)
        left = max((FOLDER / CHECKPOINTS).iterdir())
        stopped = outcome()
        assert (stopped["ended"], f"{stopped['steps']:09d}") == ("stopped", left.name)
        assert reached < stopped["steps"] < 240
        reached = stopped["steps"]
    (here / SLOWER).unlink()
    got, out, complaint = Program(*asked, "--json").end()
    assert got == 0
    assert "Resuming `lines-007`." in complaint
    found = json.loads(out)
    assert (found["ended"], found["epochs"], found["samples"]) == ("epochs", 12.0, 12 * 960)
    # All of it was trained once: the time of all attempts is more than that of all steps.
    assert outcome()["steps"] == 240
    assert found["seconds"] > 240 * 0.02
    _, (run,) = runs()
    assert run.data.tags["sweeper.outcome"] == "trained"


@pytest.mark.slow
def test_when_the_trainer_alone_is_killed_it_is_tried_again(here: Path):
    export_in(here)
    program = Program("--epochs", "12", *SLOWLY)
    for _ in range(2):
        wait_for(program.is_training, "it never began to train")
        lines = [json.loads(line) for line in program.history.read_text().splitlines()]
        program._before = program._inode()
        os.kill(next(line["pid"] for line in reversed(lines) if "pid" in line), signal.SIGKILL)
    code, out, complaint = program.end()
    assert (code, complaint) == (0, "")
    assert "all epochs are done" in out
    assert outcome()["steps"] == 240
    assert len(list((FOLDER / "job").glob("attempt-*-worker.log"))) == 2
    epochs = [int(number) for number in re.findall(r"epoch +(\d+) of 12 ", out)]
    assert epochs == sorted(set(epochs))


@pytest.mark.slow
def test_what_it_says_without_a_store_and_when_it_was_asked_before(here: Path):
    export_in(here)
    # A store that is away changes nothing of the training.
    code, out, complaint = Program("--epochs", "3", "--tracking-uri", "http://127.0.0.1:9").end()
    assert (code, complaint) == (7, "")
    assert "The end of the run is not in MLflow yet (" in out
    lines = out.splitlines()
    assert re.fullmatch(r"Training on .+\.", lines[0])
    assert re.search(r"epoch +\d of 3 .* loss .* val ", out)
    assert "Trained 3 epochs, 2,880 samples, in " in out
    assert "all epochs are done" in out
    weights = FOLDER / BEST / WEIGHTS
    assert str(weights) in out
    assert weights.is_file()
    before = outcome()
    assert before["ended"] == "epochs"
    began = time.monotonic()
    # Later, with a store, it is shown by asking for the same again.
    code, out, complaint = Program("--epochs", "3", "--json", "--require", "0.95").end()
    assert json.loads(out)["val_loss"] == before["val_loss"]
    assert outcome() == before
    assert [run.data.tags["sweeper.outcome"] for run in runs()[1]] == ["trained"]
    # As far as was promised 10,000 samples/s: that depends on the machine.
    assert code in (0, 1)
    assert time.monotonic() - began < SECONDS
    # Of another length, it is another run beside it.
    code, _, complaint = Program("--epochs", "2").end()
    assert (code, complaint) == (0, "")
    assert sorted(path.name for path in FOLDER.parent.iterdir()) == ["lines-007", "lines-007-2"]
    assert len(runs()[1]) == 2


@pytest.mark.slow
def test_one_that_is_unfinished_held_or_other_is_refused(here: Path):
    export_in(here)
    asked = ("--epochs", "30", *SLOWLY)
    program = Program(*asked)
    wait_for(program.is_training, "it never began to train")
    code, _, complaint = Program(*asked).end()
    assert code == 3
    assert f"is being run by process {program.process.pid}" in complaint
    program.process.kill()
    program.end()
    code, _, complaint = Program("--epochs", "31", *SLOWLY, "--set", "config.batch_size=96").end()
    assert code == 3
    assert complaint.splitlines() == [
        "sweeper: `lines-007` is unfinished and has another configuration:",
        "  config.batch_size: 48 -> 96",
        "  train.epochs: 30 -> 31",
        "Resume it with its own configuration, or start another run with --new.",
    ]


@pytest.mark.soak
def test_its_minutes_are_over_and_more_of_them_go_on(here: Path):
    export_in(here)
    asked = ("--epochs", "8", *SLOWLY)
    code, out, _ = Program(*asked, "--max-minutes", "0.02").end()
    assert code == 0
    assert "the time limit was reached" in out
    first = outcome()
    assert (first["ended"], first["steps"] < 160) == ("time", True)
    assert first["validated_at"] == first["steps"]
    code, out, _ = Program(*asked, "--max-minutes", "0.02").end()
    assert "The run was already finished; nothing was run." in out
    assert outcome() == first
    code, out, _ = Program(*asked, "--max-minutes", "9").end()
    assert (code, outcome()["ended"], outcome()["steps"]) == (0, "epochs", 160)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_one_line(here: Path):
    export_in(here, config={"model.factor": float("1e38")})
    code, _, complaint = Program("--epochs", "3").end()
    assert code == 6
    (line,) = complaint.splitlines()
    assert line.startswith("sweeper: training ended: the training loss became ")
    assert "(non_finite)" in line
    assert line.endswith("`--set config.optimizer.lr=... --new`.")
    _, (run,) = runs()
    assert (run.info.status, run.data.tags["sweeper.outcome"]) == ("FAILED", "non_finite")


@pytest.fixture
def ends(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """Has training come to `values` at once; returns the code and what was said."""

    def run(
        asked: TrainOptions, pending: str = "", was_run: bool = True, **values: Any
    ) -> tuple[int, str, str]:
        def train(home: Path, wanted: RunRequest, tracker: Any, watcher: Any, **options: Any) -> TrainResult:
            found = values_of(**values)
            judgement = assess(found, wanted.promise, {})
            return TrainResult(
                path=Path("run"), values=found, judgement=judgement, was_run=was_run, pending=pending
            )

        monkeypatch.setattr(training.production, "train", train)
        code = train_command(export_in(here), here / "home", asked)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("asked", "values", "code"),
    [
        ({}, {}, 0),
        ({}, {"timed_samples": 10}, 0),
        ({"require": 0.95}, {}, 0),
        ({"require": 0.95}, {"timed_samples": 95_000}, 0),
        ({"require": 0.95}, {"timed_samples": 94_999}, 1),
        # Too short to tell; and nothing promised.
        ({"require": 0.95}, {"timed_seconds": 0.0}, 1),
        ({"require": 0.1, "overrides": ("config.batch_size=96",)}, {}, 1),
        ({}, {"pending": "the store is away"}, 7),
        ({"require": 0.95}, {"pending": "the store is away", "timed_samples": 10}, 1),
        ({"require": 0.95}, {"ended": "stopped"}, 130),
    ],
)
def test_the_code_it_ends_with(asked: dict[str, Any], values: dict[str, Any], code: int, ends: Any):
    assert ends(TrainOptions(**asked), **values)[0] == code


def test_why_what_was_required_does_not_hold(ends: Any):
    _, out, _ = ends(TrainOptions(require=0.95), timed_samples=94_000)
    assert out.splitlines()[-1] == "--require 0.95 of the promised speed was not met: reached 0.940."
    _, out, _ = ends(TrainOptions(require=0.95, overrides=("config.batch_size=96",)))
    assert out.splitlines()[0] == "`batch_size` was changed, so no speed is promised."
    last = "--require 0.95 of the promised speed was not met: there is nothing to compare."
    assert out.splitlines()[-1] == last
    _, out, _ = ends(TrainOptions(), pending="the store is away")
    assert (
        out.splitlines()[-1]
        == "The end of the run is not in MLflow yet (the store is away). The same command sends it."
    )


def test_batches_out_of_order_are_said_to_be_no_exact_continuation(ends: Any):
    unordered = ("config.loader.kind=workers", "config.loader.in_order=false")
    _, out, _ = ends(TrainOptions(overrides=(*unordered, "config.loader.num_workers=1")))
    assert "`loader.in_order` is false. If this run stops and resumes within an epoch, it may skip" in out
    # Without workers, they come in order.
    _, out, _ = ends(TrainOptions(overrides=(*unordered, "config.loader.num_workers=0")))
    assert "`loader.in_order` is false." not in out


def test_the_end_is_said(ends: Any):
    _, out, _ = ends(TrainOptions(), timed_samples=94_000, disturbed={"heat": 5.0})
    assert out.splitlines() == [
        "",
        "Trained 3 epochs, 2,880 samples, in 12 s: all epochs are done.",
        "  loss 0.25, best 0.125 after epoch 2",
        "  accuracy 0.9",
        "  missed: 9,400 samples/s, 0.94x the promised 10,000",
        "  heat: 50% of the time",
        "Weights: run/best/model.safetensors (best), run/checkpoints (last)",
    ]
    _, out, _ = ends(TrainOptions(), was_run=False, val_loss=None)
    assert out.splitlines()[1] == "The run was already finished; nothing was run."
    assert "  loss" not in out


def test_one_begun_anew_is_gone_on_with_without_new(ends: Any):
    assert "without --new" not in ends(TrainOptions(), ended="stopped")[1]
    _, out, _ = ends(TrainOptions(new=True), ended="stopped")
    assert out.splitlines()[-1] == (
        "Stopped; the same command without --new continues from the last checkpoint."
    )
    _, out, _ = ends(TrainOptions(new=True), pending="the store is away")
    assert out.splitlines()[-1].endswith("(the store is away). The same command without --new sends it.")


def test_json_is_what_the_help_says(ends: Any):
    code, out, complaint = ends(TrainOptions(as_json=True), disturbed={"heat": 5.0})
    found = json.loads(out)
    help_text = inspect.getdoc(training.train) or ""
    named = help_text[help_text.index("--json:") : help_text.index("Example:")]
    assert list(found) == [name for name in re.findall(r'"(\w+)"', named)]
    assert code == 0
    assert "Trained" not in complaint
    assert found == {
        "folder": "run",
        "ended": "epochs",
        "epochs": 3.0,
        "samples": 2880,
        "seconds": 12.0,
        "val_loss": 0.25,
        "metrics": {"accuracy": 0.9},
        "best_loss": 0.125,
        "best_epoch": 2,
        "reached": 10_000.0,
        "promised": 10_000.0,
        "ratio": 1.0,
        "disturbed": {"heat": 5.0},
        "verdict": "kept: 10,000 samples/s, 1.00x the promised 10,000",
        "reasons": ["heat: 50% of the time"],
    }


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (TrainOptions(require=95), "`--require` must be a share such as 0.95, but got 95."),
        (TrainOptions(require=0), "`--require` must be a share such as 0.95, but got 0."),
        (TrainOptions(device="gpu"), "`--device` must be `cpu` or `cuda:N` such as `cuda:0`, but got 'gpu'."),
        (
            TrainOptions(device="cuda:x"),
            "`--device` must be `cpu` or `cuda:N` such as `cuda:0`, but got 'cuda:x'.",
        ),
        (
            TrainOptions(overrides=("train.schedule=foo",)),
            "`train.schedule` must be 'constant', 'linear' or 'cosine', but got 'foo'.",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(asked: TrainOptions, line: str, here: Path):
    with pytest.raises(UserError) as caught:
        train_command(export_in(here), here / "home", asked)
    assert str(caught.value) == line
    assert not (here / "home").exists()


@pytest.mark.parametrize(
    "option",
    [
        {"epochs": 3},
        {"max_minutes": 1.0},
        {"overrides": ("train.epochs=3",)},
        {"device": "cpu"},
        {"require": 0.9},
        {"new": True},
        {"as_json": True},
    ],
)
def test_the_export_of_a_command_takes_no_options(option: dict[str, Any], here: Path):
    value = {
        "schema": 2,
        "command": ["no-such-program"],
        "changes": {},
        "env": {},
        "files": {"written.txt": "x"},
        "params": {},
        "measurement": {},
        "conditions": {},
        "provenance": {},
    }
    (here / "best.yaml").write_text(json.dumps(value))
    with pytest.raises(UserError, match="are for pipelines, but this is an exported command"):
        train_command(
            here / "best.yaml", here / "home", dataclasses.replace(TrainOptions(force=True), **option)
        )
    assert not (here / "written.txt").exists()
