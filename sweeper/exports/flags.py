"""Writes a configuration as flags of a training script: `--batch-size 512 --amp bf16 --num-workers 8`.

A map from dotted names to the script's own flags replaces some of them:

    batch_size: --bs                                    the value follows
    precision.amp: "--amp={value}"                      the value within
    loader.num_workers: null                            left out
    compile.mode: {default: --compile, eager: ""}       a flag for each value
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode
from sweeper.core.config import FIELDS, Scalar, TrialConfig, in_type
from sweeper.core.loaders import traits
from sweeper.core.template import spell
from sweeper.errors import UserError, did_you_mean
from sweeper.schema import read_yaml
from sweeper.schema.scalars import plain_scalar_or_text

_OWN_NAMES = {
    "loader.kind": "--loader",
    "compile.mode": "--compile",
    "optimizer.name": "--optimizer",
    "device.count": "--num-devices",
}
"""Flags of settings for which the last part of the name says too little."""

_NO_FLAG = ("optimizer.lr_rule", "optimizer.lr_batch_size", "device.malloc")
"""Settings that the learning rate already reflects, or that no script option sets."""

_NOTHING_ASKED: Mapping[str, Scalar] = {
    "loader.buckets": 1,
    "optimizer.warmup_steps": 0,
    "optimizer.clip_norm": 0.0,
    "device.count": 1,
    "device.memory_fraction": 0.0,
    "device.cpu_threads": 0,
    "precision.tf32": "default",
    "loader.in_order": True,
    "loader.start_method": "default",
    "compile.dynamic": False,
    "ddp.broadcast_buffers": True,
    "device.numa": "default",
    "activation_checkpointing": False,
}
"""Values at which a setting does nothing and needs no flag."""

_OF_WORKERS = (
    *("loader.prefetch_factor", "loader.persistent_workers"),
    *("loader.in_order", "loader.start_method"),
)
_OF_DATALOADER = ("loader.num_workers", "loader.pin_memory", *_OF_WORKERS)

_NOT_APPLIED = ("without effect", "refused by the device")
"""Beginnings of a note (`Measurement.effective`) that the setting's default ran."""


def effective_settings(value: Mapping[str, Any]) -> dict[str, Scalar]:
    """Returns the settings of an exported configuration that had an effect, by dotted name.

    The learning rate is the one at the global batch. Settings that the device or the model refused
    (TF32 on a CPU) have the values that ran; settings of workers are absent without workers.
    """
    config = decode(TrialConfig, value["config"])
    flat, notes = config.flatten(), value["measurement"]["effective"]
    ran = {name: _parse_note(name, note, flat[name]) for name, note in notes.items() if name in flat}
    config = config.replace(ran).canonical()
    settings = config.flatten()
    settings["optimizer.lr"] = float(f"{config.optimizer.lr_at(config.global_batch):.6g}")
    without = () if traits(config.loader.kind).has_workers else _OF_DATALOADER
    if not config.loader.num_workers:
        without = (*without, *_OF_WORKERS)
    return {name: setting for name, setting in settings.items() if name not in without}


def _parse_note(name: str, note: str, value: Scalar) -> Scalar:
    """Returns the value that ran, read from the beginning of a note of `Measurement.effective`."""
    begin = note.partition(":")[0]
    if begin in _NOT_APPLIED:
        default: Scalar = FIELDS[name].default
        return default
    try:
        return in_type(name, plain_scalar_or_text(begin))
    except UserError:
        # Such as `default in 3 pieces`, which is how the requested value ran.
        return value


def flags(value: Mapping[str, Any], flag_map: Mapping[str, Any]) -> list[str]:
    """Returns an exported configuration as arguments; a boolean is a flag, present if true.

    A boolean that is on by default has a flag only if it is false: `--no-in-order`.

    Args:
        flag_map: The script's own flags by dotted name, from `read_map`.

    Raises:
        UserError: `flag_map` names an unknown setting, or has no flag for a value.
    """
    settings = effective_settings(value)
    _check(flag_map, {*settings, *FIELDS})
    defaults = _default_flags(settings)
    arguments: list[str] = []
    for name, setting in settings.items():
        if name in flag_map:
            arguments += _mapped_flags(name, setting, flag_map[name])
        elif name in defaults and setting is not None and setting != _NOTHING_ASKED.get(name, None):
            # These are on unless a script is told otherwise: leaving the flag out would not turn them off.
            is_off = setting is False and _NOTHING_ASKED.get(name) is True
            arguments += (
                [f"--no-{defaults[name].removeprefix('--')}"] if is_off else _words(defaults[name], setting)
            )
    return arguments


def read_map(path: Path) -> dict[str, Any]:
    """Returns the script's own flags by dotted name.

    Raises:
        UserError: The file cannot be read, or is not such a map.
    """
    flag_map = read_yaml(path)
    if not isinstance(flag_map, dict):
        raise UserError(f"`--map` must be a file of `name: flag` lines, but {str(path)!r} is not.")
    for name, flag in flag_map.items():
        texts = flag.values() if isinstance(flag, dict) else [flag]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise UserError(
                f"{path}: `{name}` must be a flag, null, or a mapping of values to flags, but got {flag!r}. "
                "Put it in quotes."
            )
    return flag_map


def _default_flags(settings: Mapping[str, Scalar]) -> dict[str, str]:
    """Returns the flag of each setting; if two would share one, the later one uses its whole name."""
    flag_by_name: dict[str, str] = {}
    for name in settings:
        if name in _NO_FLAG:
            continue
        flag = _OWN_NAMES.get(name) or f"--{_kebab(name.rpartition('.')[2])}"
        flag_by_name[name] = f"--{_kebab(name)}" if flag in flag_by_name.values() else flag
    return flag_by_name


def _kebab(name: str) -> str:
    return name.replace("_", "-").replace(".", "-")


def _words(flag: str, setting: Scalar) -> list[str]:
    if isinstance(setting, bool):
        return [flag] if setting else []
    text = spell(setting)
    # A value that begins with a dash would be read as a flag.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _mapped_flags(name: str, setting: Scalar, flag: Any) -> list[str]:
    if flag is None or setting is None:
        return []
    if isinstance(flag, dict):
        text = spell(setting)
        if text not in flag and setting == _NOTHING_ASKED.get(name, None):
            return []
        if text not in flag:
            raise UserError(
                f"`--map` must have a flag for each value of `{name}`, but has none for {text!r}. "
                f'Add one; "" means no flag.'
            )
        return _split(name, flag[text] or "")
    if "{value}" in flag:
        return [word.replace("{value}", spell(setting)) for word in _split(name, flag)]
    *before, last = _split(name, flag) or [""]
    return [*before, *_words(last, setting)] if last else []


def _split(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"`--map` must hold flags in shell syntax, but got {text!r} for `{name}` ({error})."
        ) from error


def _check(flag_map: Mapping[str, Any], names: set[str]) -> None:
    for name in flag_map:
        if name not in names:
            near = did_you_mean(name, names)
            raise UserError(f"`--map` must name settings of the trial, but got {name!r}.{near}")
