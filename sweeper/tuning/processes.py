"""Compares numbers of processes of a launcher: do several train faster than one?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.measurement import Measurement
from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import commands
from sweeper.judging.speed import Speed, SpeedComparison, compare
from sweeper.results.formatting import interval, rate, times
from sweeper.script.changes import BATCH_SIZE, variable_of

SHARE = 0.3
"""Share of a tune's time for them."""
MIN_SECONDS = 20.0
"""Fewest seconds for the comparison of two numbers."""

_OPTION = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes)(?:=(\d+))?")


def num_processes(command: Sequence[str]) -> int:
    """Returns how many processes a command says that its launcher is to start; 0 if it says nothing."""
    place = _place(command)
    return 0 if place is None else int(command[place].rpartition("=")[2])


def with_processes(command: Sequence[str], number: int) -> list[str]:
    """Returns a command whose launcher starts another number of processes."""
    place = _place(command)
    assert place is not None
    option, equals, _ = command[place].rpartition("=")
    return [*command[:place], f"{option}{equals}{number}", *command[place + 1 :]]


def _place(command: Sequence[str]) -> int | None:
    """Returns the place of the word with the number of processes."""
    for place, word in enumerate(command):
        if word.endswith(".py"):
            # What follows are the script's own options.
            return None
        match = _OPTION.fullmatch(word)
        if match is None:
            continue
        if match[1]:
            return place
        following = command[place + 1 : place + 2]
        return place + 1 if following and following[0].isdecimal() else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpeed:
    """How fast a script trains with another number of processes.

    Attributes:
        comparison: Its speed, in samples per second, over that of the script as it is; None if it fails.
        why: Why it fails.
        has_same_steps: Whether a step has as many samples as the script's own.
    """

    number: int
    comparison: SpeedComparison | None = None
    why: str = ""
    has_same_steps: bool = True


def compare_processes(
    command: Sequence[str],
    measured: Measurement,
    seconds: float,
    say: Callable[[str], None],
    *,
    keeps_samples: bool = True,
) -> Iterator[ProcessSpeed]:
    """Yields the speeds with one process, two, and so on, as far as there is time.

    Args:
        measured: The script as it is.
        seconds: The time limit.
        say: Receives a line for each round.
        keeps_samples: Whether each process has a larger batch, so that a step has as many samples.
    """
    number, size = num_processes(command), int(measured.observed.get("batch_size") or 0)
    others = [other for other in _powers_of_2(number) if number % other == 0]
    num_fit = max(1, int(seconds / MIN_SECONDS))
    for other in others[:num_fit]:
        say(f"Racing {_processes(other)} against {number}.")
        changed = with_processes(command, other)
        wanted = size * number // other
        if keeps_samples and size:
            changes = variable_of({BATCH_SIZE.name: f"{wanted}/{size}"})
            changed = ["env", *(f"{name}={text}" for name, text in changes.items()), *changed]
        try:
            comparison = compare(
                commands(command, changed, Path.cwd()), seconds / min(num_fit, len(others)), say
            )
        except TrialFailedError as error:
            yield ProcessSpeed(number=other, why=str(error))
            continue
        sizes = {one.observed.get("batch_size") for one in comparison.after}
        yield ProcessSpeed(number=other, comparison=comparison, has_same_steps=sizes == {wanted})


def _powers_of_2(below: int) -> Iterator[int]:
    number = 1
    while number < below:
        yield number
        number *= 2


def process_lines(number: int, speeds: Sequence[ProcessSpeed]) -> Iterator[str]:
    """Yields what is known of each number of processes, and which one to use.

    Args:
        number: That of the script as it is.
    """
    compared = [(speed, speed.comparison) for speed in speeds if speed.comparison is not None]
    for speed in speeds:
        if speed.comparison is None:
            yield f"{_processes(speed.number)}: fails ({speed.why})."
    for speed, ratio in compared:
        samples = "" if speed.has_same_steps else ", with fewer samples in a step"
        yield (
            f"{_processes(speed.number)}: {rate(_throughput(ratio.after))},"
            f" {times(ratio.ratio)} {interval(ratio.low, ratio.high)} of your {number}{samples}."
        )
    best = max(compared, key=lambda pair: pair[1].ratio, default=None)
    enough = [pair for pair in compared if pair[1].answer in (Speed.FASTER, Speed.SAME)]
    if best is not None and enough:
        # Of what is about as fast, fewer processes leave room for others.
        chosen = best if best[1].answer is Speed.FASTER else min(enough, key=lambda pair: pair[0].number)
        yield f"Use {_processes(chosen[0].number)}."
    elif (one := next((ratio for speed, ratio in compared if speed.number == 1), None)) is not None:
        gain = 1 / one.ratio
        yield (
            f"{_processes(number)} are {times(gain)} {interval(1 / one.high, 1 / one.low)} as fast as one:"
            f" {100 * gain / number:.0f}% of {number} times."
        )


def _processes(number: int) -> str:
    return f"{number} process{'es' * (number != 1)}"


def _throughput(measurements: Sequence[Measurement]) -> float:
    return sum(one.throughput for one in measurements) / len(measurements)
