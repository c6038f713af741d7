"""Compares recorded runs of a script (`sweeper.script.inside.recorder`), and says what differs first."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.script.changes.change import SINGLE
from sweeper.script.inside.recorder import EARLY_STEPS

Event = Mapping[str, Any]

MIN_STEPS = 8
"""Fewest steps that both runs must have."""

HALF_EARLY_STEPS = 2
"""First steps whose gradients are compared in half precision. A change at run time reaches the model's calls
from the second step on. A version that starts in half precision has other parameters by its second step, so
only its first one is compared."""

LOSS_IS_FINER = 4
"""Factor by which a loss must differ less than a gradient, in half precision."""

HOGWILD = math.inf
"""Value of `rounding` where processes race for the same parameters: differences as large as those between
the script's own repeats are allowed."""

HOGWILD_SPREADS = 3
"""Largest distance of a run from a few racing runs, as a multiple of their spread."""

BEYOND = "farther from the script's than those of another seed"

BLOCKS = 6
"""Number of parts of a curve whose means are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recorded run.

    Attributes:
        events: Events in order (`sweeper.script.inside.recorder`), by rank.
        changes: For each requested change, why it is not in effect; empty if it is.
        failure: Why there is no record; empty if there is one.
    """

    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""


def exact_difference(one: Record, other: Record) -> str:
    """Returns what differs first between two runs; empty if they are equal in every bit."""
    for _, first, second in _ranks(one, other):
        steps = 0
        for left, right in _pairs(first, second):
            steps += "step" in left
            if left != right:
                return f"{_describe(left, right)} after {steps} steps"
        if why := _length_difference(first, second):
            return why
    return _process_difference(one, other)


def real_difference(
    one: Record,
    baseline: Record,
    seeds: Sequence[Record],
    rounding: float = SINGLE,
    *,
    pairs: Sequence[tuple[Record, Record]] = (),
    is_redrawn: bool = False,
    is_version: bool = False,
    is_early: bool = False,
) -> str:
    """Returns the first difference from the baseline that rounding does not explain; empty if there is none.

    Samples and their order, random draws, learning rates and the parameters that move must be the same.
    Losses and gradients of the first steps must be equal but for rounding. Later ones must be no farther
    from the baseline's than those of other seeds.

    Args:
        seeds: Runs of the unchanged script with other seeds.
        rounding: Relative difference of gradients in the first steps that rounding explains; infinite
            where the script's own repeats differ by more.
        pairs: Further runs like the one that is compared, each with one of the unchanged script that has the
            same other seeds. How far curves are from the script's is the mean over all of these.
        is_redrawn: Whether the run draws other random numbers. Then the number of samples counts, but not
            their content, and curves are compared as those of racing runs.
        is_version: Whether it is a run of another version of the script, not of a change at run time.
        is_early: Whether only the first steps are compared, as no run with another seed is there yet.
    """
    for rank, first, second in _ranks(one, baseline):
        why = _step_difference(first, second, rounding, is_redrawn=is_redrawn, is_version=is_version)
        why = why or _length_difference(first, second)
        if why:
            return why
        if is_early:
            continue
        others = [run.events[rank] for run in seeds if rank in run.events]
        seeded = [
            (run.events[rank], original.events[rank])
            for run, original in pairs
            if rank in run.events and rank in original.events
        ]
        is_race = rounding == HOGWILD or is_redrawn
        if why := _curve_difference(first, second, others, seeded, is_race=is_race):
            return why
    return _process_difference(one, baseline)


def _step_difference(
    first: Sequence[Event], second: Sequence[Event], rounding: float, *, is_redrawn: bool, is_version: bool
) -> str:
    """Returns the first difference between the events of two runs, one by one; see `real_difference`."""
    # In half precision, Adam's first updates already differ, so later gradients belong to other parameters.
    early = EARLY_STEPS if rounding <= SINGLE else HALF_EARLY_STEPS - is_version
    num_near = early if rounding < HOGWILD else 0
    steps = 0
    noise: set[int] = set()
    for left, right in _pairs(first, second):
        if is_redrawn:
            left, right = _drop_draws(left), _drop_draws(right)
        if _kind(left) != _kind(right) or _fixed_parts(left) != _fixed_parts(right):
            return f"{_describe(left, right)} after {steps} steps"
        if "gradients" in left:
            noise = set() if is_redrawn else _noise(left, right, rounding)
        if "step" in left and _moved_flags(left, noise) != _moved_flags(right, noise):
            return f"its updates differ after {steps} steps"
        if steps < num_near and (why := _early_difference(left, right, rounding, noise)):
            return f"{why} in step {steps + 1}"
        steps += "step" in left
    return ""


