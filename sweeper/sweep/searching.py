"""The search of a sweep: asks, runs and tells until it is enough."""

from __future__ import annotations

import statistics

from sweeper.analysis.regret import expected_regret
from sweeper.core.config import TrialConfig
from sweeper.core.crashing import passing
from sweeper.core.measurement import FailureKind
from sweeper.core.record import TrialRecord
from sweeper.search import Hints, Searcher, SpaceExhaustedError
from sweeper.search.guidance import ACCUMULATION
from sweeper.sweep.capacity import Capacity
from sweeper.sweep.setup import Machine
from sweeper.sweep.supervisor import Supervisor

CONFIRM_SHARE = 0.2
MOST_IN_A_ROW = 20
"""Configurations passed over one after another; the next is run whatever is expected of it."""
MOST_OFFERS = 3
"""Times a smaller batch is run in place of one that would not fit."""


def hints_of(machine: Machine, samples: int = 0) -> Hints:
    """Returns what first guesses rest on: known before the search, and the same whenever it goes on."""
    cores = machine.usable_cpus // len(machine.slots)
    return Hints(device=machine.devices[0].name, cores=cores, samples=samples)


class Search:
    """Asks for configurations, runs them and tells what became of them.

    Everything it decides follows from the records: cut off anywhere, it goes on as if it had not been.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._book = supervisor.book
        for record in self._book.finished():
            self._book.tell(record.number)
        self._searcher = Searcher(supervisor.journal.study, supervisor.spec, self._book.told, self._hints())
        self._capacity = Capacity(self._book, supervisor.machine)

    def _hints(self) -> Hints:
        base = self._book.yardstick
        measured = base.baseline.measurement if base else None
        return hints_of(self._supervisor.machine, measured.train_samples if measured else 0)

    def run(self) -> str:
        """Searches, and returns why it ended."""
        supervisor = self._supervisor
        supervisor.phase, supervisor.total = "searching", supervisor.spec.search.trials
        for number in sorted(supervisor.cut_off):
            supervisor.resume(number)
            self._collect()
            self._tell(number)
        supervisor.done = len(self._launched())
        if len(supervisor.spec.objectives) > 1:
            supervisor.observer.line("There are several objectives, so that no trial is ended early.")
        reason = ""
        while not reason or supervisor.runner.running:
            while not reason and supervisor.runner.has_room:
                reason = self._ask()
            self._collect()
        return reason

    def _launched(self) -> list[TrialRecord]:
        """Returns the searched trials, less those that were passed over."""
        searched = (record for record in self._book.records.values() if record.stage == "search")
        return [record for record in searched if not _is_passed_over(record)]

    def _ask(self) -> str:
        """Starts a trial, or passes a configuration over; returns why there is no more to ask, if so."""
        supervisor, book = self._supervisor, self._book
        if reason := self._why_enough():
            return reason
        number = max(book.records) + 1
        offered = self._offered()
        if offered is not None:
            why = f"{ACCUMULATION}: trial {max(book.records)} was expected not to fit"
            supervisor.start(number, "search", offered, {}, why)
            return ""
        try:
            params, why = self._searcher.ask(number, self._taken())
        except SpaceExhaustedError:
            return f"the space is exhausted after {len(self._launched())} trials"
        passing("asked")
        config = supervisor.spec.config(params)
        objection = self._capacity.objection(config) if self._in_a_row() < MOST_IN_A_ROW else None
        if objection is None:
            supervisor.start(number, "search", config, params, why)
        else:
            supervisor.pass_over(number, config, params, why, objection)
            self._tell(number)
        return ""

    def _why_enough(self) -> str:
        supervisor, search = self._supervisor, self._supervisor.spec.search
        launched = self._launched()
        if len(launched) >= search.trials:
            return f"all {len(launched)} trials are done"
        left = supervisor.seconds_left
        if left is not None and supervisor.spec.confirm.rounds:
            left -= CONFIRM_SHARE * (search.minutes or 0.0) * 60
        if left is not None and left < self._usual_seconds() / 2:
            return f"the time is up after {len(launched)} trials"
        if search.patience is not None and self._since_the_best() >= search.patience:
            return f"{search.patience} trials in a row were no better"
        if search.regret is not None:
            expected = self._expected_regret()
            if expected is not None and expected <= search.regret:
                gain = f"{100 * expected:.2g} %"
                return f"no more than {gain} is expected to be gained after {len(launched)} trials"
        return ""

    def _expected_regret(self) -> float | None:
        book, best = self._book, self._book.best()
        if best is None or best.stage != "search":
            return None
        alike = [r for r in book.searched() if r.config.work_key() == best.config.work_key()]
        return expected_regret(best, alike, self._supervisor.spec, self._taken())

    def _usual_seconds(self) -> float:
        seconds = self._supervisor.seconds_of_trials
        return statistics.median(seconds) if seconds else 0.0

    def _since_the_best(self) -> int:
        """Returns how many searched trials have ended since the best one."""
        best = self._book.best()
        last = best.number if best is not None else 0
        return sum(record.outcome is not None and record.number > last for record in self._launched())

    def _in_a_row(self) -> int:
        """Returns how many configurations were passed over since the last trial."""
        count = 0
        for _, record in sorted(self._book.records.items(), reverse=True):
            if not _is_passed_over(record):
                break
            count += 1
        return count

    def _offered(self) -> TrialConfig | None:
        """Returns the last configuration that was passed over with a smaller batch, accumulated."""
        last = self._book.records[max(self._book.records)]
        passed_over = [record for record in self._book.records.values() if _is_passed_over(record)]
        if not _is_passed_over(last) or len(passed_over) > MOST_OFFERS:
            return None
        smaller = self._capacity.smaller(last.config)
        return smaller if smaller is not None and smaller.key() not in self._taken() else None

    def _taken(self) -> set[str]:
        """Returns the keys of what need not be asked again.

        What was passed over may be, once more is known of what fits.
        """
        return {
            self._book.keys[record.number]
            for record in self._book.records.values()
            if not _is_passed_over(record) or self._capacity.objection(record.config) is not None
        }

    def _collect(self) -> None:
        for number, job, outcome in self._supervisor.runner.wait():
            self._supervisor.finish(number, job, outcome)
            self._tell(number)
            self._supervisor.done = len(self._launched())

    def _tell(self, number: int) -> None:
        if number in self._book.told:
            return
        told = self._book.tell(number)
        passing("told")
        if told is not None:
            self._searcher.tell(number, told)
            passing("studied")


def _is_passed_over(record: TrialRecord) -> bool:
    return record.failure is not None and record.failure.kind is FailureKind.OOM_EXPECTED
