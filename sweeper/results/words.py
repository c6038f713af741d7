"""The sentences about a decision, each once, for the terminal, the API, reports, MLflow and exports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sweeper.core.record import BASELINE
from sweeper.race.tally import LEVEL
from sweeper.results.formatting import count_of, interval, loss, metric, rate, seconds, times
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.decision import Decision, Side, later_pace
from sweeper.results.numbers.finalists import SPEEDS
from sweeper.results.numbers.labels import label
from sweeper.results.numbers.sensitivity import Sensitivity
from sweeper.results.numbers.summary import Row, Summary
from sweeper.results.numbers.time_to_loss import MAX_SAMPLES, TimeToLoss
from sweeper.results.verdict.bottleneck import is_unexamined

INTERVAL = f"{LEVEL:.0%} interval"
NO_INTERVAL = "without an interval"
NARROW_ENOUGH = "the intervals are narrow enough"
LATER = " for a later run"
SINGLE = "in a single trial, unconfirmed"
UNCONFIRMED = "not confirmed by new processes"
NOT_COMPARED = (
    "The loss was not compared: the winner may train worse than your baseline. To compare it, add"
    " `constraints: {val_loss: {max_ratio_to_baseline: 1.02}}`."
)
CANNOT_TELL = "The loss cannot tell configurations apart here: a constant predictor does as well."
SYNTHETIC = "The data is synthetic: speeds are real, but losses mean nothing outside this sweep."
MAX_NEIGHBOURS = 4


def rounds_limit(rounds: int) -> str:
    """Returns why the rounds ended at their limit."""
    return f"the intervals are still wide after {rounds} rounds, the limit"


def interval_text(
    low: float, high: float | None, rounds: int, of: str = LATER, level: float = LEVEL, what: str = "round"
) -> str:
    """Returns the interval of a ratio, what it is of, and its rounds or seeds, or that these are too few."""
    # In a file, an infinite end is null.
    if not high or not math.isfinite(high):
        return f"{count_of(rounds, what)}, too few for an interval"
    return f"{level:.0%} interval{of} {interval(low, high)}, {count_of(rounds, what)}"


def later_interval(ratio: Ratio) -> str:
    """Returns the interval of a ratio for a later run, and its rounds."""
    # Earlier versions knew only the interval of the same hour.
    return interval_text(ratio.low, ratio.high, len(ratio.rounds), "" if ratio.sitting_low is None else LATER)


def today_interval(ratio: Ratio) -> str:
    """Returns the interval of a ratio for the hour in which it was measured, and its rounds."""
    return interval_text(*ratio.now, len(ratio.rounds), of="")


def loss_time_interval(sooner: TimeToLoss) -> str:
    """Returns the interval of a ratio of times to a loss, and its seeds."""
    return interval_text(sooner.low, sooner.high, len(sooner.samples), what="seed")


def speedup_text(ratio: float | None) -> str:
    """Returns `2.67x as fast as your baseline`."""
    return f"{times(ratio)} as fast as your baseline"


def repeat_text(before: Ratio, now: Ratio) -> str:
    """Returns how a winner does when it is measured once more."""
    today = f"not shown to be faster than your baseline today: {times(now.ratio)}"
    today = f"{speedup_text(now.ratio)} today" if now.is_faster_now else today
    today = f"Trial {now.trial} is {today} ({today_interval(now)})"
    return f"{today}; the sweep found {times(before.ratio)} ({later_interval(before)})."


def headline(summary: Summary, decision: Decision) -> str:
    """Returns the decision in one sentence."""
    best, base = decision.best, decision.baseline
    if best is None or base is None:
        return _no_baseline(summary) if base is None else _no_winner(summary, base, decision.ratio)
    speed = _so_far(decision.ratio) if summary.is_provisional and decision.ratio else _speed(decision)
    trial, goals = best.record.number, summary.objectives
    if len(goals) > 1:
        return f"Of {len(summary.front)} trials on the Pareto front, trial {trial} is picked: {speed}."
    if goals and goals[0] not in SPEEDS:
        after, before = (metric(goals[0], summary.value_of(side.record, goals[0])) for side in (best, base))
        return f"Trial {trial}: {goals[0]} {after}, baseline {before}; {speed}."
    if (sooner := summary.time_to_loss) is not None:
        aim = f"{times(sooner.ratio)} as fast to your baseline's loss of {loss(sooner.loss)}"
        return f"Trial {trial} is {aim} ({loss_time_interval(sooner)}); in samples per second, {speed}."
    missed = "" if summary.unreached_loss is None else ", but does not reach its loss"
    # The trials of a tune are known by their changes.
    changes = f" ({label(best.record.config, summary.varied)})" if summary.is_tune else ""
    return f"Trial {trial}{changes} is {speed}{missed}."


def _speed(decision: Decision) -> str:
    ratio = decision.ratio
    if ratio is None:
        return f"{speedup_text(decision.speedup)} {SINGLE}"
    return f"{speedup_text(ratio.ratio)}{', confirmed' * ratio.has_interval} ({later_interval(ratio)})"


def _so_far(ratio: Ratio) -> str:
    """Returns the ratio of processes by which a winner was found, and that no others have confirmed it."""
    return f"{speedup_text(ratio.ratio)} so far ({today_interval(ratio)}), and {UNCONFIRMED}"


def _no_baseline(summary: Summary) -> str:
    failure = next((record.failure for record in summary.records if record.number == BASELINE), None)
    return f"The baseline did not run ({failure.kind})." if failure else "The baseline has not been measured."


def _no_winner(summary: Summary, base: Side, ratio: Ratio | None) -> str:
    others = [r for r in summary.records if r.outcome is not None and r.number != base.record.number]
    if not others:
        return f"Only the baseline has been measured ({pace(base)})."
    if not any(record.feasible for record in others):
        if summary.is_tune:
            return "No change is handed over: none was shown to run and to train the same."
        return f"{'Only the baseline' if base.record.feasible else 'Nothing'} met the limits."
    if ratio is None:
        return f"No trial is shown to be better than your baseline ({pace(base)})."
    was = f"Undecided: trial {ratio.trial} was {speedup_text(ratio.ratio)}"
    if not _drifts(ratio):
        return f"{was} ({later_interval(ratio)})."
    return (
        f"{was} ({today_interval(ratio)}), but speeds on this machine drift;"
        f" a later run may be anywhere in {interval(ratio.low, ratio.high)}."
    )


def _drifts(ratio: Ratio) -> bool:
    """Returns whether the rounds show a gain that the machine's drift may undo."""
    return ratio.is_faster_now and ratio.has_interval


