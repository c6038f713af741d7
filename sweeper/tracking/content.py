"""Builds the content of trials and sweeps for a tracker: parameters, points, tags and notes.

It must not depend on MLflow.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.config import Scalar
from sweeper.core.job import SERIES
from sweeper.core.measurement import Measurement
from sweeper.core.metrics import LOSS_METRICS, METRICS, metric_row, round_to
from sweeper.core.place import describe_place
from sweeper.core.record import TrialRecord
from sweeper.race.record import losses
from sweeper.script.run.warm import read_record
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike
from sweeper.tracking.tracker import Dataset, RunView, SweepInfo

MAX_SERIES_POINTS = 100
"""A longer series is shown as this many block means; the full one stays in the trial's folder."""

MAX_TEXT = 500
UID_TAG = "sweeper.uid"
_DIGITS = 5
_OTHER = {"result": "infeasible", "infeasible": "result"}
_TWICE = ("gpu_mem_peak_fraction", "cpu_util_pct_p50", "cpu_util_pct_p95")
"""Metrics that are not shown: thirty figures per trial are enough, and others show the same."""


class Point(NamedTuple):
    """One value of one metric. All four parts are fixed when measured, so that a replay is identical."""

    key: str
    value: float
    timestamp_ms: int
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """The content of one trial in a tracker.

    Attributes:
        tags: Tags by name; an empty value clears an existing tag and is not written otherwise.
        measured: Points that follow from the outcome alone.
        derived: Points that also depend on other trials, and may come later.
        end_ms: None while the trial runs.
        failed: Whether there is no measurement.
        dataset: The data it was trained on.
        retracted: A metric whose presence means that the run shows an outdated state, such as that
            of a feasible trial; the run is then replaced, since MLflow cannot delete metrics.
    """

    params: dict[str, str]
    measured: tuple[Point, ...]
    derived: tuple[Point, ...]
    tags: dict[str, str]
    note: str
    start_ms: int
    end_ms: int | None
    failed: bool
    dataset: Dataset | None = None
    retracted: str = ""


def outcome_of(record: TrialRecord) -> str:
    """Returns `measured`, `infeasible`, the kind of failure, or `running`."""
    if record.failure is not None:
        return record.failure.kind.value
    if record.measurement is not None:
        return "measured" if record.feasible else "infeasible"
    return "running"


def run_content(record: TrialRecord, view: RunView, sweep: SweepInfo) -> RunContent:
    """Returns the content of `record`'s run, the same for the same arguments.

    Comparison metrics (`result/...`) are for trials that may win: a failed trial has none, and an
    infeasible one has them under `infeasible/...`, so that it neither tops a table nor
    stretches a chart's scale.
    """
    flat = record.config.flatten()
    series = _read_series(record) if record.measurement is not None else _Series({}, ())
    start, end = _span(record, series)
    return RunContent(
        params={key(name): param(flat[name]) for name in sweep.varied if name in flat},
        measured=tuple(_finite_points(_measured_points(record, series, _ms(end)))) if end else (),
        derived=tuple(_finite_points(_derived_points(record, view, _ms(end)))) if end else (),
        tags=_tags(record, view, sweep),
        note=view.note or (f"**{outcome_of(record)}**: {record.failure.message}" if record.failure else ""),
        start_ms=_ms(start),
        end_ms=_ms(end) if end else None,
        failed=record.failure is not None,
        dataset=sweep.dataset,
        retracted=f"{_OTHER[_prefix(record)]}/throughput" if end else "",
    )


def sweep_note(sweep: SweepInfo) -> str:
    """Returns the Markdown note of the experiment; while it is collapsed, the UI shows its first line."""
    facts = " · ".join(fact for fact in (sweep.device, sweep.pipeline, sweep.data) if fact)
    warning = "**Synthetic data:** figures may differ on your data; measure there before you rely on them."
    searched = ", ".join(f"`{name}`" for name in sweep.searched or sweep.varied)
    parts = (
        sweep.note,
        facts,
        f"Searched: {searched}." if searched else "",
        warning if sweep.synthetic else "",
    )
    return "\n\n".join(part for part in parts if part)


