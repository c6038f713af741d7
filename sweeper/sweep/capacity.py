"""What fits into memory: the limit of the device and of the constraints, and the sweep's own peaks."""

from __future__ import annotations

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.record import METRICS
from sweeper.search.memory import MemoryModel, Seen
from sweeper.sweep.book import Book
from sweeper.sweep.setup import Machine

MOST_HALVINGS = 3


class Capacity:
    """Tells of a configuration whether it is expected to fit, by the trials so far."""

    def __init__(self, book: Book, machine: Machine) -> None:
        self._book = book
        on_gpu = machine.devices[0].kind == "cuda"
        self._metric = "gpu_mem_peak_gib" if on_gpu else "host_mem_peak_gib"
        self._out_of_memory = FailureKind.OOM if on_gpu else FailureKind.HOST_OOM
        self._device_gib = min(each.memory_gib for each in machine.devices) if on_gpu else 0.0
        self._headroom = book.spec.search.memory_headroom
        self._fitted: tuple[tuple[int, float], MemoryModel] | None = None

    def limit_gib(self) -> float:
        """Returns the memory a trial may take: the device's, or less by a constraint; 0 if unknown."""
        found = [self._device_gib]
        for limit in self._book.limits():
            if limit.sign > 0 and limit.metric == self._metric:
                found.append(limit.bound)
            elif limit.sign > 0 and limit.metric == "gpu_mem_peak_fraction":
                found.append(limit.bound * self._device_gib)
        return min((gib for gib in found if gib > 0), default=0.0)

    def objection(self, config: TrialConfig) -> Failure | None:
        """Returns the failure that `config` is expected to end in, unrun; None where it may well fit."""
        limit = self.limit_gib()
        if not limit:
            return None
        model = self._model(limit)
        if model.fits(config, self._headroom):
            return None
        spare = f", of which {self._headroom:.0%} stay free" if self._headroom else ""
        expected = model.predict(config)
        # With few peaks only their order is known.
        need = "more than what did not fit"
        if expected is not None:
            need = f"{expected.gib:.3g} GiB ({expected.low:.3g} to {expected.high:.3g})"
        return Failure(
            kind=FailureKind.OOM_EXPECTED,
            message=f"not run: expected to need {need}, the limit is {limit:.3g}{spare}",
        )

    def _model(self, limit: float) -> MemoryModel:
        """Returns the model of all peaks so far; made anew when there is another."""
        seen = self._seen()
        if self._fitted is None or self._fitted[0] != (len(seen), limit):
            self._fitted = (len(seen), limit), MemoryModel(seen, limit)
        return self._fitted[1]

    def smaller(self, config: TrialConfig) -> TrialConfig | None:
        """Returns the same training with half the batch, accumulated, or less; None where none fits."""
        if config.args is not None and not {"batch_size", "accumulate_steps"} <= config.args.keys():
            return None
        for _ in range(MOST_HALVINGS):
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

    def _seen(self) -> list[Seen]:
        seen = []
        for record in self._book.finished():
            if record.measurement is not None:
                peak = METRICS[self._metric].of(record)
                if peak is not None:
                    seen.append(Seen(config=record.config, peak_gib=peak))
            elif record.failure is not None and record.failure.kind is self._out_of_memory:
                seen.append(Seen(config=record.config, peak_gib=None))
        return seen
