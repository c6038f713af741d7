"""Gives configurations short names: what differs, most important first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping

from sweeper.core.config import FIELDS, Scalar, TrialConfig
from sweeper.core.loaders import traits
from sweeper.script.changes.change import ORIGINAL

_MODES = {"default": "comp", "reduce-overhead": "comp-ro", "max-autotune": "comp-max", "graph": "graph"}
_OF_WORKERS = (
    "loader.num_workers",
    "loader.prefetch_factor",
    "loader.pin_memory",
    "loader.persistent_workers",
)
DEFAULT = "default"
_SPELLED: Mapping[str, Callable[[Scalar], str]] = {
    "loader.kind": lambda value: traits(str(value)).label or str(value),
    "compile.mode": lambda value: _MODES.get(str(value), ""),
    "precision.tf32": lambda value: "tf32" if value is True else "",
}
_SAID: Mapping[tuple[str, Scalar], str] = {
    ("loader.in_order", False): "unordered",
    ("compile.dynamic", "auto"): "dynamic-auto",
    ("activation_checkpointing", True): "ckpt",
    ("activation_checkpointing", False): "",
    ("device.numa", "near"): "numa",
    ("device.numa", "default"): "",
}
_PREFIXES = {
    "accumulate_steps": "acc",
    "batch_size": "bs",
    "loader.num_workers": "w",
    "loader.prefetch_factor": "pf",
    "optimizer.lr": "lr",
    "loader.buckets": "bk",
    "device.cpu_threads": "t",
    "model.hidden_size": "h",
    "model.num_layers": "l",
}
_ORDER = (
    "batch_size",
    "accumulate_steps",
    "loader.kind",
    "loader.num_workers",
    "loader.prefetch_factor",
    "loader.pin_memory",
    "precision.amp",
    "precision.tf32",
    "compile.mode",
)


def label(config: TrialConfig, varied: Collection[str]) -> str:
    """Returns a label such as `bs2048 work w4 pf2 bf16 h256` from the names in `varied`."""
    flat = config.canonical().flatten()
    names = _in_order(tuple(varied))
    is_script = not config.names_are_fields
    return " ".join(filter(None, (_part(name, flat, is_script=is_script) for name in names if name in flat)))


@functools.lru_cache(maxsize=8)
def _in_order(varied: tuple[str, ...]) -> tuple[str, ...]:
    return (*(n for n in _ORDER if n in varied), *sorted(n for n in varied if n not in _ORDER))


def _part(name: str, flat: Mapping[str, Scalar], *, is_script: bool) -> str:
    """Returns a label's part for one name; empty if its value goes without saying."""
    value = flat[name]
    if name in _SPELLED:
        return _SPELLED[name](value)
    if _has_no_effect(name, flat) or _is_left_alone(name, value):
        return ""
    if (name, value) in _SAID:
        return _SAID[name, value]
    if name == "device.malloc":
        return _malloc(value, is_script=is_script)
    last = name.rpartition(".")[2]
    if isinstance(value, bool):
        return _flag(name, last.partition("_")[0], value)
    if name in _PREFIXES:
        return f"{_PREFIXES[name]}{value}"
    is_clear = isinstance(value, str) and (name in FIELDS or not is_script)
    return str(value) if is_clear else f"{last}={value}"


def _has_no_effect(name: str, flat: Mapping[str, Scalar]) -> bool:
    """Returns whether a name is about worker processes of a loader that has none."""
    if name in _OF_WORKERS and not traits(str(flat.get("loader.kind"))).has_workers:
        return True
    return name == "loader.prefetch_factor" and flat.get("loader.num_workers") == 0


def _is_left_alone(name: str, value: Scalar) -> bool:
    """Returns whether a value means that nothing is changed."""
    return value in (DEFAULT, ORIGINAL) and (name not in FIELDS or name == "loader.start_method")


def _malloc(value: Scalar, *, is_script: bool) -> str:
    if is_script:
        # It has its own default.
        return "" if value == DEFAULT else "retain"
    return "" if value == FIELDS["device.malloc"].default else "plain-malloc"


def _flag(name: str, short: str, value: bool) -> str:
    """Returns `pin` or `no-pin`; empty for the default."""
    default = FIELDS[name].default if name in FIELDS else False
    if value == default:
        return ""
    return short if value else f"no-{short}"


def run_name(number: int, stage: str, config: TrialConfig, varied: Collection[str]) -> str:
    """Returns the name of trial `number`: `000 baseline`, `007 bs2048 res bf16 h256`."""
    return f"{number:03d} {'baseline' if stage == 'baseline' else label(config, varied)}"
