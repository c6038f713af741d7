"""Confirmation: the best few and the baseline, fresh processes, round by round in random order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.analysis.confirmation import MIN_ROUNDS, decide, ratios
from sweeper.core.codec import encode
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.core.record import TrialRecord
from sweeper.sweep.book import BASELINE
from sweeper.sweep.supervisor import Supervisor

QUICK_WARMUP_SECONDS = 5.0


def candidates(supervisor: Supervisor) -> list[TrialRecord]:
    """Returns the fastest feasible trials of the baseline's own work, best first."""
    book = supervisor.book
    base = book.records[BASELINE]
    found = [
        record
        for record in book.finished()
        if record.feasible
        and record.number != BASELINE
        and record.config.work_key() == base.config.work_key()
        and (record.quality is not None or not book.quality_samples)
        and (book.x_baseline(record) or 0.0) > 1.0
    ]
    found.sort(key=lambda record: -(record.metric("throughput") or 0.0))
    return found[: supervisor.spec.confirm.top]


def confirm(supervisor: Supervisor) -> Mapping[str, Any]:
    """Runs the rounds there is time for, and returns what they say, as result.json has it.

    A round is one fresh process per candidate and one for the baseline. Rounds already in the folder
    count; one that lacks a process is completed.
    """
    spec, book = supervisor.spec, supervisor.book
    chosen = candidates(supervisor)
    if not chosen or not spec.confirm.rounds:
        return {"winner": None, "ratios": [], "rounds": []}
    supervisor.phase, supervisor.done, supervisor.total = "confirming", 0, spec.confirm.rounds
    numbers = [BASELINE, *(record.number for record in chosen)]
    folders = {
        (entry.job.params["round"], entry.job.params["trial"]): entry.folder
        for entry in supervisor.journal.confirmations()
    }
    rounds: list[dict[int, Measurement]] = []
    longest = 0.0
    for index in range(spec.confirm.rounds):
        left = supervisor.seconds_left
        if index >= MIN_ROUNDS and left is not None and left < longest:
            break
        order = list(numbers)
        random.Random(spec.search.seed * 1_000_003 + index).shuffle(order)
        before = supervisor.seconds_left
        rounds.append(_round(supervisor, index, order, folders))
        after = supervisor.seconds_left
        if before is not None and after is not None:
            longest = max(longest, before - after)
        supervisor.done = index + 1
    configs = {number: book.records[number].config for number in numbers}
    speeds = [{number: found.throughput for number, found in each.items()} for each in rounds]
    return {
        "winner": decide(speeds, BASELINE, configs),
        "ratios": [encode(ratio) for ratio in ratios(speeds, BASELINE)],
        "rounds": [{str(n): value for n, value in each.items()} for each in speeds],
        "disturbed": {
            str(n): sum(bool(each[n].contamination) for each in rounds if n in each) for n in numbers
        },
    }


def _round(
    supervisor: Supervisor, index: int, order: list[int], folders: dict[tuple[int, int], Path]
) -> dict[int, Measurement]:
    journal, book = supervisor.journal, supervisor.book
    found: dict[int, Measurement] = {}
    for number in order:
        # By round and trial, not by place: with other candidates than before, the places shift.
        folder = folders.setdefault((index, number), journal.confirm_folder(len(folders)))
        outcome = supervisor.runner.run(folder, _job(supervisor, book.records[number], index))
        if isinstance(outcome, Measurement):
            found[number] = outcome
    return found


def _job(supervisor: Supervisor, record: TrialRecord, index: int) -> Job:
    measure = supervisor.spec.measure
    job = supervisor.job("confirm", record.config, {"round": index, "trial": record.number})
    plan = MeasurePlan(
        window_seconds=measure.window_seconds,
        repeats=1,
        warmup_cap_seconds=min(QUICK_WARMUP_SECONDS, measure.warmup_cap_seconds),
        # Room for one repetition, where something disturbs it.
        cap_seconds=1.5 * measure.window_seconds,
        quiet_canary_ms=supervisor.quiet_canary_ms(),
        diagnose=False,
    )
    return dataclasses.replace(job, plan=plan)
