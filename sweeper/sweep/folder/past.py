"""Finds an earlier sweep of the same training and stores the part that a new one needs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.metrics import METRICS
from sweeper.core.past import PastSweep, PastTrial
from sweeper.core.record import TrialRecord
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.schema import SweepSpec
from sweeper.schema.sections import LATEST, NONE
from sweeper.sweep.folder.catalog import all_sweeps, find_sweep, journal_at
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import Journal
from sweeper.system.files import read_json, reading, write_json

PAST = "past.json"

MIN_MEASURED = 4
"""Number of measured trials that a sweep needs to show effects."""

MAX_TRIALS = 200
"""Largest number of trials that are taken from a sweep, the fastest first."""

LASTING = frozenset({FailureKind.UNSUPPORTED, FailureKind.COMPILE_ERROR, FailureKind.CRASH})
"""Failures that are likely to happen again; errors in the user's code may have been fixed."""

COMPARED_KEYS = ("code", "data", "torch", "device", "space", "fix", "baseline")
"""Keys of a fingerprint in which an earlier sweep may differ; those that do are named."""


def store_past_sweep(journal: Journal, home: Path, spec: SweepSpec, fingerprint: Mapping[str, Any]) -> None:
    """Stores the earlier sweep that a new one starts from, so that it still uses that one when continued.

    Raises:
        UserError: The sweep that the specification names does not exist.
    """
    past = find_past_sweep(home, spec, fingerprint)
    if past is not None:
        write_json(journal.folder / PAST, encode(past))
    else:
        # The file may be left from an attempt that was killed before the sweep began.
        (journal.folder / PAST).unlink(missing_ok=True)


def read_past_sweep(journal: Journal) -> PastSweep | None:
    """Returns the earlier sweep that a sweep starts from; None if there is none.

    Raises:
        EnvironmentStopError: The file is damaged.
    """
    path = journal.folder / PAST
    if not path.exists():
        return None
    with reading(path, "Remove it, and the search goes on without it"):
        past: PastSweep = decode(PastSweep, read_json(path))
    return past


def past_line(past: PastSweep) -> str:
    """Returns a line about the earlier sweep that a search starts from."""
    changed = f" (changed since then: {', '.join(past.differs)})" if past.differs else ""
    return f"Starting from what `{past.name}` measured in {len(past.measured)} trials{changed}."


def find_past_sweep(home: Path, spec: SweepSpec, fingerprint: Mapping[str, Any]) -> PastSweep | None:
    """Returns the earlier sweep that a new one starts from; None if there is none.

    Raises:
        UserError: The sweep that the specification names does not exist.
    """
    wanted = spec.search.warm_start
    if wanted == NONE or spec.traits.is_of_changes:
        return None
    if wanted != LATEST:
        return _find_requested(home, wanted, fingerprint)
    for journal in all_sweeps(home):
        # A damaged sweep must not prevent the use of another.
        with contextlib.suppress(EnvironmentStopError, OSError):
            document = journal.read_sweep_file()
            is_alike = _subject(document["fingerprint"]) == _subject(fingerprint)
            # A tune of a script has no parameter in common with a space for its flags.
            if is_alike and spec.space.keys() & document["spec"].get("space", {}).keys():
                past = _past_sweep(journal, fingerprint)
                if len(past.measured) >= MIN_MEASURED:
                    return past
    return None


def _find_requested(home: Path, name: str, fingerprint: Mapping[str, Any]) -> PastSweep:
    journal = _find_named(home, name)
    if bool(journal.read_sweep_file()["fingerprint"].get("command")) != bool(fingerprint.get("command")):
        raise UserError(
            f"`search.warm_start` must name a sweep of the same kind, but one of {name!r} and this sweep "
            "runs a script, and the other a pipeline."
        )
    past = _past_sweep(journal, fingerprint)
    if not past.measured:
        raise UserError(
            f"`search.warm_start` must name a sweep that has measured something, but {name!r} has not."
        )
    return past


def _find_named(home: Path, name: str) -> Journal:
    folder = Path(name)
    if folder.name == name:
        return find_sweep(home, name)
    journal = journal_at(folder)
    if not journal.has_begun:
        raise UserError(
            f"`search.warm_start` must be `auto`, `off`, a sweep's name or its folder, but {name!r} holds "
            "no sweep."
        )
    return journal


def _subject(fingerprint: Mapping[str, Any]) -> object:
    """Returns the name of the training: its scripts, its pipeline or its options, not their content."""
    command = fingerprint.get("command")
    if command:
        words = itertools.pairwise(["", *map(str, command)])
        named = tuple(word for before, word in words if word.endswith(".py") or before == "-m")
        return named or tuple(command)
    return fingerprint.get("pipeline") or (fingerprint.get("workload"), fingerprint.get("data"))


def _past_sweep(journal: Journal, fingerprint: Mapping[str, Any]) -> PastSweep:
    document = journal.read_sweep_file()
    records = [
        journal.trial_record(entry.number, entry.job, entry.outcome)
        for entry in journal.trials()
        if isinstance(entry.outcome, Measurement | Failure)
    ]
    trials = sorted(map(_trial, records), key=lambda trial: -trial.throughput)
    result = journal.result()
    kinds = [record.measurement.device.kind for record in records if record.measurement]
    old = document["fingerprint"]
    return PastSweep(
        name=journal.name,
        trials=tuple(trials[:MAX_TRIALS]),
        winner=result.confirmation.winner if result is not None else None,
        kind=kinds[0] if kinds else "",
        differs=tuple(_changed_keys(old, fingerprint)),
    )


def _changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in COMPARED_KEYS:
        if differences({name: old.get(name)}, {name: new.get(name)}):
            yield name


def _trial(record: TrialRecord) -> PastTrial:
    measured, failure = record.measurement, record.failure
    if measured is None:
        assert failure is not None
        is_lasting = failure.kind in LASTING
        return PastTrial(
            number=record.number, config=record.config, failure=failure.message if is_lasting else ""
        )
    metric = "gpu_mem_peak_gib" if measured.device.kind == "cuda" else "host_mem_peak_gib"
    return PastTrial(
        number=record.number,
        config=record.config,
        throughput=measured.throughput,
        peak_gib=METRICS[metric].of(record),
    )
