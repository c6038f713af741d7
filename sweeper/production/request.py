"""The request for a production run: an exported configuration, options and the promised speed."""

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
from sweeper.export import pass_env, read
from sweeper.spec.training import training_options
from sweeper.sweep.store.fingerprint import digest_of_code, digest_of_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the sweep measured, and where.

    Attributes:
        throughput: Samples per second.
        holds_for: What it was measured with: `device`, `torch`, `train_samples`, ...
    """

    throughput: float
    holds_for: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A production run as it is asked for.

    Attributes:
        name: Of the run, unless another one has it.
        promise: None where something was changed that the speed depends on; `changed` says what.
        sweep: Where the configuration comes from, with `trial`.
        pass_env: Environment variables that it gets beside the usual ones.
        training: With the folder and the end still open.
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
        """Returns what must be equal for a run to be gone on with; how long it may take is no part of it."""
        plan = encode(self.training)
        for name in ("folder", "max_seconds", "keep", "checkpoint_seconds", "stall_seconds"):
            del plan[name]
        return {
            "pipeline": self.pipeline,
            "code": digest_of_code(self.pipeline),
            "data": {"options": dict(self.data), "files": digest_of_files(self.data)},
            "config": encode(self.config.canonical()),
            "train": plan,
        }


def wanted(
    path: Path, overrides: Sequence[str] = (), epochs: int | None = None, max_minutes: float | None = None
) -> Wanted:
    """Returns what the export in `path` asks for, with the command line's own wishes.

    Raises:
        UserError: It is no export of a pipeline's configuration, or an override breaks a rule.
    """
    before, value = read(path), read(path, overrides)
    if "command" in value:
        raise UserError(f"{str(path)!r} is the export of a command, which takes no options.")
    asked = {"epochs": epochs, "max_minutes": max_minutes}
    said = {name: each for name, each in asked.items() if each is not None}
    section = value.get("train") or {}
    options = training_options({**section, **said} if isinstance(section, Mapping) else section)
    changed = tuple(_changed(before, value))
    source = value["provenance"]
    return Wanted(
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
        else Promise(throughput=value["measured"]["throughput"], holds_for=value["holds_for"]),
        changed=changed,
        sweep=str(source.get("sweep") or ""),
        trial=int(source.get("trial") or 0),
        pass_env=pass_env(value),
    )


def _epochs_of(value: Mapping[str, Any]) -> int:
    """Returns the epochs of the production run that the sweep was for.

    Raises:
        UserError: Nothing says how long it is.
    """
    samples = (value.get("production") or {}).get("samples")
    each = value["holds_for"].get("train_samples")
    if not samples or not each:
        raise UserError(
            "how long to train must be given, but the export has no `production.samples` and no"
            " `train.epochs`. Add `--epochs N`."
        )
    epochs: int = math.ceil(samples / each)
    return epochs


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the fields of the configuration that were overridden, and `data` where that was."""
    old, new = (decode(TrialConfig, each["config"]).canonical().flatten() for each in (before, after))
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    # Neither changes how fast a step is.
    names = [name for name in names if name not in ("seed", "optimizer.lr", "optimizer.weight_decay")]
    return names + ["data"] * (before["data"] != after["data"])
