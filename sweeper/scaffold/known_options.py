"""Recognises options of training scripts by name, with the parameter and the range of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar
from sweeper.core.script import OBSERVED
from sweeper.core.template import cases, spell
from sweeper.script.changes import CHANGES
from sweeper.script.changes.change import Change
from sweeper.script.run.command_line import Option, is_negated, plain_name
from sweeper.system.cpu import usable_cpus

BATCH = "batch_size"
WORKERS = "loader.num_workers"
PREFETCH = "loader.prefetch_factor"
_FORMAT = "precision.amp"
CHANGES_LEARNING = (BATCH, "accumulate_steps")
"""Parameters that change what a model learns from the same samples."""

_ALIASES: Mapping[str, str] = {
    BATCH: "batch_size bs batch b train_batch_size per_device_train_batch_size per_device_batch_size"
    " per_gpu_train_batch_size micro_batch_size mini_batch_size",
    "accumulate_steps": "gradient_accumulation_steps grad_accumulation_steps accumulation_steps"
    " accumulate_steps accumulate_grad_batches grad_accum accum_iter accum",
    WORKERS: "num_workers workers j n_workers dataloader_num_workers dataloader_workers",
    PREFETCH: "prefetch_factor prefetch dataloader_prefetch_factor",
    "loader.pin_memory": "pin_memory pin_mem dataloader_pin_memory",
    _FORMAT: "precision dtype amp_dtype",
    "amp": "amp mixed_precision",
    "fp16": "fp16 half",
    "bf16": "bf16",
    "compile": "compile torch_compile compile_model",
    "model.hidden_size": "hidden_size hidden_dim hidden d_model n_embd embed_dim nhid",
    "model.num_layers": "num_layers n_layers layers n_layer depth",
    "data.sequence_length": "sequence_length seq_length seq_len max_seq_length max_seq_len block_size"
    " context_length bptt",
}
_KNOWN = {plain_name(alias): name for name, aliases in _ALIASES.items() for alias in aliases.split()}

_USUAL: Mapping[str, int] = {
    BATCH: 64,
    "accumulate_steps": 1,
    WORKERS: 4,
    PREFETCH: 2,
    "model.hidden_size": 256,
    "model.num_layers": 4,
    "data.sequence_length": 512,
}
"""Numeric dimensions, with the centre of their range if the value is unknown."""

_LARGEST = 10**9
_TRUTHS = (
    *(("True", "False"), ("true", "false"), ("TRUE", "FALSE")),
    *(("1", "0"), ("yes", "no"), ("on", "off")),
)
_FORMATS = tuple(map(str, FIELDS[_FORMAT].choices))
_PLAINEST = "fp32"
_SPELLINGS = (
    dict(zip(_FORMATS, _FORMATS, strict=True)),
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "32", "bf16": "bf16", "fp16": "16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A dimension of the space.

    Attributes:
        value: The baseline's value; None if unknown.
        choices: Its values if they are few; otherwise they range from `low` to `high`.
        at_least: The smallest values of others with which it applies, by name.
        is_shared: Whether other options may add choices, as `--bf16` does to those of `--fp16`.
    """

    name: str
    value: Scalar = None
    choices: tuple[Scalar, ...] = ()
    low: int = 0
    high: int = 0
    log: bool = False
    at_least: Mapping[str, int] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def changes_work(self) -> bool:
        """Whether its values change what is trained, so that speeds alone do not compare."""
        return self.name.partition(".")[0] in OPEN_SECTIONS

    @property
    def is_searched(self) -> bool:
        """Whether it can be searched without a decision by the user."""
        return self.value is not None and not self.changes_work

    def __str__(self) -> str:
        """Returns its range as YAML."""
        if self.choices:
            text = f"type: categorical, choices: [{', '.join(map(spell, self.choices))}]"
        else:
            text = f"type: int, low: {self.low}, high: {self.high}{', log: true' if self.log else ''}"
        when = ", ".join(f"{name}: {{min: {minimum}}}" for name, minimum in self.at_least.items())
        return f"{{{text}{f', when: {{{when}}}' if when else ''}}}"


Match = tuple[Dimension, str]
"""A dimension, and the template that replaces the option's value or the whole flag."""


def recognise(option: Option) -> Match | None:
    """Returns the dimension and the template of an option, or None if it is not a known one."""
    keys = (plain_name(name) for name in option.long_names)
    name = next((_KNOWN[key] for key in keys if key in _KNOWN), "")
    if name in _USUAL:
        return _number(name, option)
    if name in _FORMATS:
        return _half(name, option)
    if name in ("amp", _FORMAT) and (match := _format(option)):
        return match
    return _switch(name, option) if name not in ("", _FORMAT) else None