def sweep_tags(sweep: SweepInfo) -> dict[str, str]:
    """Returns the tags that distinguish experiments."""
    facts = {f"sweeper.{label.lower()}": text for label, text in _facts(sweep).items() if text}
    return facts | {"sweeper.synthetic": str(sweep.synthetic).lower()}


def text(value: str, limit: int = MAX_TEXT) -> str:
    """Returns `value` without secrets, visibly truncated, with unprintable characters escaped.

    Every database accepts the result, and no NUL, ANSI or bidi character in it disturbs a page.
    """
    value = strike(value, secrets(os.environ))
    clean = "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in value
    )
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _facts(sweep: SweepInfo) -> dict[str, str]:
    return {
        "Device": sweep.device,
        "Pipeline": sweep.pipeline,
        "Data": sweep.data,
        "Fingerprint": sweep.fingerprint,
    }


def _tags(record: TrialRecord, view: RunView, sweep: SweepInfo) -> dict[str, str]:
    versions = record.measurement.versions if record.measurement else {}
    tags = {
        **sweep.provenance,
        **{f"sweeper.{name}": version for name, version in versions.items()},
        UID_TAG: record.uid,
        "sweeper.number": str(record.number),
        "sweeper.stage": view.stage,
        "sweeper.outcome": outcome_of(record),
        "sweeper.rank": "" if view.rank is None else str(view.rank),
        "sweeper.verdict": view.verdict or "",
        "sweeper.contaminated": view.contamination,
        "sweeper.place": describe_place(record.place),
    }
    return {name: text(value) for name, value in tags.items()}


def _measured_points(record: TrialRecord, series: _Series, end_ms: int) -> Iterator[Point]:
    measurement = record.measurement
    if measurement is None:
        return
    prefix = _prefix(record)
    for name, metric in METRICS.items():
        value = record.metric(name)
        if value is not None and name not in (*LOSS_METRICS, *_TWICE):
            yield Point(f"{prefix}/{name}", round_to(value, metric.digits), end_ms)
    wall = _wall(measurement, series)
    for step, window in enumerate(measurement.windows):
        if window.seconds > 0:
            ended = _ms(wall + window.start_s + window.seconds)
            yield Point("train/throughput", round_to(window.samples / window.seconds, _DIGITS), ended, step)
    for step, loss in enumerate(_recorded_losses(record)):
        yield Point("train/loss", round_to(loss, _DIGITS), end_ms, step)
    times = series.columns.get("time_s", ())
    for name, values in series.columns.items():
        if name != "time_s":
            for step, (at, value) in enumerate(zip(times, values, strict=True)):
                yield Point(key(f"system/{name}"), round_to(value, _DIGITS), _ms(wall + at), step)


def _recorded_losses(record: TrialRecord) -> list[float]:
    """Returns the losses of a script's first steps, as far as they were recorded."""
    ranks = read_record(Path(record.folder)).events if record.folder else {}
    return losses(next(iter(ranks.values()), ()))


def _derived_points(record: TrialRecord, view: RunView, end_ms: int) -> Iterator[Point]:
    if record.measurement is None:
        return
    digits = METRICS["throughput"].digits
    # The loss may come from another trial with the same numerics, or from a separate pass.
    for name in (*LOSS_METRICS, *record.added):
        late = record.metric(name)
        if late is not None:
            yield Point(key(f"{_prefix(record)}/{name}"), round_to(late, metric_row(name).digits), end_ms)
    for name, value in record.pipeline_metrics.items():
        yield Point(key(f"{_prefix(record)}/{name}"), round_to(value, _DIGITS), end_ms)
    if view.speedup is not None:
        yield Point(f"{_prefix(record)}/speedup", round_to(view.speedup, digits), end_ms)
    confirmation = view.confirmation
    if confirmation is None:
        return
    # A later confirmation, or more rounds, gives other values, which MLflow shows as the latest.
    at, rounds = _ms(view.confirmed_at) or end_ms, len(confirmation.rounds)
    for step, value in enumerate(confirmation.rounds):
        yield Point("race/rounds/throughput", round_to(value, _DIGITS), at, step)
    for step, (before, value) in enumerate(confirmation.turns):
        yield Point("race/turns/throughput", round_to(value, _DIGITS), at - _ms(before), step)
    for name in ("throughput", "ratio", "ratio_low", "ratio_high"):
        value = getattr(confirmation, name)
        if value is not None:
            yield Point(f"race/{name}", round_to(value, digits), at, rounds)