def _curve_difference(
    first: Sequence[Event],
    second: Sequence[Event],
    others: Sequence[Sequence[Event]],
    seeded: Sequence[tuple[Sequence[Event], Sequence[Event]]],
    *,
    is_race: bool,
) -> str:
    """Returns the first curve that lies too far from the script's; see `_curves`."""
    for name, read in CURVES.items():
        curves = [read(second), *(read(events) for events in others)]
        pairs = [(read(run), read(original)) for run, original in seeded]
        if why := _curves(name, read(first), curves, pairs, is_race=is_race):
            return why
    return ""


def extent_of(*records: Record) -> str:
    """Returns the extent of the shortest record in words: its steps, ends of epochs and evaluations."""
    events = min((next(iter(record.events.values()), ()) for record in records), key=len)
    steps = sum("step" in event for event in events)
    ends = sum(bool(event.get("trains")) for event in events if "pass" in event)
    checks = sum(not event["trains"] for event in events if "pass" in event)
    checks = checks or sum("eval" in event for event in events)
    parts = [f"{steps} steps"]
    if ends:
        parts.append(f"the ends of {ends} epochs" if ends > 1 else "the end of an epoch")
    if checks:
        parts.append(f"{checks} evaluations" if checks > 1 else "an evaluation")
    return ", ".join(parts)


def _ranks(one: Record, other: Record) -> Iterator[tuple[str, Sequence[Event], Sequence[Event]]]:
    for name in sorted(other.events):
        if name in one.events:
            yield name, one.events[name], other.events[name]


def _process_difference(one: Record, other: Record) -> str:
    if one.failure or other.failure:
        return one.failure or other.failure
    return "" if _trainers(one) == _trainers(other) else "different processes train"


def _trainers(record: Record) -> set[str]:
    # A process that waits for those that train may or may not continue before it is stopped.
    return {name for name, events in record.events.items() if any("step" in event for event in events)}


