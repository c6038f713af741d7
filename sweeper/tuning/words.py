"""The sentences of a tune: what it does, what each change brings, and how its training was compared."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sweeper.core.measurement import Measurement
from sweeper.exports.verification import Verification
from sweeper.results.formatting import count_of, interval, rate, seconds
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.verdict.bottleneck import verdict_of
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT
from sweeper.script.run.watch import NO_PARAMETERS
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.contests import Members
from sweeper.tuning.gains import ChangeGain, GroupGain, Interval, StartCost

if TYPE_CHECKING:
    import pandas as pd

NAME_WIDTH, RATIO_WIDTH = 24, 22
SECONDS_OF_A_START = 12.0
"""Usual time of a start with its turns."""
_RACES = "races"
_HOW = {
    EXACT: "matches the original bit for bit",
    CLOSE: "matches the original up to rounding",
    DRAWS: "matches the original run with a different seed",
    _RACES: "uses the same batches and random numbers, and its losses vary about as much as those of repeats",
}

MAX_CEILING = 3.0
"""Largest ceiling that says something: a larger one only means that all could be saved."""
MAX_KNOWN = 1.5
"""Largest bound of a gain that says something: beyond it, the machine was too unsteady."""


def plan_line(minutes: float) -> str:
    """Returns how often a tune starts the script, and when it prints its first number."""
    starts = max(2, round(60 * minutes / SECONDS_OF_A_START))
    return (
        f"Your script starts about {starts} times in {count_of(minutes, 'minute')}, fewer if it is slow to"
        " start; the second start brings the first number."
    )


def pace(measured: Measurement) -> str:
    """Returns `12,345/s, 2.59 ms per step`."""
    return f"{rate(measured.throughput)}, {seconds(measured.step_ms / 1000)} per step"


def watched_lines(watched: Measurement) -> Iterator[str]:
    """Yields the speed of the unchanged script, what limits it, and what it writes elsewhere."""
    verdict = verdict_of(watched, NO_PARAMETERS)
    yield f"  {pace(watched)}; {verdict.kind}: {verdict.why}."
    yield from outside_lines(watched)


def outside_lines(watched: Measurement) -> Iterator[str]:
    """Yields what the script does outside its folder."""
    for what in watched.diagnosis.outside if watched.diagnosis else ():
        yield f"  The script {what}, and so does every run of this tune."


def offer_lines(changes: Sequence[ChangeValue]) -> Iterator[str]:
    """Yields what a race would try, and what it would not."""
    for change in changes:
        if change.refused:
            yield f"  {change}: not tried because {change.refused}"
    offered = [change for change in changes if not change.refused]
    parts = [f"{change}{_ceiling_note(change.ceiling)}" for change in offered]
    yield f"A race would try {', '.join(parts)}." if parts else "Nothing is left to try."


def product_line(raced: LoadedSweep, searched: LoadedSweep) -> str:
    """Returns how fast the winner of a search on top of a race's winner is; empty if that is not known."""
    pair = [_winning_ratio(sweep) for sweep in (raced, searched)]
    ratios = [ratio for ratio in pair if ratio is not None and ratio.has_interval]
    if len(ratios) < 2:
        return ""
    mean = math.prod(ratio.ratio for ratio in ratios)
    # The two were measured apart.
    up, down = (math.hypot(*logs) for logs in zip(*(_sides(ratio) for ratio in ratios), strict=True))
    sure = interval(mean / math.exp(down), mean * math.exp(up))
    return f"Both sweeps together: {mean:.3g}x {sure} as fast as your script as it is."


def is_confirmed(sweep: LoadedSweep) -> bool:
    """Returns whether a sweep's winner has an interval."""
    ratio = _winning_ratio(sweep)
    return ratio is not None and ratio.has_interval


def _winning_ratio(sweep: LoadedSweep) -> Ratio | None:
    winner = sweep.confirmation.winner
    return next((ratio for ratio in sweep.confirmation.ratios if ratio.trial == winner), None)


def _sides(ratio: Ratio) -> tuple[float, float]:
    """Returns how far the interval of a ratio reaches up and down, as logs."""
    return math.log(ratio.high / ratio.ratio), math.log(ratio.ratio / ratio.low)


def stack_lines(verified: Verification, changes: Sequence[ChangeValue]) -> list[str]:
    """Returns how the training with all of the winner's changes compares with the original.

    Args:
        changes: All changes of the tune.
    """
    if verified.difference:
        return [f"The changes failed verification together: {verified.difference}. Nothing is exported."]
    values = {change.name: change.value for change in verified.changes}
    matches = [change for change in changes if values.get(change.name) == change.value]
    how = how_it_trains(verified)
    return [f"Verified together: the training {how}, over {verified.extent}."] if matches else []


