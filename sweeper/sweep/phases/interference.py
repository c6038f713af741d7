"""Measures whether concurrent trials slow each other down on this machine."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sweeper.core.codec import decode, encode
from sweeper.core.job import Job, MeasurePlan, read_outcome
from sweeper.core.measurement import Failure, Measurement, Outcome, Report
from sweeper.core.record import BASELINE
from sweeper.race.tally import interval_of
from sweeper.sweep.job_runner import JobRunner, Slot
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import read_json, write_json

MIN_RATIO = 0.97
"""Share of its throughput alone that a trial must reach among others; else trials run one at a time."""
MIN_ROUNDS, MAX_ROUNDS = 3, 8
"""Fewest and most rounds; the fewest are enough if the worst slot is clearly above or below `MIN_RATIO`."""
MAX_SHARE = 0.05
"""Share of `search.minutes` that the rounds may take; the first round always runs."""
WARMUP_SECONDS, WINDOW_SECONDS = 5.0, 1.0
INTERFERENCE = "interference.json"
"""File in the sweep's set-up folder, from which a continued sweep decides the same."""


class Share(NamedTuple):
    """A throughput as a share of another one, with the interval of its spread over rounds (95%)."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """The throughput of the baseline next to copies of itself.

    Attributes:
        slots: Number of copies that ran at once.
        rounds: Samples per second, round by round: first alone, then on each slot while all ran.
        failure: Why a process failed; empty if none did.
    """

    slots: int
    rounds: tuple[tuple[float, ...], ...] = ()
    failure: str = ""

    @property
    def worst(self) -> Share:
        """Throughput among others over throughput alone, on the slot that loses most."""
        alone, *together = zip(*self.rounds, strict=True)
        logs = [
            [math.log(speed / base) for speed, base in zip(slot, alone, strict=True)] for slot in together
        ]
        return Share(*map(_exp, min(map(interval_of, logs))))

    @property
    def disturbs(self) -> bool:
        """Whether trials must run one at a time."""
        return bool(self.failure) or self.worst.ratio < MIN_RATIO

    @property
    def is_clear(self) -> bool:
        """Whether further rounds would hardly change the decision."""
        return len(self.rounds) >= MIN_ROUNDS and not self.worst.low < MIN_RATIO <= self.worst.high

    @property
    def line(self) -> str:
        """The decision, and its reason."""
        if self.failure:
            unknown = "Whether trials slow each other down could not be measured"
            return f"{unknown} ({self.failure}), so they run one at a time."
        worst = self.worst
        reached = f"{100 * worst.ratio:.3g}%"
        if not self.disturbs:
            return f"{self.slots} trials at once: each reaches {reached} of its speed alone."
        if math.isfinite(worst.high):
            reached += f" [{100 * worst.low:.3g}, {100 * worst.high:.3g}]"
        slowed = f"Trials slow each other down: {self.slots} at once reach {reached} of their speed alone"
        return f"{slowed}, so they run one at a time."


def _exp(log: float) -> float:
    return math.exp(log) if log < math.inf else math.inf


def check_interference(context: SweepContext, trials: TrialRunner) -> None:
    """Limits the sweep to one trial at a time if trials slow each other down; shows the decision."""
    slots = context.machine.slots
    if len(slots) == 1 or not context.launcher.shares_machine:
        return
    path = context.journal.setup_folder(INTERFERENCE)
    interference = _read_result(path, len(slots))
    if interference is None:
        interference = _measure(context, trials)
        write_json(path, encode(interference))
    context.observer.line(interference.line)
    if interference.disturbs:
        trials.jobs.limit(1)


def _read_result(path: Path, slots: int) -> Interference | None:
    """Returns the result of an earlier run; None if there is none, or it had another number of slots."""
    try:
        interference = decode(Interference, read_json(path))
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return (
        interference
        if interference.slots == slots and (interference.rounds or interference.failure)
        else None
    )


def _measure(context: SweepContext, trials: TrialRunner) -> Interference:
    slots, minutes = context.machine.slots, context.spec.search.minutes
    trials.progress.begin("trying trials side by side", MIN_ROUNDS)
    max_seconds = math.inf if minutes is None else MAX_SHARE * 60 * minutes
    began, longest, interference = time.monotonic(), 0.0, Interference(slots=len(slots))
    while not interference.is_clear and len(interference.rounds) < MAX_ROUNDS:
        started = time.monotonic()
        if interference.rounds and started - began + longest > max_seconds:
            break
        # The order is reversed in every other round, so that a machine that warms up favours neither.
        counts = sorted((1, len(slots)), reverse=bool(len(interference.rounds) % 2))
        outcomes = {
            count: _outcomes(context, trials, len(interference.rounds), slots[:count]) for count in counts
        }
        processes = [*outcomes[1], *outcomes[len(slots)]]
        if failure := next((outcome for outcome in processes if isinstance(outcome, Failure)), None):
            return dataclasses.replace(interference, failure=f"{failure.kind}: {failure.message}")
        speeds = tuple(outcome.throughput for outcome in processes if isinstance(outcome, Measurement))
        interference = dataclasses.replace(interference, rounds=(*interference.rounds, speeds))
        trials.progress.advance_to(len(interference.rounds))
        longest = max(longest, time.monotonic() - started)
    return interference


def _outcomes(
    context: SweepContext, trials: TrialRunner, index: int, slots: Sequence[Slot]
) -> list[Outcome | Report | None]:
    """Runs the baseline on all `slots` at once, in fresh processes, and returns the outcomes.

    Outcomes already in the folders count only if all are there: outcomes with fewer neighbours are no
    evidence.
    """
    folders = [
        context.journal.setup_folder(f"interference-{index}-{len(slots)}-{place}")
        for place in range(len(slots))
    ]
    if not all(map(read_outcome, folders)):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        runner = JobRunner(context.launcher, slots, trials.progress.tick)
        try:
            for place, folder in enumerate(folders):
                runner.start(place, folder, _job(context, trials))
            while runner.running:
                list(runner.wait())
        except BaseException:
            runner.cancel()
            raise
    return [read_outcome(folder) for folder in folders]


def _job(context: SweepContext, trials: TrialRunner) -> Job:
    measure = context.spec.measure
    window = min(WINDOW_SECONDS, measure.window_seconds)
    plan = MeasurePlan(
        window_seconds=window,
        repeats=1,
        warmup_cap_seconds=min(WARMUP_SECONDS, measure.warmup_cap_seconds),
        # Time to repeat the window once if it is disturbed.
        cap_seconds=1.5 * window,
        quiet_canary_ms=trials.quiet_canary_ms(),
        diagnose=False,
    )
    job = trials.job("interference", trials.table.records[BASELINE].config)
    return dataclasses.replace(job, plan=plan)
