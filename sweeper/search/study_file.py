"""Stores the results of a search as an Optuna study on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.core.record import SearchResult
from sweeper.schema import SweepSpec
from sweeper.search.distributions import distributions_of

NUMBER = "sweeper.number"
"""User attribute of a study's trial: its number in the sweep."""


class StudyFile:
    """A study in a file, with one trial for each result.

    It is a projection of the results: if it disagrees with them (after a crash, or with a torn
    line), it is rebuilt. Only the state that a sampler such as CMA-ES keeps in it is lost then.
    """

    def __init__(self, path: Path, spec: SweepSpec, results: Mapping[int, SearchResult]) -> None:
        """Opens the file, or rebuilds it from `results`.

        Args:
            results: The results inside `spec`'s space, by number.

        Raises:
            OSError: The file cannot be written.
        """
        self._path, self._name = path, spec.name
        self._directions = [objective.direction for objective in spec.objectives]
        self._distributions = distributions_of(spec)
        self._study = self._open(results) or self._rebuild(results)

    def _open(self, results: Mapping[int, SearchResult]) -> Study | None:
        """Returns the study; None if its file is torn or disagrees with `results`."""
        # Optuna would wait half a minute for a killed supervisor's lock; the sweep has its own.
        self._unlock()
        # Optuna would append to half a line, and notice only when it reads next.
        if self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n"):
            self._path.unlink()
        try:
            study = self._create()
            return study if _agrees(study, results) else None
        except (ValueError, KeyError, AssertionError, RuntimeError, OSError):
            # Optuna raises the first three for a line that is cut, corrupt or missing, the others on
            # a full disk, where rebuilding fails as well and says so.
            return None

    def _rebuild(self, results: Mapping[int, SearchResult]) -> Study:
        self._path.unlink(missing_ok=True)
        self._unlock()
        with _disk_error():
            study = self._create()
            for number, result in sorted(results.items()):
                study.add_trial(as_trial(number, result, self._distributions))
        return study

    def _create(self) -> Study:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self._path))),
            study_name=self._name,
            directions=self._directions,
            load_if_exists=True,
        )

    def _unlock(self) -> None:
        self._path.with_name(self._path.name + ".lock").unlink(missing_ok=True)

    def attributes(self) -> dict[int, Mapping[str, Any]]:
        """Returns each trial's system attributes, in which a sampler may keep its state, by number."""
        trials = self._study.get_trials(deepcopy=False)
        return {
            trial.user_attrs[NUMBER]: trial.system_attrs for trial in trials if NUMBER in trial.user_attrs
        }

    def add(self, trial: FrozenTrial) -> None:
        """Adds a trial.

        Raises:
            OSError: The file cannot be written.
        """
        with _disk_error():
            self._study.add_trial(trial)


def as_trial(
    number: int,
    result: SearchResult,
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any] | None = None,
) -> FrozenTrial:
    """Returns a result as a finished trial of a study.

    One that was ended for its slowness is complete, not pruned: it is a measurement, which GP would not see.

    Args:
        distributions: Distributions by name; may have more names than `result`, since values that the
            machine does not support have left the searched space.
        attributes: The trial's system attributes.
    """
    return create_trial(
        state=TrialState.FAIL if result.values is None else TrialState.COMPLETE,
        values=result.values,
        params=dict(result.params),
        distributions={name: distributions[name] for name in result.params},
        user_attrs={NUMBER: number},
        system_attrs=dict(attributes or {}),
        constraints=dict(result.constraints),
    )


def _agrees(study: Study, results: Mapping[int, SearchResult]) -> bool:
    trials: dict[int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        if NUMBER not in trial.user_attrs:
            return False
        trials[trial.user_attrs[NUMBER]] = trial
    return trials.keys() == results.keys() and all(
        trial.state.is_finished()
        and trial.params == dict(results[number].params)
        and (None if trial.state == TrialState.FAIL else tuple(trial.values)) == results[number].values
        for number, trial in trials.items()
    )


@contextlib.contextmanager
def _disk_error() -> Iterator[None]:
    """Raises the OSError (a full disk) behind Optuna's RuntimeError about its lock."""
    try:
        yield
    except RuntimeError as error:
        cause, seen = None, error.__context__
        while seen is not None:
            cause = seen if isinstance(seen, OSError) else cause
            seen = seen.__context__
        if cause is None:
            raise
        raise OSError(cause.errno, cause.strerror, cause.filename) from error
