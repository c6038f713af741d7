"""Selects the part of a study that a sampler sees: the best, the latest and the running trials."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Container, Sequence

from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

BEST, LATEST = 50, 100
"""Trials that a sampler sees. TPE uses the 25 best and gives older ones less weight; the time of an
ask grows with their number, to more than half a second for ten thousand."""
RUNNING = 50
"""Latest running trials that a sampler sees; it treats them as bad ones (constant liar)."""


class History:
    """The finished trials that a sampler sees."""

    def __init__(self, directions: Sequence[str]) -> None:
        """Starts empty.

        Args:
            directions: `maximize` or `minimize`, one per objective.
        """
        self._signs = [-1 if direction == "maximize" else 1 for direction in directions]
        self._best: list[list[tuple[float, int]]] = [[] for _ in directions]
        self._latest = deque[int](maxlen=LATEST)
        self._trials: dict[int, FrozenTrial] = {}

    def add(self, number: int, trial: FrozenTrial) -> None:
        """Adds a trial; one without values is ignored."""
        if trial.state != TrialState.COMPLETE:
            return
        self._trials[number] = trial
        self._latest.append(number)
        if all(violation <= 0 for violation in trial.constraints.values()):
            for sign, value, best in zip(self._signs, trial.values, self._best, strict=True):
                insort(best, (sign * value, number))
                del best[BEST // len(self._best) :]
        kept = {*self._latest, *(number for best in self._best for _, number in best)}
        self._trials = {number: trial for number, trial in self._trials.items() if number in kept}

    def trials(self, latest: int = LATEST) -> list[FrozenTrial]:
        """Returns the best trials and the `latest` latest ones, in order of their numbers."""
        numbers = {number for best in self._best for _, number in best}
        numbers |= set(itertools.islice(reversed(self._latest), latest))
        return [self._trials[number] for number in sorted(numbers)]


class PastStorage(InMemoryStorage):  # type: ignore[misc]
    """Storage of a study with a given history; Optuna's own would copy every trial for each ask."""

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        """Numbers the history's trials from 1; the one trial that is asked for here is number 0."""
        super().__init__()
        self._past = trials
        for number, trial in enumerate(trials, start=1):
            trial.number = number

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Returns the history's trials, then those asked for here."""
        past = [trial for trial in self._past if states is None or trial.state in states]
        return [*past, *super().get_all_trials(study_id, deepcopy, states)]