def remedy(decision: Decision) -> str:
    """Returns what would settle the undecided; empty if nothing is undecided."""
    if decision.kind != "undecided" or decision.ratio is None:
        return ""
    if _drifts(decision.ratio):
        return "A quieter machine would settle it (`sweeper doctor`)."
    return "More rounds (`confirm.rounds`) or a quieter machine (`sweeper doctor`) would settle it."


def missed_loss(aim: float) -> str:
    """Returns that the winner does not reach the baseline's loss `aim`."""
    within = f"Within {MAX_SAMPLES} times the samples, it does not reach your baseline's loss of {loss(aim)}"
    return f"{within}: it learns less from each sample."


def losses(best: Side, base: Side, constant: float | None) -> str:
    """Returns the losses of the best trial and of the baseline; `constant` is a constant predictor's."""
    quality = best.record.quality
    assert quality is not None
    what = "Loss" if quality.of == "validation" else "Training loss"
    after, before = f"{loss(best.loss)} ({seeds(best)})", f"baseline {loss(base.loss)} ({seeds(base)})"
    same = ""
    if len(best.losses) == len(base.losses):
        same = f" ({seeds(base)})"
        after, before = loss(best.loss), f"baseline {loss(base.loss)}"
    predictor = f" (constant predictor {loss(constant)})" if constant is not None else ""
    return f"{what} after the same {quality.samples:,} samples{same}: {after}, {before}{predictor}."


