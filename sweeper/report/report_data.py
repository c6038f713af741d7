"""Gathers ReportData: everything that a report is made from, read from the sweep once."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.core.record import TrialRecord
from sweeper.report.cost import Cost, cost_of
from sweeper.results.numbers.decision import Decision
from sweeper.results.numbers.sensitivity import Sensitivity
from sweeper.results.numbers.summary import Summary
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.load import LoadedSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A sweep and what follows from it.

    Attributes:
        spec: The specification it was started with.
        ended: The trials with an outcome, in order.
        sensitivity: The cost of moving the best trial to its neighbours; empty if there is none.
    """

    sweep: LoadedSweep
    summary: Summary
    spec: SweepSpec
    ended: tuple[TrialRecord, ...]
    decision: Decision
    sensitivity: tuple[Sensitivity, ...]
    cost: Cost

    @property
    def baseline(self) -> TrialRecord | None:
        """The baseline; None until it is measured."""
        return self.decision.baseline.record if self.decision.baseline else None

    @property
    def best(self) -> TrialRecord | None:
        """The trial to use; None if the baseline is best."""
        return self.decision.best.record if self.decision.best else None

    @property
    def confirmed(self) -> bool:
        """Whether `best` was confirmed."""
        return self.decision.is_confirmed

    @property
    def best_word(self) -> str:
        """The best trial's title."""
        return "winner" if self.confirmed else "fastest, unconfirmed"

    def has_same_work(self, record: TrialRecord) -> bool:
        """Returns whether a trial does the baseline's work, so that their speeds compare."""
        return self.baseline is None or record.config.work_key() == self.baseline.config.work_key()


def gather(sweep: LoadedSweep) -> ReportData:
    """Returns the data for a report on `sweep`."""
    return ReportData(
        sweep=sweep,
        summary=sweep.summary,
        spec=sweep.spec,
        ended=tuple(sweep.table.finished_trials()),
        decision=sweep.decision,
        sensitivity=sweep.sensitivity,
        cost=cost_of(sweep),
    )
