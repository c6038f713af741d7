"""Tries each loader, precision and compile mode of the space before the search; removes those that fail.

Each value takes a few steps in a separate process, as the only change to the baseline's configuration,
which has been measured. So the value itself is the cause of a failure, and a crash or a hang costs
only the answer for that value. Pairs of values are too many to try: the search finds those that fail.
Without a preflight, `a10.yaml` spent nine of 42 trials on fp16 where oneDNN's LSTM does not support it.

A failure that the machine may have caused (memory, time, a full disk) is no answer: the value stays, and the
next sweep tries it again. Answers are kept in the home's cache, so that the next sweep runs no job for them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper._version import __version__
from sweeper.core.codec import decode, encode
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.job import MAX_ATTEMPTS, PREFLIGHT_RUNNER
from sweeper.core.measurement import Failure
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.schema import CategoricalParameter, SweepSpec
from sweeper.schema.space import acts, is_same
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases.dropped_values import KINDS, Choice
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.start.setup import NO_WINDOWS, left_line, yaml_of
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import make_folder, read_json, write_json

NAMES = ("loader.kind", "precision.tf32", "precision.amp", "compile.mode")
"""The parameters to try; compilers come last, since they take longest."""
PREFLIGHT = "preflight.json"
"""File in the sweep's set-up folder, from which a continued sweep decides the same."""
MAX_SHARE = 0.1
"""Share of `search.minutes` for the preflight; values that do not fit into it are left to the search."""
LIMIT_SECONDS, COMPILER_SECONDS = 20.0, 120.0
"""Seconds for a value beyond its start, and further seconds for a compiler."""
START_SECONDS, COLD_COMPILER_SECONDS = 1.0, 20.0
"""Seconds that must be left for a value to be tried, and for a value that is compiled."""
SLOWER = 10.0
"""Factor by which a value may start more slowly than the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCheck:
    """The outcome for one value.

    Attributes:
        failed: Why the value does not run here; empty if it does.
        unknown: Why there is no answer; empty if there is one.
        runs_with: The model kind that the value runs with, if it fails with the baseline's.
        cached: The cache file that holds the failure; empty if the value was tried now.
    """

    name: str
    value: Scalar
    failed: str = ""
    unknown: str = ""
    runs_with: str = ""
    cached: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """The outcome of a preflight, as stored."""

    tried: tuple[ValueCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The answer for one configuration, with the fields of `ValueCheck`."""

    failed: str = ""
    unknown: str = ""
    cached: str = ""


def preflight(
    context: SweepContext, trials: TrialRunner, spec: SweepSpec
) -> tuple[SweepSpec, Sequence[Choice]]:
    """Removes values that cannot run here from the space; returns the rest and the choices that ran.

    A continued sweep reuses its earlier answers. A script has no preflight, since the meaning of its
    parameters is unknown.
    """
    if not spec.traits.names_are_fields:
        return spec, ()
    path = context.journal.setup_folder(PREFLIGHT)
    outcome = _read_result(path)
    if outcome is None:
        outcome = _Preflight(context, trials, spec).run()
        make_folder(path.parent)
        write_json(path, encode(outcome))
    spec, lines = drop_failed(spec, outcome.tried)
    for line in lines:
        context.observer.line(line)
    return spec, [
        (answer.name, answer.value) for answer in outcome.tried if not answer.failed and not answer.unknown
    ]