def seeds(side: Side) -> str:
    """Returns how many seeds a loss is of."""
    return "one seed" if len(side.losses) < 2 else f"mean of {len(side.losses)} seeds"


def pace(side: Side) -> str:
    """Returns `12.3 s per epoch`, or samples per second if the epoch's length is unknown."""
    epoch = side.epoch_seconds
    return f"{seconds(epoch)} per epoch" if epoch is not None else rate(side.throughput)


def paces(best: Side, base: Side, ratio: Ratio | None) -> str:
    """Returns the pace of the best trial, its interval for a later run, and the baseline's pace."""
    bounds = later_pace(best, ratio) if ratio is not None and ratio.has_interval else ""
    # An objective other than speed may choose a slower trial.
    after, before = (s.throughput if s.epoch_seconds is None else s.epoch_seconds for s in (best, base))
    return f"{f'{pace(best)} {bounds}'.strip()}, {'up' if after > before else 'down'} from {pace(base)}"


def title(decision: Decision) -> str:
    """Returns what the best trial is called."""
    return "the winner" if decision.is_confirmed else "the fastest trial"


def limits(whose: str, side: Side | None) -> tuple[str, ...]:
    """Returns what limits a trial, and what to change next; nothing if that is unknown."""
    if side is None or side.verdict is None or is_unexamined(side.record, side.verdict):
        return ()
    sentence = f"{whose[:1].upper()}{whose[1:]} is {side.verdict.kind}: {side.verdict.why}."
    return (sentence, f"Next: {side.verdict.next}.") if side.verdict.next else (sentence,)


def disturbance(whose: str, what: str) -> str:
    """Returns what still disturbed the timings of a trial at the end."""
    return f"The timings of {whose} stayed disturbed: {what}."


def tie_text(names: Sequence[str]) -> str:
    """Returns which candidates cannot be told apart from the winner."""
    *rest, last = names
    before = f"{', '.join(rest)} and " if rest else ""
    return f"Tied with {before}{last}; the simplest was chosen."


def state(summary: Summary) -> str:
    """Returns how a sweep that has not finished goes on; empty for a finished one."""
    how = {"stopped": "was stopped", "unfinished": "is unfinished"}.get(summary.state)
    return f"The sweep {how}; the same command continues it." if how else ""


def of_one_seed(summary: Summary, name: str) -> str:
    """Returns what the title of a column of metrics says about seeds."""
    yardstick = summary.yardstick
    has_means = yardstick is not None and len(yardstick.losses) > 1
    return " (one seed)" if has_means and name == "val_loss" else ""


def costs(near: Sequence[Sensitivity], shown: Callable[[object], str]) -> str:
    """Returns what the first of a parameter's other values cost, each as `shown` writes it."""
    texts = [f"{shown(one.value)} {cost(one)}" for one in near[:MAX_NEIGHBOURS]]
    return "; ".join([*texts, *["..."] * (len(near) > MAX_NEIGHBOURS)])


def cost(of: Sensitivity) -> str:
    """Returns what another value of a parameter costs."""
    if not of.ratio or not math.isfinite(of.ratio):
        return "fails or breaks a limit"
    lost = round(100 * (1 - of.ratio))
    return f"costs {'about ' * (of.how == 'predicted')}{lost}%" if lost > 0 else "costs nothing"


def marks(rows: Sequence[Row]) -> list[str]:
    """Returns what the marks in a table of trials mean."""
    notes = ["* confirmed in interleaved rounds"] if any(row.confirmed for row in rows) else []
    notes += ["~ timings stayed disturbed"] if any(row.disturbed for row in rows) else []
    return notes + (["^ loss of one seed"] if any(row.is_one_seed for row in rows) else [])
