"""Reads quantities from lines of output, by built-in patterns or by the user's, which have named groups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# The group is atomic, so that a long line of digits cannot make it backtrack forever.
_NUMBER = r"(?<![\d.,])((?>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?))"
# `InfoNCE` is the name of a loss, not an infinite one.
_LOSS = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|(?:nan|inf(?:inity)?)(?![a-z_])))"
_STEP = r"(?:steps?|iters?|iterations?|it|batch(?:es)?|步|批)"
_SAMPLE = r"(?:samples?|images?|imgs?|examples?|sequences?|seqs?|sents?|rows?|样本)"
_SECOND = r"(?:seconds?|secs?|s|秒)"
_PER = r"(?:/|_per_|\s+per\s+)"
_NOT_VALIDATION = "".join(
    rf"(?<!\b{name} )" for name in ("val", "vali", "valid", "validation", "eval", "test", "dev")
)
_IS = r"""["']?\s*[:=\s]\s*["']?"""

USUAL: tuple[tuple[str, str], ...] = (
    # tqdm, Keras: 450/1000 [00:05<00:06, 88.1it/s]
    ("step", r"(\d+)/\d+\s*\["),
    ("steps", r"\d+/(\d+)\s*\["),
    # Textbook: Train Epoch: 1 [640/20000 (3%)]
    ("samples", r"\[(\d+)/\d+ \(\d+(?:\.\d+)?%\)\]"),
    ("step", rf"\b{_STEP}{_IS}(\d+)\b(?![.,]\d)"),
    ("steps", rf"\b{_STEP}{_IS}\d+\s*(?:/|of)\s*(\d+)"),
    ("step", rf"\|\s*(\d+)/\s*\d+\s*{_STEP}\b"),
    ("steps", rf"\|\s*\d+/\s*(\d+)\s*{_STEP}\b"),
    ("ms_per_step", rf"\bms{_PER}{_STEP}{_IS}{_NUMBER}"),
    ("ms_per_step", rf"{_NUMBER}\s*ms{_PER}{_STEP}\b"),
    ("s_per_step", rf"\b{_SECOND}{_PER}{_STEP}{_IS}{_NUMBER}"),
    ("s_per_step", rf"{_NUMBER}\s*{_SECOND}{_PER}{_STEP}\b"),
    ("steps_per_s", rf"{_NUMBER}\s*{_STEP}{_PER}{_SECOND}\b"),
    ("steps_per_s", rf"{_STEP}{_PER}{_SECOND}{_IS}{_NUMBER}"),
    ("samples_per_s", rf"{_NUMBER}\s*{_SAMPLE}{_PER}{_SECOND}\b"),
    ("samples_per_s", rf"{_SAMPLE}{_PER}{_SECOND}{_IS}{_NUMBER}"),
    ("tokens_per_s", rf"{_NUMBER}\s*(?:tok|tokens?|words?){_PER}{_SECOND}\b"),
    ("tokens_per_s", rf"\b(?:(?:tok|tokens?|words?){_PER}{_SECOND}|wps|tps){_IS}{_NUMBER}"),
    ("epoch_seconds", rf"(?:epoch|轮).*?(?:time|took|elapsed|用时|耗时|时间){_IS}{_NUMBER}\s*{_SECOND}\b"),
    ("epoch_seconds", rf"(?:epoch|轮).*?(?:time|took|elapsed|用时|耗时|时间)[：:=]\s*{_NUMBER}\s*{_SECOND}"),
    ("epoch_seconds", rf"(?:epoch|轮).*?\bin\s+{_NUMBER}\s*{_SECOND}\b"),
    ("val_loss", rf"(?:vali?|valid|validation|eval|test|dev|验证|测试)[ _/.-]?(?:loss|损失){_IS}{_LOSS}"),
    ("val_loss", rf"(?:验证|测试)(?:集)?损失[：:=]\s*{_LOSS}"),
    ("loss", rf"(?<![\w/.-]){_NOT_VALIDATION}(?:train(?:ing)?[ _/.-])?(?:loss|损失){_IS}{_LOSS}"),
    ("loss", rf"(?<!验证)(?<!测试)(?:训练)?损失[：:=]\s*{_LOSS}"),
)
"""Built-in patterns as (quantity, pattern); the first that matches a line gives the quantity."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_EVALUATION = re.compile(
    r"\b(?:vali?|valid|validation|validating|eval|evaluat\w+|test|testing)\b|验证|测试", re.I
)
_SPACES = re.compile(r"\s+")
LONGEST = 2000
"""Number of characters of a line that are parsed."""


class Patterns:
    """Reads quantities from lines."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._defaults = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in USUAL]

    def read(self, line: str) -> dict[str, float]:
        """Returns the values in a line by quantity (`sweeper.core.quantities`)."""
        values: dict[str, float] = {}
        for name, text in self._matches(_SPACES.sub(" ", line[:LONGEST])):
            value = number(text)
            if value is not None:
                values.setdefault(name, value)
        return values

    def _matches(self, line: str) -> Iterator[tuple[str, str]]:
        if self._patterns:
            for pattern in self._patterns:
                match = pattern.search(line)
                if match is not None:
                    yield from ((n, text) for n, text in match.groupdict().items() if text is not None)
            return
        for name, pattern in self._defaults:
            match = pattern.search(line)
            if match is not None:
                yield name, match[1]


def number(text: str) -> float | None:
    """Parses a number, ignoring thousands commas; returns None if it is not one."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def is_evaluation(line: str) -> bool:
    """Returns whether a line is about validation rather than training."""
    return _EVALUATION.search(line) is not None


class Lines:
    """Splits a stream into lines at newlines and carriage returns, without colours.

    A progress bar starts each line with a carriage return and ends it only when it draws the next,
    so such a line counts as soon as it is drawn.
    """

    def __init__(self) -> None:
        self._rest = self._drawn = b""

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that `data` completes or draws."""
        text = self._rest + data
        *whole, rest = re.split(rb"[\r\n]+", text)
        if whole and whole[0] == self._drawn:
            del whole[0]
        self._drawn = rest if rest and text.removesuffix(rest).endswith(b"\r") else b""
        # A line without an end is not kept forever.
        self._rest = rest[-4 * LONGEST :]
        return [clean(line) for line in (*whole, self._drawn) if line]

    def rest(self) -> list[str]:
        """Returns the incomplete line at the end, if any."""
        rest = b"" if self._rest == self._drawn else self._rest
        self._rest = self._drawn = b""
        return [clean(rest)] if rest else []


def clean(line: bytes) -> str:
    """Returns a line as text without control sequences."""
    text = _ANSI.sub("", line[: 4 * LONGEST].decode("utf-8", "replace"))
    return "".join(c for c in text if c.isprintable() or c == "\t")