def fill_value(dimension: Dimension, facts: Mapping[str, Any]) -> Dimension:
    """Returns a dimension, with the value that torch reports if it has none and can take that one."""
    value = facts.get(OBSERVED.get(dimension.name, ""))
    if dimension.value is not None or value is None:
        return dimension
    if dimension.choices:
        if value in dimension.choices:
            return replace(dimension, value=value)
        is_number = isinstance(value, int) and isinstance(dimension.choices[0], int)
        choices = tuple(sorted((*dimension.choices, value))) if is_number else ()
        return replace(dimension, value=value, choices=choices) if choices else dimension
    if not isinstance(value, int) or isinstance(value, bool):
        return dimension
    if dimension.name == BATCH and value > 0:
        return replace(dimension, value=value, low=max(1, value // 4), high=16 * value)
    if value < dimension.low:
        return dimension
    return replace(dimension, value=value, high=max(dimension.high, value))


def of_environment(facts: Mapping[str, Any]) -> dict[str, tuple[Dimension, dict[str, str]]]:
    """Returns dimensions that need no option of the script, each with its environment variables.

    Args:
        facts: What torch reports about the script's training.
    """
    dimensions = {}
    for change in CHANGES.values():
        if variables := variables_of(change, facts):
            choices = (value for value in change.choices if not change.refusal(value, facts))
            original = change.original
            dimension = Dimension(name=change.name, value=original, choices=(original, *choices))
            dimensions[change.name] = (dimension, variables)
    return dimensions


def variables_of(change: Change, facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns templates of the environment variables that make a change, for all values that are possible."""
    words: dict[str, dict[str, str]] = {}
    for value in change.choices:
        if not change.refusal(value, facts):
            for name, text in change.environment(value, facts).items():
                words.setdefault(name, {})[value] = text
    return {name: cases(change.name, by_value) for name, by_value in words.items()}


def combine(first: Dimension, second: Dimension) -> Dimension | None:
    """Returns the dimensions of two options as one; None if they do not combine."""
    choices = {*first.choices, *second.choices}
    if not (first.is_shared and second.is_shared) or choices == {*first.choices}:
        return None
    if first.value is None or second.value is None:
        return None
    if _PLAINEST not in (first.value, second.value):
        # The script decides what both together mean.
        return None
    value = second.value if first.value == _PLAINEST else first.value
    return replace(first, value=value, choices=tuple(choice for choice in _FORMATS if choice in choices))


def _number(name: str, option: Option) -> Match | None:
    text = str(_USUAL[name]) if option.value is None else option.value
    if option.is_flag or not _is_number(text):
        return None
    number = int(text)
    if not (0 if name == WORKERS else 1) <= number <= _LARGEST:
        return None
    value = None if option.value is None else number
    if option.choices and all(map(_is_number, option.choices)):
        dimension = Dimension(name=name, value=value, choices=tuple(dict.fromkeys(map(int, option.choices))))
    elif name == BATCH:
        dimension = Dimension(name=name, value=value, low=max(1, number // 4), high=16 * number, log=True)
    elif name == WORKERS:
        dimension = Dimension(name=name, value=value, high=usable_cpus())
    else:
        choices = {"accumulate_steps": {1, 2, 4, 8}, PREFETCH: {2, 4, 8}}
        near = choices.get(name, {max(1, number // 2), 2 * number})
        dimension = Dimension(name=name, value=value, choices=tuple(sorted({*near, number})))
    return dimension, f"{{{name}}}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _switch(name: str, option: Option) -> Match | None:
    words = _words(option)
    if words is None:
        return None
    return Dimension(name=name, value=_is_on(option, words), choices=(True, False)), _template(name, words)


def _half(half: str, option: Option) -> Match | None:
    words = _words(option)
    if words is None or "true" not in words:
        return None
    is_on = _is_on(option, words)
    value = None if is_on is None else half if is_on else _PLAINEST
    # Another option may turn on the other format: then this one is off.
    off = {} if option.is_flag else {choice: words["false"] for choice in _FORMATS if choice != half}
    choices = tuple(choice for choice in _FORMATS if choice in (_PLAINEST, half))
    dimension = Dimension(name=_FORMAT, value=value, choices=choices, is_shared=True)
    return dimension, _template(_FORMAT, {half: words["true"], **off})


def _words(option: Option) -> Mapping[str, str] | None:
    """Returns an option's words for `true` and `false`; None if it is not a switch."""
    names = option.long_names
    if option.is_flag:
        ways = {"true": [n for n in names if not is_negated(n)], "false": [n for n in names if is_negated(n)]}
        return {value: spelled[0] for value, spelled in ways.items() if spelled}
    pairs = (pair for pair in _TRUTHS if not option.choices or {*pair} <= {*option.choices})
    pair = next((pair for pair in pairs if option.value in (None, *pair)), None)
    return None if pair is None or is_negated(names[0]) else {"true": pair[0], "false": pair[1]}


def _is_on(option: Option, words: Mapping[str, str]) -> bool | None:
    if option.value is None:
        return None
    return option.value == ("true" if option.is_flag else words["true"])


def _format(option: Option) -> Match | None:
    # Without a value, the choices show what the option is.
    if option.is_flag or not (option.value or option.choices):
        return None
    best: Mapping[str, str] = {}
    for spelling in _SPELLINGS:
        allowed = option.choices or tuple(spelling.values())
        words = {name: word for name, word in spelling.items() if word in allowed}
        if len(words) > max(1, len(best)) and option.value in (None, *words.values()):
            best = words
    if not best:
        return None
    value = next((name for name, word in best.items() if word == option.value), None)
    return Dimension(name=_FORMAT, value=value, choices=tuple(best)), _template(_FORMAT, best)


def _template(name: str, words: Mapping[str, str]) -> str:
    if all(value == word for value, word in words.items()):
        return f"{{{name}}}"
    return cases(name, words)
