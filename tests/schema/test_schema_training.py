"""The `train:` section of an export: every mistake in it, one line each."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.errors import UserError
from sweeper.schema.training import training_options


def test_what_is_not_said_has_its_default():
    found = training_options({})
    assert (found.epochs, found.schedule, found.validate_epochs, found.patience) == (None, "constant", 1, 0)
    assert (found.checkpoint_minutes, found.keep, found.max_minutes) == (5.0, 2, None)
    assert found.stall_seconds == 600.0


def test_what_is_said_is_taken():
    said: dict[str, Any] = {
        "epochs": 7,
        "schedule": "cosine",
        "validate_epochs": 2,
        "patience": 3,
        "checkpoint_minutes": 0.5,
        "keep": 1,
        "max_minutes": 90,
        "stall_seconds": 0.0,
    }
    assert training_options(said).model_dump() == said


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        (
            {"schedule": "cosin"},
            [
                "`train.schedule` must be 'constant', 'linear' or 'cosine', but got 'cosin'."
                " Did you mean `cosine`?"
            ],
        ),
        ({"schedule": "foo"}, ["`train.schedule` must be 'constant', 'linear' or 'cosine', but got 'foo'."]),
        ({"pateince": 3}, ["`train.pateince` is not a known key. Did you mean `patience`?"]),
        (
            {"epochs": 0, "patience": -1, "keep": 0, "max_minutes": 0, "checkpoint_minutes": float("inf")},
            [
                "`train.epochs` must be greater than or equal to 1, but got 0.",
                "`train.patience` must be greater than or equal to 0, but got -1.",
                "`train.checkpoint_minutes` must be a finite number, but got inf.",
                "`train.keep` must be greater than or equal to 1, but got 0.",
                "`train.max_minutes` must be greater than 0, but got 0.",
            ],
        ),
        ({"epochs": 1.5}, ["`train.epochs` must be a valid integer, but got 1.5."]),
        ({"epochs": True}, ["`train.epochs` must be a valid integer, but got True."]),
        (5, ["`train` must be a mapping of keys to values, but got 5."]),
        (["epochs"], ["`train` must be a mapping of keys to values, but got ['epochs']."]),
    ],
)
def test_mistakes_are_one_line_each(said: Any, lines: list[str]):
    with pytest.raises(UserError) as caught:
        training_options(said)
    assert str(caught.value).splitlines() == lines
