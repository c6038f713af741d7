"""The sentences of a tune: what it does, what each change brings, and how its training was compared."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sweeper.analysis.bottleneck import verdict_of
from sweeper.analysis.formatting import interval, rate
from sweeper.core.measurement import Measurement
from sweeper.exports.verification import Verification
from sweeper.interventions.change import CLOSE, DRAWS, EXACT
from sweeper.script.watch import NO_PARAMETERS
from sweeper.sweep.store.load import LoadedSweep
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue
from sweeper.tuning.gains import ChangeGain, Interval
from sweeper.tuning.steps import ONCE, largest_gain, search_of

if TYPE_CHECKING:
    import pandas as pd

NAME_WIDTH, RATIO_WIDTH = 24, 22
SECONDS_OF_A_START = 12.0
"""Usual time of a start with its turns."""
_RACES = "races"
_HOW = {
    EXACT: "equals the script's own in every bit",
    CLOSE: "equals the script's own but for rounding",
    DRAWS: "equals the script's own but for the random numbers, as with another seed",
    _RACES: "has the script's own batches and draws, and losses that differ about as much as its repeats do",
}

MAX_CEILING = 3.0
"""Largest ceiling that says something: a larger one only means that all could be saved."""
MAX_KNOWN = 1.5
"""Largest bound of a gain that says something: beyond it, the machine was too unsteady."""


def plan_line(minutes: float) -> str:
    """Returns what a tune will do: how often it starts the script, and when its first number is there."""
    starts = max(2, round(60 * minutes / SECONDS_OF_A_START))
    return (
        f"About {starts} starts of your script in {minutes:g} minutes, fewer if it starts slowly; the first"
        " number comes with the second."
    )


def duration_line(minutes: float, min_minutes: float) -> str:
    """Returns how long a tune takes, as far as that is known before the script has run.

    Args:
        min_minutes: Minutes that the search has, however long the earlier steps took.
    """
    if minutes <= min_minutes:
        return (
            "Watching and comparing come first and usually take 1 to 2 minutes; the search then takes"
            f" {min_minutes:g}."
        )
    return (
        f"This takes about {minutes:g} minutes; longer if watching and comparing, which come first, take more"
        f" than {minutes - min_minutes:g}, as the search has at least {min_minutes:g}."
    )


def pace(measured: Measurement) -> str:
    """Returns `12,345/s, 2.59 ms per step`."""
    return f"{rate(measured.throughput)}, {measured.step_ms:.3g} ms per step"


def watched_lines(watched: Measurement) -> Iterator[str]:
    """Yields the speed of the unchanged script, what limits it, and what it writes elsewhere."""
    verdict = verdict_of(watched, NO_PARAMETERS)
    yield f"  {pace(watched)}; {verdict.kind}: {verdict.why}."
    for what in watched.diagnosis.outside if watched.diagnosis else ():
        yield f"  Outside its folder, the script {what}. So does every run of this tune."


def change_lines(changes: Sequence[ChangeValue]) -> Iterator[str]:
    """Yields what an earlier run of the same tune found about each change."""
    for change in changes:
        if said := f"left out, {change.refused}" if change.refused else change.proof:
            yield f"  {change}: {said}"


def stack_lines(verified: Verification, changes: Sequence[ChangeValue]) -> list[str]:
    """Returns how the training with the winner's changes together compares with the script's own.

    Args:
        changes: All changes of the tune.
    """
    if verified.difference:
        return [f"Together, the changes do not train the same: {verified.difference}. Nothing is exported."]
    values = {change.name: change.value for change in verified.changes}
    made = [change for change in changes if values.get(change.name) == change.value]
    lines = [
        f"Not verifiable, but within the limit on the loss: {change}."
        for change in made
        if change.changes_training
    ]
    if len(lines) < len(made):
        how = _HOW[_RACES if verified.is_nondeterministic else verified.kind]
        lines.insert(0, f"Verified together: the training {how}, over {verified.extent}.")
    return lines


def html_of(lines: Sequence[str], table: pd.DataFrame) -> str:
    """Returns lines and a table as a notebook shows them."""
    paragraphs = "".join(f"<p>{html.escape(line.strip())}</p>" for line in lines)
    return paragraphs + table.to_html(na_rep="–", float_format=lambda value: f"{value:,.4g}")


def ladder_lines(rungs: Sequence[ChangeGain], changes: Sequence[ChangeValue]) -> list[str]:
    """Returns a table with a line for each change: its gain alone, its gain in the stack, and its kind."""
    if not rungs:
        return []
    by_name = {change.name: change for change in changes}
    width = max(NAME_WIDTH, *(len(f"{rung.name} {rung.value}") for rung in rungs))
    lines = [f"{'':<{width}} {'alone':<{RATIO_WIDTH}} {'in the stack':<{RATIO_WIDTH}} kind"]
    for rung in rungs:
        alone, stacked = (f"{_measured(ratio):<{RATIO_WIDTH}}" for ratio in (rung.alone, rung.stacked))
        change = by_name.get(rung.name)
        kind = change.kind if change else "an option"
        dropped = "" if rung.is_kept else _dropped(rung)
        lines.append(f"{f'{rung.name} {rung.value}':<{width}} {alone} {stacked} {kind}{dropped}")
    return lines


def _dropped(rung: ChangeGain) -> str:
    """Returns why a change is not kept."""
    known = rung.stacked or rung.alone
    if known is None or known[1:] == ONCE:
        return ", not kept"
    return ", not kept: it is slower" if known[2] < 1 else ", not kept: it is not shown to pay"


def bound_lines(gain: float | None, untried: Sequence[ChangeValue]) -> Iterator[str]:
    """Yields what the measurements of a tune without a winner still allow, and what was not measured.

    Args:
        gain: Largest ratio to the script's own speed that they allow; None without any.
    """
    if gain is not None:
        yield _bound(gain)
    if untried:
        parts = [f"{change}{_at_most(change.ceiling)}" for change in untried]
        yield f"Not tried for lack of time: {', '.join(parts)}. More --minutes would do."


def _bound(gain: float) -> str:
    """Returns what may have gone unseen."""
    percent = math.ceil(100 * (gain - 1))
    if gain > MAX_KNOWN:
        return (
            "Nothing that was tried is known to be faster, but the speeds vary so much that a gain of up "
            f"to {percent}% may have gone unseen. Run it again while nothing else runs here."
        )
    return f"Nothing that was tried {f'brings more than {percent}%' if percent > 0 else 'is faster'}."


def _at_most(ceiling: float) -> str:
    return f" (at most {ceiling:.3g}x)" if ceiling < MAX_CEILING else ""


def nothing_lines(sweep: LoadedSweep, changes: Sequence[ChangeValue], minutes: float) -> Iterator[str]:
    """Yields what the measurements of a tune without a winner still allow, and what they leave open."""
    halves = search_of(sweep)
    if halves is None or sweep.state != "finished":
        return
    untried = {name: f"--minutes {2 * math.ceil(minutes):g} would do" for name in halves.untried()}
    if sweep.decision.kind != "baseline":
        yield f"To have it confirmed, run the same command with --minutes {2 * math.ceil(minutes):g}."
    elif len(halves.untried()) < len(sweep.spec.space):
        yield _bound(largest_gain(sweep, halves))
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
    for change in changes:
        values.setdefault(change.name, []).append(change.value)
    return ", ".join(f"{name} {' or '.join(tried)}" for name, tried in values.items()) or "its options"
