"""Runs two versions to their end, and compares the numbers that both print last: losses and metrics."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass

from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import PASSIVE, Arm
from sweeper.script.run.patterns import number
from sweeper.script.run.watch import run_to_end
from sweeper.system.process import tree

_WORD = r"[A-Za-z_][\w%@-]*"
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
_NAMED = re.compile(rf"(?<![\w/.:@-])({_WORD}(?: {_WORD}){{0,2}})\s*[:=]\s*({_NUMBER})(?![\w:])", re.I)
_COUNTS = frozenset(
    [
        *("epoch", "epochs", "step", "steps", "iter", "iteration", "iterations", "batch", "batches", "rank"),
        *("time", "eta", "elapsed", "seconds", "sec", "lr", "cuda", "cpu", "device", "seed", "version"),
    ]
)
"""Last words of names whose numbers do not tell how good a training is."""
MAX_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """How a version ended.

    Attributes:
        seconds: Seconds from its start to its end, beside the other one if both fit.
        numbers: The last number of each name that it printed, such as `test loss`.
        failure: Why it has failed; empty if it has not.
    """

    seconds: float
    numbers: Mapping[str, float]
    failure: str = ""


def run_whole(arms: tuple[Arm, Arm], *, at_once: bool) -> tuple[WholeRun, WholeRun]:
    """Runs two versions to their end.

    Args:
        at_once: Whether they run at the same time.

    Raises:
        UserError: A version cannot be started.
    """
    running = dict.fromkeys(arms, 0)

    def run(arm: Arm) -> WholeRun:
        began, numbers, failure = time.monotonic(), dict[str, float](), ""
        try:
            run_to_end(
                arm.command,
                arm.folder,
                lambda line: numbers.update(numbers_in([line])),
                lambda pid: running.update({arm: pid}),
                env={**PASSIVE, **arm.env},
                cache=arm.cache,
            )
        except TrialFailedError as error:
            failure = str(error)
        return WholeRun(seconds=time.monotonic() - began, numbers=numbers, failure=failure)

    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        ThreadPoolExecutor(2 if at_once else 1) as pool,
    ):
        futures = [pool.submit(run, arm) for arm in arms]
        try:
            before, after = (future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            for pid in filter(None, running.values()):
                _kill(pid)
            raise
    return before, after


def _kill(pid: int) -> None:
    """Kills a script; a launcher's workers are in sessions of their own."""
    for one in list(tree(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def numbers_in(lines: Iterable[str]) -> dict[str, float]:
    """Returns the last number of each name in some lines, such as `val loss: 0.31` or `acc=0.97`."""
    numbers: dict[str, float] = {}
    for line in lines:
        for name, text in _NAMED.findall(line):
            value = number(text)
            if value is not None and name.lower().rpartition(" ")[2] not in _COUNTS:
                numbers[name] = value
    return numbers


def common_numbers(before: WholeRun, after: WholeRun) -> dict[str, tuple[float, float]]:
    """Returns the numbers that both versions printed last, by name; the latest names if there are many."""
    names = [name for name in after.numbers if name in before.numbers]
    return {name: (before.numbers[name], after.numbers[name]) for name in names[-MAX_NAMES:]}
