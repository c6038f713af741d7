"""Holds the facts that the phases of a sweep share, from its first trial to its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import Job
from sweeper.core.past import PastSweep
from sweeper.core.record import TrialRecord
from sweeper.launch.launcher import Launcher
from sweeper.results.numbers.labels import run_name
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.lock import SweepLock
from sweeper.sweep.folder.machine_record import speed_key
from sweeper.sweep.observer import SweepObserver
from sweeper.sweep.publish import Publisher
from sweeper.sweep.start.setup import Machine
from sweeper.sweep.stopping import StopHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepContext:
    """The facts that the phases of a sweep share; none changes while they run.

    Attributes:
        spec: The specification without what this machine cannot do. A phase that narrows the space returns
            the narrower specification for the phases after it.
        template: The fields that the jobs of all trials have in common.
        varied: The names that differ between the trials.
        past: The earlier sweep that the search starts from; None without one.
        began: Start of the sweep's time, by the monotonic clock.
    """

    spec: SweepSpec
    machine: Machine
    journal: Journal
    lock: SweepLock
    launcher: Launcher
    publisher: Publisher
    observer: SweepObserver
    stopping: StopHandler
    template: Job
    varied: Sequence[str]
    past: PastSweep | None
    began: float

    @property
    def home(self) -> Path:
        """The folder of all sweeps and of the files that they share."""
        return self.journal.folder.parents[1]

    def key_of(self, record: TrialRecord) -> str:
        """Returns the key of a trial's speed on this machine: a digest of code, data and configuration."""
        return speed_key(self.journal.read_sweep_file()["fingerprint"], record.config)

    def name(self, record: TrialRecord) -> str:
        """Returns a record's run name."""
        return run_name(record.number, record.stage, record.config, self.varied)
