"""Predicts peak memory from the trials measured so far and rejects configurations that will not fit."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.metrics import METRICS
from sweeper.core.past import PastSweep
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.search.memory import MemoryModel, PeakRecord
from sweeper.sweep.start.setup import Machine

MAX_HALVINGS = 3
MAX_SEEN = 200
"""Largest number of trials in the memory model: it takes longer to fit and to query with more."""
MAX_PAST = 50
"""Largest number of trials of an earlier sweep in the memory model."""
FITS = 32
"""Up to twice this many trials, each one refits the model; after that, each 1/32 more does."""


class Capacity:
    """Predicts from the trials so far whether a configuration will fit."""

    def __init__(
        self, table: TrialTable, machine: Machine, headroom: float, past: PastSweep | None = None
    ) -> None:
        self._table = table
        self._past = [] if past is None or past.kind != machine.devices[0].kind else _largest_peaks(past)
        on_gpu = machine.devices[0].kind == "cuda"
        self._metric = "gpu_mem_peak_gib" if on_gpu else "host_mem_peak_gib"
        self._out_of_memory = FailureKind.OOM if on_gpu else FailureKind.HOST_OOM
        self._device_gib = min(device.memory_gib for device in machine.devices) if on_gpu else 0.0
        self._headroom = headroom
        self._looked_at = 0
        self._seen: list[PeakRecord] = []
        self._refused_at = 0
        self._fitted: tuple[tuple[int, float], MemoryModel] | None = None
        self._objections: dict[str, Failure | None] = {}

    def limit_gib(self) -> float:
        """Returns the memory in GiB that a trial may use: the device's, or a constraint's; 0 if unknown."""
        bounds = [self._device_gib]
        for limit in self._table.limits():
            if limit.sign > 0 and limit.metric == self._metric:
                bounds.append(limit.bound)
            elif limit.sign > 0 and limit.metric == "gpu_mem_peak_fraction":
                bounds.append(limit.bound * self._device_gib)
        return min((gib for gib in bounds if gib > 0), default=0.0)

    def objection(self, config: TrialConfig) -> Failure | None:
        """Returns the failure that is expected of `config`, without running it; None if it may fit."""
        limit = self.limit_gib()
        if not limit:
            return None
        model, key = self._model(limit), config.key()
        if key not in self._objections:
            self._objections[key] = self._objection(config, model, limit)
        return self._objections[key]

    def chance(self, config: TrialConfig) -> float:
        """Returns the probability that `config` fits."""
        limit = self.limit_gib()
        return self._model(limit).chance(config, self._headroom) if limit else 1.0

    def _objection(self, config: TrialConfig, model: MemoryModel, limit: float) -> Failure | None:
        if model.fits(config, self._headroom):
            return None
        spare = f", of which {self._headroom:.0%} must stay free" if self._headroom else ""
        expected = model.predict(config)
        # With few peaks, only their order is known.
        need = "more than a trial that did not fit"
        if expected is not None:
            need = f"{expected.gib:.3g} GiB ({expected.low:.3g} to {expected.high:.3g})"
        return Failure(
            kind=FailureKind.OOM_EXPECTED,
            message=f"not run: expected to need {need}; the limit is {limit:.3g} GiB{spare}",
        )

    def _model(self, limit: float) -> MemoryModel:
        """Returns the model of the peaks so far, which is refitted when there are enough new ones."""
        self._look()
        count = len(self._seen)
        # A trial that did not fit refits the model at once; others do so in groups if there are many.
        num_trials = max(self._refused_at, count - count % max(1, count // FITS))
        if self._fitted is None or self._fitted[0] != (num_trials, limit):
            self._fitted = (
                (num_trials, limit),
                MemoryModel([*self._past, *informative_trials(self._seen[:num_trials])], limit),
            )
            self._objections.clear()
        return self._fitted[1]

    def shrink(self, config: TrialConfig) -> TrialConfig | None:
        """Returns the same training with half the batch or less, accumulated; None if none fits."""
        if not config.sets("batch_size", "accumulate_steps"):
            return None
        for _ in range(MAX_HALVINGS):
            if config.batch_size < 2:
                return None
            config = config.replace(
                {
                    "batch_size": config.batch_size // 2,
                    "accumulate_steps": 2 * config.accumulate_steps,
                }
            )
            if self.objection(config) is None:
                return config
        return None

    def _look(self) -> None:
        """Adds the peaks of the trials that have ended since the last call."""
        for number in self._table.ended[self._looked_at :]:
            record = self._table.records[number]
            peak = METRICS[self._metric].of(record) if record.measurement is not None else None
            refused = record.failure is not None and record.failure.kind is self._out_of_memory
            if peak is not None or refused:
                self._seen.append(PeakRecord(config=record.config, peak_gib=peak))
                self._refused_at = len(self._seen) if refused else self._refused_at
        self._looked_at = len(self._table.ended)


def _largest_peaks(past: PastSweep) -> list[PeakRecord]:
    """Returns the largest peaks of an earlier sweep."""
    seen = [
        PeakRecord(config=trial.config, peak_gib=trial.peak_gib, sweep=past.name)
        for trial in past.measured
        if trial.peak_gib
    ]
    return heapq.nlargest(MAX_PAST, seen, key=lambda trial: trial.peak_gib or 0.0)


def informative_trials(seen: Sequence[PeakRecord]) -> list[PeakRecord]:
    """Returns the most informative trials in order: the latest, the largest, and those that did not fit."""
    share = MAX_SEEN // 4
    sizes = {i: trial.peak_gib for i, trial in enumerate(seen) if trial.peak_gib is not None}
    refused = [i for i, trial in enumerate(seen) if trial.peak_gib is None]
    latest = range(max(0, len(seen) - 2 * share), len(seen))
    kept = {*heapq.nlargest(share, sizes, key=sizes.__getitem__), *refused[-share:], *latest}
    return [seen[i] for i in sorted(kept)]
