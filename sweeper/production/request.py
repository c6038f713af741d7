"""Reads the request for a production run: an exported configuration, options and the promised speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.config import TrialConfig
from sweeper.core.training import Training
from sweeper.errors import UserError
from sweeper.exports import pass_env, read
from sweeper.schema.training import training_options
from sweeper.sweep.folder.fingerprint import digest_of_code, digest_of_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The speed that the sweep measured, and its conditions.

    Attributes:
        throughput: Samples per second.
        conditions: The conditions: `device`, `torch`, `train_samples`, ...
        low: Lower end of the 95% interval of a later throughput; None if unknown.
        high: Upper end of that interval; None if unknown.
    """

    throughput: float
    conditions: Mapping[str, Any]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A production run as requested.

    Attributes:
        name: Name of the run, unless it is taken.
        training: Options of the training; its folder is filled in later.
        promise: The promised speed; None if an override affects it.
        changed: Overridden names that affect the speed.
        sweep: The sweep that found the configuration, as its trial `trial`.
        pass_env: Environment variables that the run gets in addition to the usual ones.
    """

    name: str
    pipeline: str
    data: Mapping[str, Any]
    config: TrialConfig
    training: Training
    promise: Promise | None
    changed: tuple[str, ...]
    sweep: str
    trial: int
    pass_env: tuple[str, ...] = ()

    def identity(self) -> dict[str, Any]:
        """Returns what must be equal for a run to be resumed; time limits are not part of it."""
        plan = encode(self.training)
        for name in ("folder", "max_seconds", "keep", "checkpoint_seconds", "stall_seconds"):
            del plan[name]
        return {
            "pipeline": self.pipeline,
            "code": digest_of_code(self.pipeline),
            "data": {"options": dict(self.data), "files": digest_of_files(self.data)},
            "config": self.config.settings(),
            "train": plan,
        }


def read_request(
    path: Path, overrides: Sequence[str] = (), epochs: int | None = None, max_minutes: float | None = None
) -> RunRequest:
    """Returns the run that the export in `path` describes, with the command line's options.

    Raises:
        UserError: It is not the export of a pipeline's configuration, or an override breaks a rule.
    """
    before, value = read(path), read(path, overrides)
    if "command" in value:
        raise UserError(f"{str(path)!r} is the export of a command, which takes no options.")
    limits = {"epochs": epochs, "max_minutes": max_minutes}
    given_limits = {name: option for name, option in limits.items() if option is not None}
    section = value.get("train") or {}
    options = training_options({**section, **given_limits} if isinstance(section, Mapping) else section)
    changed = tuple(_changed_fields(before, value))
    source = value["provenance"]
    return RunRequest(
        name=f"{source.get('sweep') or path.stem}-{int(source.get('trial') or 0):03d}",
        pipeline=value["pipeline"],
        data=value["data"],
        config=decode(TrialConfig, value["config"]),
        training=Training(
            folder="",
            epochs=options.epochs or _epochs_of(value),
            schedule=options.schedule,
            validate_epochs=options.validate_epochs,
            patience=options.patience,
            checkpoint_seconds=60 * options.checkpoint_minutes,
            keep=options.keep,
            max_seconds=60 * (options.max_minutes or 0.0),
            stall_seconds=options.stall_seconds,
        ),
        promise=None
        if changed
        else Promise(
            throughput=value["measurement"]["throughput"],
            conditions=value["conditions"],
            low=value["measurement"].get("throughput_low"),
            high=value["measurement"].get("throughput_high"),
        ),
        changed=changed,
        sweep=str(source.get("sweep") or ""),
        trial=int(source.get("trial") or 0),
        pass_env=pass_env(value),
    )


def _epochs_of(value: Mapping[str, Any]) -> int:
    """Returns the number of epochs from the export's `production.samples`.

    Raises:
        UserError: The export does not say how long to train.
    """
    samples = (value.get("production") or {}).get("samples")
    per_epoch = value["conditions"].get("train_samples")
    if not samples or not per_epoch:
        raise UserError(
            "training needs a length, but the export has neither `production.samples` nor `train.epochs`."
            " Add `--epochs N`."
        )
    epochs: int = math.ceil(samples / per_epoch)
    return epochs


def _changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the overridden fields that affect the speed, and `data` if that was overridden."""
    old, new = (decode(TrialConfig, export["config"]).canonical().flatten() for export in (before, after))
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    # None of these changes the speed of a step.
    names = [name for name in names if name not in ("seed", "optimizer.lr", "optimizer.weight_decay")]
    return names + ["data"] * (before["data"] != after["data"])
