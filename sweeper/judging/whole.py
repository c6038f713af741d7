"""Runs two versions to their end, and compares the numbers that both print last: losses and metrics."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass

from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import PASSIVE, Arm
from sweeper.script.watch import last_lines

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WORD = r"[A-Za-z_][\w.@/%-]*"
_NAMED = re.compile(rf"({_WORD}(?: {_WORD}){{0,2}})\s*[:=]\s*({_NUMBER})")
_COUNTS = ("epoch", "step", "iter", "batch", "time", "eta", "elapsed", "sec", "lr")
"""Beginnings of the last words of names whose numbers tell how far a training is, not how good."""
MAX_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """How a version ended.

    Attributes:
        seconds: Seconds from its start to its end, beside the other one if both fit.
        numbers: The last number of each name that it printed, such as `test loss`.
    """

    seconds: float
    numbers: Mapping[str, float]


def run_whole(arms: tuple[Arm, Arm], *, on_gpu: bool) -> tuple[Whole, Whole]:
    """Runs two versions to their end: at the same time, unless they share a GPU.

    Raises:
        TrialFailedError: A version fails; the message names it.
        UserError: A version cannot be started.
    """
    at_once = 1 if on_gpu else min(2, len(os.sched_getaffinity(0)))
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        ThreadPoolExecutor(at_once) as pool,
    ):
        before, after = pool.map(_run, arms)
    return before, after


def _run(arm: Arm) -> Whole:
    began = time.monotonic()
    try:
        lines = last_lines(arm.command, arm.folder, env={**PASSIVE, **arm.env}, cache=arm.cache)
    except TrialFailedError as error:
        raise TrialFailedError(error.kind, f"{arm.name}: {error}") from error
    return Whole(seconds=time.monotonic() - began, numbers=numbers_in(lines))


def numbers_in(lines: Iterable[str]) -> dict[str, float]:
    """Returns the last number of each name in some lines, such as `val loss: 0.31` or `acc=0.97`."""
    numbers: dict[str, float] = {}
    for line in lines:
        for name, text in _NAMED.findall(line):
            if not name.lower().rpartition(" ")[2].startswith(_COUNTS):
                numbers[name] = float(text)
    return numbers


def both(before: Whole, after: Whole) -> dict[str, tuple[float, float]]:
    """Returns the numbers that both versions printed last, by name; the latest names if there are many."""
    names = [name for name in after.numbers if name in before.numbers]
    return {name: (before.numbers[name], after.numbers[name]) for name in names[-MAX_NAMES:]}
