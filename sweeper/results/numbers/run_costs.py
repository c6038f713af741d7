"""Splits a whole run of a script into its parts, with what each costs and what its end could bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sweeper.core.measurement import Measurement, RunParts

MIN_SHARE = 0.01
"""Smallest share of a run that is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """A part of a run that is not its arithmetic.

    Attributes:
        title: Its name.
        seconds: Seconds of the whole run.
        share: Share of the whole run.
        place: The `file:line` of the script that causes it; empty if that is not known.
        advice: What to do about it by hand.
    """

    title: str
    seconds: float
    share: float
    place: str = ""
    advice: str = ""

    @property
    def max_gain(self) -> float:
        """Speed of the run without it over the speed as it is."""
        return 1 / max(1e-9, 1 - self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """What a run takes.

    Attributes:
        seconds: Seconds of the whole run.
        num_epochs: Number of passes over its loader; None for what was watched of it.
        parts: Its parts but the arithmetic, the largest first.
        has_ends: Whether the end of an epoch was seen, where many scripts evaluate and write checkpoints.
    """

    seconds: float
    num_epochs: float | None
    parts: tuple[RunPart, ...]
    has_ends: bool


def run_costs(
    measured: Measurement, num_epochs: float | None = None, ratio: float | None = None
) -> RunCosts | None:
    """Returns what a run of a script takes; None if its parts are not known.

    What is done between steps is taken to be as frequent in the whole run as in the part that was watched.

    Args:
        num_epochs: Number of passes over its loader of the run; by default, it is what was watched.
        ratio: Speed of its epochs with changes over the speed as they are. The parts are then those that the
            changes leave as they are: evaluations, checkpoints, and the start of a run of known length.
    """
    run = measured.run
    if run is None or not run.num_steps or run.steps_s <= 0:
        return None
    per_pass = steps_per_pass(measured)
    if num_epochs is not None and not per_pass:
        return None
    scale = 1.0 if num_epochs is None else num_epochs * per_pass / run.num_steps
    num_starts = run.num_passes if num_epochs is None else max(0.0, num_epochs - 1)
    start_s = run.pass_starts_s / run.num_passes if run.num_passes else 0.0
    took = {"evaluations": scale * run.evaluations_s, "checkpoints": scale * run.checkpoints_s}
    if ratio is None or num_epochs is not None:
        took["start-up"] = run.startup_s
    steps_s, starts_s = scale * run.steps_s, num_starts * start_s
    total = sum(took.values()) + (steps_s + starts_s) / (ratio or 1.0)
    if ratio is None:
        took.update({"starts of epochs": starts_s, **dict(_of_steps(measured, steps_s))})
    lines: Mapping[str, tuple[str, ...]] = measured.diagnosis.lines if measured.diagnosis else {}
    parts = [
        RunPart(
            title=title,
            seconds=seconds,
            share=seconds / total,
            place=_place(title, lines, measured),
            advice=_advice(title, measured),
        )
        for title, seconds in took.items()
        if seconds >= MIN_SHARE * total
    ]
    return RunCosts(
        seconds=total,
        num_epochs=num_epochs,
        parts=tuple(sorted(parts, key=lambda part: -part.seconds)),
        has_ends=_has_ends(run, per_pass),
    )


def steps_per_pass(measured: Measurement) -> float:
    """Returns the number of steps in a pass over a script's loader; 0 if it is not known."""
    if measured.run is None:
        return 0.0
    return measured.run.pass_batches / max(1, int(measured.observed.get("accumulate_steps") or 1))


def _has_ends(run: RunParts, per_pass: float) -> bool:
    return bool(run.num_passes) or 0 < per_pass <= run.num_steps


def _of_steps(measured: Measurement, steps_s: float) -> Iterator[tuple[str, float]]:
    """Yields the parts of the steps that are not their arithmetic."""
    parts = measured.breakdown
    if not parts.step_s:
        return
    for title, seconds in (
        ("waiting for data", parts.data_s),
        ("copies to the device", parts.h2d_s),
        ("other work in a step", parts.host_gap_s),
    ):
        yield title, steps_s * seconds / parts.step_s


_ADVICE = {
    "waiting for data": "`sweeper tune` looks for a faster loader; else decode once, and read whole batches",
    "copies to the device": "pin memory, and copy with `non_blocking=True`",
    "other work in a step": "log and print less often",
    "evaluations": "evaluate less often, or on fewer samples",
    "checkpoints": "write them less often, or from a copy, in a thread",
    "starts of epochs": "prepare once what is prepared at the start of each",
    "start-up": "import less, and keep prepared data in a file",
}
_PHASES = {
    "waiting for data": "data",
    "copies to the device": "copy",
    "other work in a step": "rest",
    "evaluations": "evaluation",
}
"""What `Diagnosis.lines` calls a part."""


def _advice(title: str, measured: Measurement) -> str:
    if title == "starts of epochs" and measured.observed.get("num_workers"):
        return "keep the workers: `persistent_workers on` in `sweeper tune`"
    return _ADVICE[title]


def _place(title: str, lines: Mapping[str, tuple[str, ...]], measured: Measurement) -> str:
    if title == "checkpoints":
        return str(measured.observed.get("places", {}).get("checkpoint", ""))
    places = lines.get(_PHASES.get(title, ""), ())
    return places[0] if places else ""