def _prefix(record: TrialRecord) -> str:
    return "result" if record.feasible else "infeasible"


def _finite_points(points: Iterator[Point]) -> Iterator[Point]:
    # Adding 0.0 turns -0.0 into 0.0: depending on the database, the two would be one row or two.
    return (point._replace(value=point.value + 0.0) for point in points if math.isfinite(point.value))


class _Series(NamedTuple):
    """The telemetry inside the windows, and the times at which all telemetry began and ended."""

    columns: dict[str, list[float]]
    span: tuple[float, ...]


def _read_series(record: TrialRecord) -> _Series:
    """Returns the telemetry as columns of equal length, thinned to block means.

    A column that cannot be read is left out, since telemetry is the least important part of a trial.
    """
    folder = Path(record.folder) / SERIES
    if not record.folder or not (folder / "time_s.npy").is_file():
        return _Series({}, ())
    import numpy as np

    columns = {}
    # A chart for each core would bury the others; the cores' series stay in the folder.
    for path in sorted(path for path in folder.glob("*.npy") if not path.stem.startswith("cpu_core_")):
        with contextlib.suppress(OSError, ValueError, EOFError):
            columns[path.stem] = np.load(path, allow_pickle=False)
    times = columns.get("time_s", np.empty(0))
    columns = {name: column for name, column in columns.items() if len(column) == len(times)}
    inside = np.zeros(len(times), dtype=bool)
    for window in record.measurement.windows if record.measurement else ():
        inside |= (times >= window.start_s) & (times <= window.start_s + window.seconds)
    columns = {name: column[inside] for name, column in columns.items()}
    count = int(inside.sum())
    blocks = np.array_split(np.arange(count), min(count, MAX_SERIES_POINTS)) if count else []
    means = {name: [_mean(column[block]) for block in blocks] for name, column in columns.items()}
    return _Series(means, (float(times[0]), float(times[-1])) if len(times) else ())


def _mean(values: Any) -> float:
    """Returns the mean of the known values; NaN, which is not sent, if there are none."""
    import numpy as np

    numbers = values[~np.isnan(values)]
    return float(np.mean(numbers, dtype=np.float64)) if len(numbers) else math.nan


def _wall(measurement: Measurement, series: _Series) -> float:
    """Returns wall time minus monotonic time, in seconds: the last timed part ended at `finished_at`."""
    ends = [*series.span, *(window.start_s + window.seconds for window in measurement.windows)]
    return measurement.finished_at - max(ends, default=0.0)


def _span(record: TrialRecord, series: _Series) -> tuple[float, float]:
    """Returns the wall times of start and end, in seconds; both are 0 while the trial runs."""
    measurement = record.measurement
    if record.failure is not None:
        return record.failure.finished_at - record.failure.seconds, record.failure.finished_at
    if measurement is None:
        return 0.0, 0.0
    before = measurement.startup_seconds + measurement.first_step_seconds + measurement.warmup_seconds
    begins = [*series.span, *(window.start_s - before for window in measurement.windows[:1])]
    return _wall(measurement, series) + min(begins, default=0.0), measurement.finished_at


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def key(name: str) -> str:
    """Returns `name` with `_` for characters that MLflow does not accept in a metric or parameter."""
    return re.sub(r"[^\w\-./ :]", "_", name)


def param(value: Scalar) -> str:
    """Returns `value` as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return text(str(value)) or "''"
