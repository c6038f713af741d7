"""Defines TrialRecord: one trial of a sweep with its outcome."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Failure, Measurement, Outcome, Quality
from sweeper.core.metrics import METRICS, metric_row
from sweeper.core.place import TrialPlace
from sweeper.errors import UserError

BASELINE = 0
"""The baseline's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial as stored in the sweep folder.

    Attributes:
        number: The sweep's own number; the baseline is 0.
        uid: Unique over all sweeps; names the MLflow run.
        stage: `baseline`, `reference` or `search`.
        params: What the search suggested, by parameter name; empty for a reference trial.
        origin: Where its configuration came from, in words; empty where that was not stored.
        outcome: None while it runs.
        quality: The loss of this trial's numerics key, from its own pass or a shared one.
        violations: Constraint name -> amount by which it is violated (<= 0 holds).
        derived: Metrics by name that depend on more than the trial itself, such as the production run
            or the baseline's loss; infinite where the trial would never reach the goal. They include
            the third-party metrics that the sweep names.
        notes: How a derived metric was obtained: `time_to_loss_how` is `measured` or `extrapolated`.
        created_at: Wall time at which it was requested, in seconds; 0 if unknown.
        folder: Where its files are.
        place: Where it ran, and alongside how many others.
    """

    number: int
    uid: str
    stage: str
    config: TrialConfig
    outcome: Outcome | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    quality: Quality | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    derived: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    folder: str = ""
    place: TrialPlace = field(default_factory=TrialPlace)

    @property
    def measurement(self) -> Measurement | None:
        """The outcome if it is a measurement, else None."""
        return self.outcome if isinstance(self.outcome, Measurement) else None

    @property
    def failure(self) -> Failure | None:
        """The outcome if it is a failure, else None."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def feasible(self) -> bool:
        """Whether it was measured and violates no constraint."""
        return self.measurement is not None and all(v <= 0 for v in self.violations.values())

    @property
    def pipeline_metrics(self) -> Mapping[str, float]:
        """Metrics that its pipeline reports for the validation samples: `val_accuracy`, ..."""
        reported = self.quality.metrics if self.quality is not None else {}
        return {f"val_{name}": value for name, value in reported.items() if f"val_{name}" not in METRICS}

    @property
    def added(self) -> list[str]:
        """Names of its third-party metrics."""
        return [name for name in self.derived if name not in METRICS]

    def metric(self, name: str) -> float | None:
        """Returns the metric `name`, or None where this trial does not have it."""
        value = METRICS[name].of(self) if name in METRICS else self.derived.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def metrics(self) -> dict[str, float]:
        """All its metrics: the table's, third parties', then `pipeline_metrics`."""
        values = {name: self.metric(name) for name in (*METRICS, *self.added)}
        return {name: value for name, value in values.items() if value is not None} | dict(
            self.pipeline_metrics
        )


def with_added(record: TrialRecord, names: Iterable[str]) -> TrialRecord:
    """Returns `record` with the third-party metrics among `names`; unchanged if it was not measured.

    Raises:
        UserError: One of them fails, or returns something other than a number.
    """
    values: dict[str, float] = {}
    for name in names:
        if name not in METRICS and record.measurement is not None:
            value = _read_metric(name, record)
            if value is not None:
                values[name] = value
    return dataclasses.replace(record, derived={**record.derived, **values}) if values else record


def _read_metric(name: str, record: TrialRecord) -> float | None:
    try:
        value = metric_row(name).of(record)
        return None if value is None else float(value)
    except Exception as error:
        raise UserError(
            f"the metric `{name}` must return a number or None, but for trial {record.number} it raised "
            f"{type(error).__name__}: {error}. Fix it and run the sweep again to continue."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a trial as the sampler gets it; fixed once recorded.

    Attributes:
        params: The value of every parameter of the space.
        values: One value per objective; None for a trial without values (`fail`).
        constraints: Violation by name (<= 0 holds), with the same names on every trial.
    """

    params: Mapping[str, Scalar]
    values: tuple[float, ...] | None
    constraints: Mapping[str, float]