def drop_failed(spec: SweepSpec, checks: Sequence[ValueCheck]) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` without the values that failed, and a line for each that is affected."""
    lines = []
    for name in dict.fromkeys(answer.name for answer in checks):
        parameter, mine = spec.space.get(name), [answer for answer in checks if answer.name == name]
        if not isinstance(parameter, CategoricalParameter):
            continue
        gone = {
            answer.value: _reason(answer)
            for answer in mine
            if answer.failed and not answer.runs_with and parameter.contains(answer.value)
        }
        if gone and len(gone) == len(parameter.choices):
            why = "; ".join(dict.fromkeys(gone.values()))
            lines.append(f"{name}: every value failed before the search, so all stay ({why}).")
        elif gone:
            spec = spec.without({name: list(gone)})
            lines.append(left_line(name, gone))
        for answer in mine:
            value = yaml_of(answer.value)
            if answer.runs_with:
                lines.append(
                    f"{name}: {value} stays for {answer.runs_with}; with the baseline's model it fails"
                    f" ({answer.failed})."
                )
            elif answer.unknown:
                lines.append(f"{name}: {value} could not be tried before the search ({answer.unknown}).")
    return spec, lines


def preflight_lines(journal: Journal) -> list[str]:
    """Returns the lines of a sweep's preflight; none if there was none, or nothing failed."""
    outcome = _read_result(journal.setup_folder(PREFLIGHT))
    return drop_failed(journal.spec(), outcome.tried)[1] if outcome is not None else []


def _reason(check: ValueCheck) -> str:
    again = f"; known from an earlier sweep: remove {check.cached} to try it again" if check.cached else ""
    return check.failed + again


def _read_result(path: Path) -> PreflightResult | None:
    """Returns the outcome of an earlier run of this sweep; None if there is none that can be read."""
    try:
        return decode(PreflightResult, read_json(path))
    except (OSError, ValueError, TypeError, LookupError):
        return None


class _Preflight:
    """Tries values one after another, on the first free slot."""

    def __init__(self, context: SweepContext, trials: TrialRunner, spec: SweepSpec) -> None:
        self._context, self._trials, self._spec = context, trials, spec
        self._baseline = trials.table.records[BASELINE]
        self._config = self._baseline.config.on_one_device()
        minutes = spec.search.minutes
        self._ends_at = math.inf if minutes is None else time.monotonic() + MAX_SHARE * 60 * minutes

    def run(self) -> PreflightResult:
        choices = list(untried_choices(self._spec, self._trials.table.finished_trials()))
        self._trials.progress.begin("trying values before the search", len(choices))
        checks = []
        for name, value in choices:
            checks.append(self._try_value(name, value))
            self._trials.progress.advance_to(len(checks))
        return PreflightResult(tried=tuple(checks))

    def _try_value(self, name: str, value: Scalar) -> ValueCheck:
        """Tries a value with the baseline's model and, if it fails, with the other models."""
        config, folder = self._config.replace({name: value}), f"preflight-{name}-{yaml_of(value)}"
        answer = self._answer(config, folder)
        check = ValueCheck(name=name, value=value, **encode(answer))
        if not answer.failed:
            return check
        for index, (kind_name, kind) in enumerate(_other_kinds(self._spec, config), start=1):
            other = self._answer(config.replace({kind_name: kind}), f"{folder}-{index}")
            if not other.failed:
                # A value without an answer stays as well.
                return dataclasses.replace(check, runs_with=f"{kind_name}={kind}")
        return check

    def _answer(self, config: TrialConfig, folder: str) -> _Answer:
        prepared = Path(self._context.template.prepared)
        subject = _subject(prepared, self._baseline, config)
        cache = _cache_file(prepared, subject)
        answer = _answer_in(cache)
        if answer is None:
            answer = self._run(config, folder)
            if not answer.unknown:
                make_folder(cache.parent)
                write_json(cache, {"failed": answer.failed, **subject})
        return answer

    def _run(self, config: TrialConfig, folder: str) -> _Answer:
        """Runs the job; only failures that the configuration itself causes count."""
        left = self._ends_at - time.monotonic()
        compiles = config.compile.uses_compiler
        if left < (COLD_COMPILER_SECONDS if compiles else START_SECONDS):
            return _Answer(unknown=f"limited to {MAX_SHARE:.0%} of search.minutes")
        measured = self._baseline.measurement
        assert measured is not None
        limit = LIMIT_SECONDS + SLOWER * (measured.startup_seconds + measured.first_step_seconds)
        limit += COMPILER_SECONDS if compiles else 0.0
        job = dataclasses.replace(
            self._trials.job("preflight", config),
            runner=PREFLIGHT_RUNNER,
            plan=NO_WINDOWS,
            timeout_seconds=min(limit, left, self._trials.timeout()),
            # It counts as the last attempt: a job that was killed is not worth another one.
            attempt=MAX_ATTEMPTS - 1,
        )
        outcome = self._trials.run(self._context.journal.setup_folder(folder), job)
        if not isinstance(outcome, Failure):
            return _Answer()
        if outcome.kind in KINDS:
            return _Answer(failed=outcome.message)
        return _Answer(unknown=f"{outcome.kind}: {outcome.message}")


def untried_choices(spec: SweepSpec, finished: Sequence[TrialRecord]) -> Iterator[Choice]:
    """Yields the choices to try: those that no trial has run with and that have an effect in the baseline."""
    ran = [record.config.flatten() for record in finished if record.measurement is not None]
    baseline = spec.baseline_config().flatten()
    for name in NAMES:
        parameter = spec.space.get(name)
        if isinstance(parameter, CategoricalParameter) and acts(name, spec.space, baseline):
            for choice in parameter.choices:
                if not any(is_same(flat[name], choice) for flat in ran):
                    yield name, choice


def _other_kinds(spec: SweepSpec, config: TrialConfig) -> Iterator[Choice]:
    """Yields the space's model kinds other than `config`'s: `model.*` choices that are words."""
    for name, parameter in spec.space.items():
        top, _, option = name.partition(".")
        if top == "model" and isinstance(parameter, CategoricalParameter):
            words = (choice for choice in parameter.choices if isinstance(choice, str))
            yield from ((name, word) for word in words if word != config.model.get(option))


def _subject(prepared: Path, baseline: TrialRecord, config: TrialConfig) -> Mapping[str, Any]:
    """Returns everything an answer depends on: device, versions, code, data and configuration."""
    measured = baseline.measurement
    assert measured is not None
    device = measured.device
    return {
        "sweeper": __version__,
        "device": [device.kind, device.name, device.capability, device.memory_gib],
        "versions": dict(measured.versions),
        # The folder's name is a digest of the pipeline's code and of the data.
        "prepared": prepared.name,
        "config": config.canonical().flatten(),
    }


def _cache_file(prepared: Path, subject: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]
    return prepared.parent / "preflight" / f"{digest}.json"


def _answer_in(path: Path) -> _Answer | None:
    """Returns the answer in a cache file; None if there is none that can be read."""
    try:
        failed = str(read_json(path)["failed"])
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return _Answer(failed=failed, cached=str(path) if failed else "")
