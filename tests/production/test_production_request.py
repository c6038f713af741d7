"""What an export and the command line ask for together, and when its promise still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from productions import PIPELINE, export_in

from sweeper.core.training import Training
from sweeper.errors import UserError
from sweeper.production.request import read_request

NO_LENGTH = (
    "training needs a length, but the export has neither `production.samples` nor `train.epochs`."
    " Add `--epochs N`."
)


def test_an_export_as_it_is(ask: Any):
    found = ask()
    assert (found.name, found.sweep, found.trial, found.pipeline) == (
        "lines-007",
        "lines",
        7,
        "line_pipeline",
    )
    assert (found.config.batch_size, found.config.optimizer.lr) == (48, 0.01)
    # 2,000 samples of production are two whole passes over 960 and a part of a third.
    assert found.training == Training(folder="", epochs=3)
    assert found.changed == ()
    assert found.promise is not None
    assert found.promise.throughput == 10_000.0
    assert found.promise.conditions["device"] == "EPYC, 4 cores"


def test_the_command_line_goes_before_the_file_and_that_before_the_sweep(ask: Any):
    assert ask(train={"epochs": 8}).training.epochs == 8
    assert ask(train={"epochs": 8}, epochs=9).training.epochs == 9
    assert ask("train.epochs=5").training.epochs == 5
    assert ask("train.epochs=5", epochs=9).training.epochs == 9
    assert ask(production=None, epochs=2).training.epochs == 2
    assert ask(train={"max_minutes": 3}, max_minutes=0.5).training.max_seconds == 30


@pytest.mark.parametrize(
    "changes", [{"production": None}, {"production": {"samples": None}}, {"conditions": {"device": "EPYC"}}]
)
def test_it_must_be_known_how_long(changes: dict[str, Any], ask: Any):
    with pytest.raises(UserError) as caught:
        ask(**changes)
    assert str(caught.value) == NO_LENGTH


def test_the_section_about_training(ask: Any):
    found = ask(
        "train.schedule=cosine",
        "train.patience=4",
        train={"validate_epochs": 2, "checkpoint_minutes": 0.5, "keep": 3, "max_minutes": 90},
    )
    assert found.training == Training(
        folder="",
        epochs=3,
        schedule="cosine",
        validate_epochs=2,
        patience=4,
        checkpoint_seconds=30.0,
        keep=3,
        max_seconds=5400.0,
    )
    # How it is trained changes nothing of how fast.
    assert found.promise is not None


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["train.schedule=foo"],
            "`train.schedule` must be 'constant', 'linear' or 'cosine', but got 'foo'.",
        ),
        (["train.schedul=cosine"], "`train.schedul` is not a known key. Did you mean `schedule`?"),
        (["train=5"], "`train` must be a mapping of keys to values, but got 5."),
        (["train.epochs=none"], "`train.epochs` must be a valid integer, but got 'none'."),
    ],
)
def test_mistakes_are_one_line(overrides: list[str], line: str, ask: Any):
    with pytest.raises(UserError) as caught:
        ask(*overrides)
    assert str(caught.value) == line


def test_minutes_must_be_some(ask: Any):
    with pytest.raises(UserError, match=r"`train.max_minutes` must be greater than 0, but got 0"):
        ask(max_minutes=0)


def test_a_field_that_is_none_is_said(ask: Any):
    with pytest.raises(UserError, match=r"`config.batch_sise` must be a field.*Did you mean `batch_size`"):
        ask("config.batch_sise=3")


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("config.batch_size=96", ("batch_size",)),
        ("config.model.hidden=3", ("model.hidden",)),
        ("config.loader.kind=stream", ("loader.kind",)),
        ("data.rows=10", ("data",)),
        ("config.batch_size=48", ()),
        # As resident it has no workers.
        ("config.loader.num_workers=4", ()),
        # Neither changes how fast a step is.
        ("config.seed=3", ()),
        ("config.optimizer.lr=0.1", ()),
    ],
)
def test_what_the_speed_depends_on_takes_the_promise_away(override: str, changed: tuple[str, ...], ask: Any):
    found = ask(override)
    assert found.changed == changed
    assert (found.promise is None) == bool(changed)


@pytest.mark.parametrize(
    "same",
    [
        {"max_minutes": 3.0},
        {"train": {"keep": 9, "checkpoint_minutes": 1, "max_minutes": 2}},
        {"measurement": {"throughput": 3.0}},
        {"epochs": 3},
    ],
)
def test_how_long_it_may_take_is_no_part_of_what_a_run_is(same: dict[str, Any], ask: Any):
    assert ask(**same).identity() == ask().identity()


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 4},
        {"train": {"schedule": "linear"}},
        {"train": {"patience": 1}},
        {"train": {"validate_epochs": 2}},
        {"config": {"seed": 1}},
        {"data": {"rows": 1}},
    ],
)
def test_what_the_weights_depend_on_is(other: dict[str, Any], ask: Any):
    assert ask(**other).identity() != ask().identity()


def test_so_is_the_code_but_not_its_comments(here: Path):
    path = export_in(here)
    before = read_request(path).identity()
    (here / "line_pipeline.py").write_text(PIPELINE + "\n# The end.\n")
    assert read_request(path).identity() == before
    (here / "line_pipeline.py").write_text(PIPELINE + "\nMORE = 1\n")
    assert read_request(path).identity() != before


def test_a_command_takes_no_options(here: Path):
    path = here / "best.yaml"
    path.write_text(
        '{"schema": 2, "command": ["true"], "env": {}, "files": {}, "params": {},'
        ' "measurement": {}, "conditions": {}, "provenance": {}}'
    )
    with pytest.raises(UserError, match="is the export of a command, which takes no options"):
        read_request(path)


def test_it_is_passed_what_the_trials_were(ask: Any):
    assert ask().pass_env == ()
    found = ask(execution={"pass_env": ["MYLAB_TOKEN"]})
    assert found.pass_env == ("MYLAB_TOKEN",)
    # Another credential makes no other run of it, and no other speed.
    assert found.identity() == ask().identity()
    assert found.promise is not None
