"""Reads the `train:` section of an exported configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from sweeper.core.training import Schedule
from sweeper.schema.mistakes import SpecError, first_per_place, from_pydantic
from sweeper.schema.sections import Count, Positive
from sweeper.schema.space import Section


class TrainingOptions(Section):
    """The options of a production run.

    Attributes:
        epochs: Passes over the training samples.
        schedule: Learning rate after warm-up: constant, or falling to zero at the last step.
        validate_epochs: Epochs between validations.
        patience: Validations without a better loss after which the run ends; 0 for no limit.
        checkpoint_minutes: Minutes between checkpoints.
        keep: Number of checkpoints that are kept.
        max_minutes: Time after which the run ends, counted across resumptions.
        stall_seconds: Seconds without a step after which the run fails; 0 turns this off.
    """

    epochs: Count | None = None
    schedule: Schedule = "constant"
    validate_epochs: Count = 1
    patience: Annotated[int, Field(ge=0)] = 0
    checkpoint_minutes: Positive = 5.0
    keep: Count = 2
    max_minutes: Positive | None = None
    stall_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0


class _TrainDocument(Section):
    train: TrainingOptions = TrainingOptions()


def training_options(value: Any) -> TrainingOptions:
    """Returns the options in a `train:` section.

    Raises:
        SpecError: They break rules; the message has one line for each mistake.
    """
    tree = {"train": value}
    try:
        return _TrainDocument.model_validate(tree).train
    except ValidationError as error:
        models: dict[str, type[BaseModel]] = {"": _TrainDocument, "train": TrainingOptions}
        raise SpecError(first_per_place(from_pydantic(error, tree, models))) from error
