"""Races the best trial during the search, since consecutive rounds do not show a machine's drift."""

from __future__ import annotations

from sweeper.core.record import BASELINE
from sweeper.race.log import Round
from sweeper.results.numbers.finalists import is_speed
from sweeper.sweep.folder.journal import EARLY_RACE, Journal
from sweeper.sweep.phases.race import SweepRace
from sweeper.sweep.phases.reserve import run_seconds
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

AT = (0.25, 0.5)
"""Shares of the sweep's time after which a round runs; the last part of the time is for the confirmation."""
LATE = 0.1
"""Share of the sweep's time by which a round may begin late; after that, it is skipped."""
MAX_SHARE = 0.05
"""Share of the sweep's time that one round may take."""


class EarlyRounds:
    """Runs early rounds between two trials."""

    def __init__(self, context: SweepContext, trials: TrialRunner) -> None:
        self._context, self._trials = context, trials
        spec = context.spec
        # With several slots, other trials would run at the same time.
        is_alone = len(context.machine.slots) == 1
        is_wanted = spec.confirm.rounds and spec.search.minutes and is_speed(spec)
        self._wanted = AT if is_alone and is_wanted else ()
        self._next = len(context.journal.early_races())
        self._passed = len(early_rounds(context.journal))

    def run_if_due(self) -> bool:
        """Races the best trial so far and the baseline for a round, if one is due; returns whether it did."""
        left, spec = self._trials.budget.seconds_left, self._context.spec
        if not self._wanted or left is None:
            return False
        total = 60 * (spec.search.minutes or 0.0)
        used = 1 - left / total
        passed = sum(used >= share for share in self._wanted)
        # If two are due, only one runs: rounds must be apart in time, also from those at the end.
        if passed <= self._passed or used > self._wanted[passed - 1] + LATE:
            return False
        table = self._trials.table
        best, baseline = table.best_trial(), table.records[BASELINE]
        if best is None or best.number == BASELINE or not (best.measurement and baseline.measurement):
            return False
        if sum(run_seconds(table, record, spec) for record in (baseline, best)) > MAX_SHARE * total:
            return False
        name = f"{EARLY_RACE}-{self._next:04d}"
        self._next += 1
        race = SweepRace(self._context, self._trials, name, spec.measure.window_seconds)
        race.run([best.number], 1, 1)
        # A round that failed runs again after the next trial.
        self._passed = passed if race.rounds else self._passed
        return True


def early_rounds(journal: Journal) -> list[Round]:
    """Returns the rounds that ran during a sweep's search, in order."""
    return [one for race in journal.early_races() for one in journal.rounds(race)]
