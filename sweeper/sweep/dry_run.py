"""Plans a sweep without running it: `sweeper run --dry-run`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.job import SCHEMA
from sweeper.core.measurement import Measurement
from sweeper.results.numbers.trial_table import NUM_SEEDS
from sweeper.schema import SweepSpec
from sweeper.schema.enough_steps import with_enough_steps
from sweeper.search import Hints, Searcher, SpaceExhaustedError
from sweeper.search.distributions import combinations
from sweeper.sweep.folder.catalog import find_continued, latest_sweep, line_of_schema_1, sweeps_of_name
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.past import find_past_sweep, read_past_sweep
from sweeper.sweep.phases.losses import QUALITY_SECONDS, QUALITY_SHARE, looks_at_loss
from sweeper.sweep.phases.search import hints_of
from sweeper.sweep.start import setup
from sweeper.sweep.start.bootstrap import Launch, launcher_to_try_out, probe_machine
from sweeper.sweep.start.launchers import job_script_of
from sweeper.sweep.workloads import fingerprint

COUNTED_AT_MOST = 5_000
"""Largest number of combinations among which the distinct ones are counted, which takes a second."""
FIRST = 8
START_SECONDS = 0.5
WARMUP_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a sweep.

    Attributes:
        spec: The specification as it would be searched here, without what this device cannot do.
        device: The device in one line.
        existing: The state of an existing sweep in one line; empty if a new one would begin.
        removed: A line for each removal from the space.
        size: Number of distinct configurations; None if there are too many to list.
        references: The baseline and the other configurations that are measured as they are.
        first: The first configurations that the search would ask for, before anything is measured.
        minutes: A rough estimate of the time, without the quality passes of searched trials.
        at_most_minutes: `search.minutes`; None for no limit.
        at_once: Largest number of concurrent trials.
        script: The script of one job, if a batch system is to run them.
    """

    spec: SweepSpec
    device: str
    existing: str
    removed: tuple[str, ...]
    size: int | None
    references: tuple[TrialConfig, ...]
    first: tuple[TrialConfig, ...]
    minutes: float
    at_most_minutes: float | None
    at_once: int = 1
    script: str = ""


def dry_run(home: Path, spec: SweepSpec, *, new: bool = False, launch: Launch | None = None) -> Plan:
    """Returns what `run_sweep` would do; the device is probed, and nothing is left on disk.

    The data is not prepared, so values for which it is too large stay in the space.

    Args:
        new: As for `run_sweep`, like `launch`.

    Raises:
        SweeperError: As for `run_sweep` before the first trial.
    """
    marks = fingerprint(spec, setup.device_model(spec.execution))
    continued = None if new else find_continued(home, spec.name, marks)
    existing = "" if new else _describe_existing(home, spec, marks, continued)
    past = find_past_sweep(home, spec, marks) if continued is None else read_past_sweep(continued)
    with tempfile.TemporaryDirectory(prefix="sweeper-") as name:
        folder = Path(name)
        script = job_script_of(spec)
        if script:
            # The abilities of its nodes are known only once a job runs there.
            machine = setup.unseen_machine(spec)
        else:
            with launcher_to_try_out(spec, launch) as (launcher, place):
                machine = probe_machine(launcher, place / "probe", spec)
        spec, removed = setup.restrict(spec, machine)
        samples = spec.measure.quality_samples
        if looks_at_loss(spec) and isinstance(samples, int) and samples:
            spec, lines = with_enough_steps(spec, samples)
            removed += lines
        combined = spec.size()
        size = len(combinations(spec)) if combined is not None and combined <= COUNTED_AT_MOST else None
        return Plan(
            spec=spec,
            device=machine.line,
            existing=existing,
            removed=tuple(removed),
            size=size,
            references=spec.references(),
            first=_first_configs(folder, spec, dataclasses.replace(hints_of(machine), past=past)),
            minutes=_minutes(spec, len(machine.slots), size),
            at_most_minutes=spec.search.minutes,
            at_once=len(machine.slots),
            script=script,
        )


def _describe_existing(
    home: Path, spec: SweepSpec, marks: Mapping[str, Any], continued: Journal | None
) -> str:
    if continued is not None:
        done = sum(entry.outcome is not None for entry in continued.searched_trials())
        if continued.has_ended:
            return f"`{continued.name}` finished after {done} trials; the same command shows it again."
        trials = continued.raised_budget() or spec.search.trials
        return f"`{continued.name}` has {done} of {trials} trials; the same command continues it."
    latest = latest_sweep(home, spec.name)
    if latest is not None and (line := line_of_schema_1(latest, "continue")):
        return line
    for journal in sweeps_of_name(home, spec.name):
        if journal.schema < SCHEMA:
            continue
        measured = any(isinstance(entry.outcome, Measurement) for entry in journal.trials())
        if not journal.has_ended and measured:
            changed = "; ".join(differences(journal.read_sweep_file()["fingerprint"], marks)[:4])
            return (
                f"`{journal.name}` is unfinished and was started with other settings ({changed}); "
                "add --new to start another sweep."
            )
    return ""


def _first_configs(folder: Path, spec: SweepSpec, hints: Hints) -> tuple[TrialConfig, ...]:
    keys = {config.key() for config in spec.references()}
    number = len(spec.references())
    searcher = Searcher(folder / "study.log", spec, {}, hints)
    configs: list[TrialConfig] = []
    with contextlib.closing(searcher), contextlib.suppress(SpaceExhaustedError):
        for i in range(min(FIRST, spec.search.trials)):
            config = spec.config(searcher.ask(number + i, keys).params)
            keys.add(config.key())
            configs.append(config)
    return tuple(configs)


def _minutes(spec: SweepSpec, slots: int, size: int | None) -> float:
    """Returns a rough estimate in minutes: steady after half a second, undisturbed, no extra rounds."""
    measure, search = spec.measure, spec.search
    once = START_SECONDS + WARMUP_SECONDS
    windows = measure.repeats * measure.window_seconds
    trials = search.trials if size is None else min(search.trials, size)
    seconds = len(spec.references()) * (once + min(windows, measure.reference_cap_seconds))
    seconds += math.ceil(trials / slots) * (once + windows)
    seconds += spec.confirm.rounds * (1 + spec.confirm.top) * (once + measure.window_seconds)
    limit = math.inf if search.minutes is None else search.minutes * 60
    if measure.quality_samples == "auto" and looks_at_loss(spec):
        seconds += NUM_SEEDS * min(QUALITY_SECONDS, QUALITY_SHARE * limit)
    return min(seconds, limit) / 60