def _pairs(first: Sequence[Event], second: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    return zip(first, second, strict=False)


def _length_difference(first: Sequence[Event], second: Sequence[Event]) -> str:
    ended = [events[-1].get("end") if events else None for events in (first, second)]
    # A run that was cut off is compared as far as it got.
    if None not in ended and len(first) != len(second):
        return "it ends after a different number of steps"
    steps = min(sum("step" in event for event in events) for events in (first, second))
    return f"only {steps} steps were recorded" if steps < MIN_STEPS and None in ended else ""


_WORDS = {
    "batch": "its batches differ",
    "pass": "its passes over the data differ",
    "loss": "its losses differ",
    "gradients": "its gradients differ",
    "step": "its updates differ",
    "end": "its parameters differ",
    "eval": "its evaluations differ",
    "output": "the results of its evaluations differ",
}


def _kind(event: Event) -> str:
    return next((name for name in _WORDS if name in event), "")


def _describe(left: Event, right: Event) -> str:
    kind = _kind(left)
    if kind != _kind(right):
        return "it does something different"
    for name, words in (("random", "its draws of random numbers differ"), ("samples", "its samples differ")):
        if left.get(name) != right.get(name):
            return words
    if kind == "step" and left.get("rates") != right.get("rates"):
        return "its learning rates differ"
    return _WORDS[kind]


def _fixed_parts(event: Event) -> dict[str, Any]:
    """Returns the parts of an event that rounding does not change."""
    changing = ("loss", "norm", "norms", "sums", "parameters", "sizes", "state", "result")
    is_step = "step" in event
    return {n: value for n, value in event.items() if n not in changing and not (is_step and n == "moved")}


def _drop_draws(event: Event) -> Event:
    """Returns an event without the parts that other random numbers change."""
    if "batch" in event:
        return {"batch": ""}
    return {name: value for name, value in event.items() if name != "random"}


def _noise(left: Event, right: Event, rounding: float) -> set[int]:
    """Returns the indices of parameters whose gradients are mere rounding: a bias before a batch norm."""
    norms = [max(pair) for pair in zip(left.get("norms", ()), right.get("norms", ()), strict=False)]
    largest = max(norms, default=0.0)
    return {index for index, norm in enumerate(norms) if norm <= rounding**2 * largest}


def _moved_flags(event: Event, noise: Collection[int]) -> list[bool]:
    return [flag for index, flag in enumerate(event.get("moved", ())) if index not in noise]


def _early_difference(left: Event, right: Event, rounding: float, noise: Collection[int]) -> str:
    """Returns what differs by more than rounding between two events; empty if nothing does.

    Args:
        noise: Indices of parameters whose gradients are only rounding; Adam makes full steps of them.
    """

    def is_near(one: float, other: float, scale: float) -> bool:
        return abs(one - other) <= rounding * scale or one == other

    if "loss" in left:
        pairs = zip(_numbers(left["loss"]), _numbers(right["loss"]), strict=False)
        # A loss is a mean over many values, in which their rounding cancels.
        share = max(SINGLE, rounding / LOSS_IS_FINER) / rounding
        return (
            "" if all(is_near(a, b, share * max(abs(a), abs(b))) for a, b in pairs) else "its losses differ"
        )
    if "sums" in left:
        what = "its gradients differ" if "gradients" in left else "its updates differ"
        if len(left["sums"]) != len(right["sums"]):
            return what
        sums = zip(left["sums"], right["sums"], strict=True)
        for index, ((norm, product), (other, others)) in enumerate(sums):
            scale = max(norm, other)
            # Adam's first updates are signs of gradients: those of gradients near 0 flip in half precision.
            is_like = is_near(product, others, scale) or ("gradients" not in left and rounding > SINGLE)
            if index not in noise and not (is_near(norm, other, scale) and is_like):
                return what
    return ""


def _numbers(texts: Sequence[str | None]) -> list[float]:
    return [float.fromhex(text) for text in texts if text is not None]


def losses(events: Sequence[Event]) -> list[float]:
    """Returns the losses of a rank's steps, in order."""
    return list(itertools.chain.from_iterable(_numbers(event["loss"]) for event in events if "loss" in event))


def _values(name: str) -> Callable[[Sequence[Event]], list[float]]:
    return lambda events: [event[name] for event in events if name in event]


CURVES: Mapping[str, Callable[[Sequence[Event]], list[float]]] = {
    "losses": losses,
    "gradients": _values("norm"),
    "statistics": _values("state"),
    "results of evaluations": _values("sizes"),
}


def _curves(
    name: str,
    one: list[float],
    others: Sequence[list[float]],
    pairs: Sequence[tuple[list[float], list[float]]],
    *,
    is_race: bool,
) -> str:
    """Returns a fault if a curve lies farther from the script's than those of other seeds; empty if not.

    Args:
        others: The script's own curve, then those of other seeds.
        pairs: Curves with other seeds, each with the script's own.
        is_race: Whether the script's own curve is only one of several possible ones.
    """
    count = min(len(curve) for curve in (one, *others))
    script_curve = others[0]
    if not all(map(math.isfinite, one[:count])):
        return "" if not all(map(math.isfinite, script_curve[:count])) else f"its {name} are not finite"
    long = [pair for pair in pairs if min(map(len, pair)) >= count]
    usable = [pair for pair in long if all(map(math.isfinite, pair[1][:count]))]
    distances = [
        [abs(mean - other) for mean, other in zip(*(_means(curve[:count]) for curve in pair), strict=True)]
        for pair in ((one, script_curve), *usable)
    ]
    means = zip(*(_means(curve[:count]) for curve in (one, *others)), strict=True)
    for (mean, *rest), *off in zip(means, *distances, strict=True):
        low, high = min(rest), max(rest)
        distance = max(low - mean, mean - high) / HOGWILD_SPREADS if is_race else statistics.fmean(off)
        if math.isnan(distance) or distance > max(high - low, SINGLE * abs(rest[0])):
            return f"its {name} are {BEYOND}"
    return ""


def _means(values: list[float]) -> list[float]:
    if not values:
        return []
    size = -(-len(values) // BLOCKS)
    parts = [values[begin : begin + size] for begin in range(0, len(values), size)]
    return [math.fsum(part) / len(part) for part in parts]
