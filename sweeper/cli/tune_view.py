"""Renders the changes of a tune as text: their names, and the table of what each brings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sweeper.analysis.formatting import interval
from sweeper.sweep.store.load import LoadedSweep
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue
from sweeper.tuning.steps import ONCE, ChangeGain, Interval, largest_gain, search_of

NAME_WIDTH, RATIO_WIDTH = 24, 22

MAX_KNOWN = 1.5
"""Largest bound of a gain that says something: beyond it, the machine was too unsteady."""


def ladder_lines(rungs: Sequence[ChangeGain], changes: Sequence[ChangeValue]) -> list[str]:
    """Returns a table with a line for each change: its gain alone, its gain in the stack, and its kind."""
    if not rungs:
        return []
    among = {each.name: each for each in changes}
    width = max(NAME_WIDTH, *(len(f"{each.name} {each.value}") for each in rungs))
    lines = [f"{'':<{width}} {'alone':<{RATIO_WIDTH}} {'in the stack':<{RATIO_WIDTH}} kind"]
    for each in rungs:
        alone, stacked = (f"{_measured(ratio):<{RATIO_WIDTH}}" for ratio in (each.alone, each.stacked))
        change = among.get(each.name)
        kind = change.kind if change else "an option"
        dropped = "" if each.is_kept else ", not kept: its gain is not certain"
        lines.append(f"{f'{each.name} {each.value}':<{width}} {alone} {stacked} {kind}{dropped}")
    return lines


def nothing_lines(sweep: LoadedSweep, changes: Sequence[ChangeValue], minutes: float) -> Iterator[str]:
    """Yields what the measurements of a tune without a winner still allow, and what they leave open."""
    halves = search_of(sweep)
    if halves is None or sweep.state != "finished":
        return
    untried = {name: f"--minutes {2 * math.ceil(minutes):g} would do" for name in halves.untried()}
    if sweep.decision.kind != "baseline":
        yield f"To have it confirmed, run the same command with --minutes {2 * math.ceil(minutes):g}."
    elif len(halves.untried()) < len(sweep.spec.space):
        gain = largest_gain(sweep, halves)
        percent = math.ceil(100 * (gain - 1))
        if gain > MAX_KNOWN:
            yield (
                "Nothing that was tried is known to be faster, but the speeds vary so much that a gain of up "
                f"to {percent}% may have gone unseen. Run it again while nothing else runs here."
            )
        else:
            yield f"Nothing that was tried {f'brings more than {percent}%' if percent > 0 else 'is faster'}."
    for change in changes:
        if TOO_LITTLE_TIME in change.refused:
            untried[str(change)] = change.refused.rpartition("; ")[2]
    if untried:
        yield f"Not tried for lack of time: {', '.join(f'{what} ({how})' for what, how in untried.items())}."


def _measured(ratio: Interval | None) -> str:
    if ratio is None:
        return "–"
    value, low, high = ratio
    return f"{value:.3g}x, once" if (low, high) == ONCE else f"{value:.3g}x {interval(low, high)}"


def names(changes: Sequence[ChangeValue]) -> str:
    """Returns `loader gathered, threads one or half`."""
    values: dict[str, list[str]] = {}
    for each in changes:
        values.setdefault(each.name, []).append(each.value)
    return ", ".join(f"{name} {' or '.join(each)}" for name, each in values.items()) or "its options"
