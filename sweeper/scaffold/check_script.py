"""`sweeper check --deep` for a script: runs its baseline for a few seconds and reads its output."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.core.job import RECORD, MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.schema import SweepSpec
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.start.bootstrap import Launch, launcher_to_try_out, probe_machine
from sweeper.sweep.workloads import workload_of
from sweeper.system.files import read_json

PLAN = MeasurePlan(window_seconds=0.5, repeats=2, warmup_cap_seconds=10.0, cap_seconds=10.0, diagnose=False)
LIMIT_SECONDS = 120.0
PATIENCE_SECONDS = 20.0
"""Time after which a script is stopped if it prints, but nothing that is understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheck:
    """A script that was run for a few seconds.

    Attributes:
        device: The device in one line.
        record: The record of what ran and what was read (`sweeper.core.job.RECORD`); empty if the script
            could not be started.
    """

    device: str
    outcome: Measurement | Failure
    record: Mapping[str, Any]


def try_out(spec: SweepSpec, launch: Launch | None = None) -> ScriptCheck:
    """Runs the baseline of a command until it is measured, for at most `LIMIT_SECONDS`.

    Leaves nothing on disk.
    """
    with launcher_to_try_out(spec, launch) as (launcher, folder):
        machine = probe_machine(launcher, folder / "probe", spec)
        job = dataclasses.replace(
            workload_of(spec).template(spec, folder),
            uid="deep",
            config=spec.baseline_config(),
            plan=PLAN,
            timeout_seconds=LIMIT_SECONDS,
            patience_seconds=PATIENCE_SECONDS,
        )
        outcome = JobRunner(launcher, machine.slots, lambda: None).run(folder / "trial", job)
        assert isinstance(outcome, Measurement | Failure)
        record = folder / "trial" / RECORD
        return ScriptCheck(
            device=machine.line, outcome=outcome, record=read_json(record) if record.exists() else {}
        )


MIN_LINES = 3
"""Minimum number of lines that make a form."""
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_STAMP = re.compile(r"(?:\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4})?[T ]*\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?")
"""Matches a date or a time of day, which also grows from line to line but counts nothing."""
_CUT = "\0"
_GAP = r"\S+"


def suggest_pattern(lines: Sequence[str]) -> str:
    """Returns a pattern with a group `step` for the count in the commonest form of line; empty if none.

    A count is a whole number that only grows from line to line.
    """
    forms: dict[str, list[list[str]]] = defaultdict(list)
    for line in (_STAMP.sub(_CUT, line) for line in lines):
        forms[_NUMBER.sub("0", line.strip())].append(_NUMBER.findall(line.strip()))
    for form, numbers in sorted(forms.items(), key=lambda item: -len(item[1])):
        columns = list(zip(*numbers, strict=True))
        place = next((i for i, column in enumerate(columns) if _counts(column)), None)
        if len(numbers) >= MIN_LINES and place is not None:
            return _pattern(form, place)
    return ""


def _counts(column: Sequence[str]) -> bool:
    if not all(number.replace(",", "").isdecimal() for number in column):
        return False
    values = [int(number.replace(",", "")) for number in column]
    return all(before < after for before, after in itertools.pairwise(values))


def _pattern(form: str, place: int) -> str:
    """Returns a pattern for the text up to the number at `place`; any number matches the earlier ones.

    The pattern begins after the last date or time in that text.
    """
    before = "0".join(form.split("0")[: place + 1]).rpartition(_CUT)[2]
    text = _GAP.join(re.escape(part).replace(r"\ ", " ") for part in before.split("0"))
    return rf"{text}(?P<step>[\d,]+)"