def how_it_trains(verified: Verification) -> str:
    """Returns how a training with the changes compares with the original."""
    return _HOW[_RACES if verified.is_nondeterministic else verified.kind]


def start_line(cost: StartCost) -> str:
    """Returns what the winner's changes cost at the start, and when that has paid."""
    later = f" ({seconds(cost.later)} later from then on)" if cost.first - cost.later > 0.5 else ""
    samples = float(f"{cost.samples:.2g}")
    return (
        f"It starts {seconds(cost.first)} later than your script the first time{later},"
        f" and catches up after {samples:,.0f} samples."
    )


def html_of(lines: Sequence[str], table: pd.DataFrame) -> str:
    """Returns lines and a table as a notebook shows them."""
    paragraphs = "".join(f"<p>{html.escape(line.strip())}</p>" for line in lines)
    return paragraphs + table.to_html(na_rep="–", float_format=lambda value: f"{value:,.4g}")


def ladder_lines(rungs: Sequence[ChangeGain], changes: Sequence[ChangeValue]) -> list[str]:
    """Returns a table with a line for each change: its gain alone and on top of the others, and its kind.

    Changes that were only measured together share a line.
    """
    if not rungs:
        return []
    kinds = {change.word_of_arm: change.kind for change in changes}
    refused = {change.word_of_arm: change.refused for change in changes}
    kept = {f"{rung.name}={rung.value}" for rung in rungs if rung.is_kept}
    lines = [f"{'':<{NAME_WIDTH}} {'alone':<{RATIO_WIDTH}} {'on top of the others':<{RATIO_WIDTH}} kind"]
    rows: dict[Members, tuple[GroupGain, str]] = {}
    for rung in rungs:
        word = f"{rung.name}={rung.value}"
        group = rung.together or GroupGain(members=frozenset({word}), alone=rung.alone, stacked=rung.stacked)
        # What is said of one of them need not hold for the others.
        reason = "" if rung.together else refused.get(word, "")
        dropped = "" if group.members & kept else _drop_reason(group, reason, is_unfit=rung.is_unfit)
        rows.setdefault(group.members, (group, dropped))
    for members, (group, dropped) in rows.items():
        name = ", ".join(sorted(word.replace("=", " ") for word in members))
        if len(name) > NAME_WIDTH:
            lines.append(name)
            name = ""
        kind = ", ".join(dict.fromkeys(kinds.get(word, "an option") for word in sorted(members)))
        pair = _measured_ratio(group.alone), _measured_ratio(group.stacked)
        ratios = " ".join(f"{ratio:<{RATIO_WIDTH}}" for ratio in pair)
        lines.append(f"{name:<{NAME_WIDTH}} {ratios} {kind}{dropped}")
    return lines


def _drop_reason(group: GroupGain, refused: str, *, is_unfit: bool) -> str:
    """Returns why changes are dropped."""
    if refused:
        return f", dropped: {refused}"
    gain = group.stacked or group.alone
    if gain is None:
        return ", dropped"
    if gain[1] > 1 and is_unfit:
        return ", dropped: with it, the training differs in the end"
    if gain[1] > 1:
        return ", dropped: not significantly slower without it"
    return ", dropped: slower" if gain[2] < 1 else ", dropped: no significant gain"


def bound_lines(
    gain: float | None,
    untried: Sequence[ChangeValue],
    *,
    has_refused: bool = False,
    has_failed: bool = False,
) -> Iterator[str]:
    """Yields what the measurements of a tune without a winner still allow, and what was not measured.

    Args:
        gain: Largest ratio to the script's own speed that they allow; None without any.
        has_refused: Whether something was refused, however fast it may be.
        has_failed: Whether something has failed, and was not measured.
    """
    if gain is not None:
        what = " and ".join([*["runs"] * has_failed, *["trains the same"] * has_refused])
        yield _bound(gain, f"Nothing that {what or 'was tried'}")
    if untried:
        parts = [f"{change}{_ceiling_note(change.ceiling)}" for change in untried]
        yield f"Not tried for lack of time: {', '.join(parts)}. To try them, add --new and raise --minutes."


def _bound(gain: float, nothing: str) -> str:
    """Returns the gain that may have gone unnoticed."""
    percent = math.ceil(100 * (gain - 1))
    if gain > MAX_KNOWN:
        return (
            f"{nothing} is known to be faster, but the speeds vary so much that a gain of up "
            f"to {percent}% may have gone unnoticed. Run it again with --new while the machine is idle."
        )
    return f"{nothing} {f'brings more than {percent}%' if percent > 0 else 'is faster'}."


def _ceiling_note(ceiling: float) -> str:
    return f" (at most {ceiling:.3g}x)" if ceiling < MAX_CEILING else ""


def _measured_ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return "–"
    value, low, high = ratio
    return f"about {value:.3g}x" if math.isinf(high) else f"{value:.3g}x {interval(low, high)}"
