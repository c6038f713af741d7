"""The samplers of Optuna's by the names a specification uses, each made afresh for every ask."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping

import optuna
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from sweeper.core.errors import UserError

STARTUP_TRIALS = 8
IN_A_HELPER = "gp"
"""It needs torch, and asks in a process of its own (`sweeper.search.helper`)."""


def _tpe(seed: int, point: int, trials: int) -> BaseSampler:
    return TPESampler(seed=seed, n_startup_trials=min(STARTUP_TRIALS, max(2, trials // 3)))


def _random(seed: int, point: int, trials: int) -> BaseSampler:
    return RandomSampler(seed=seed)


def _cmaes(seed: int, point: int, trials: int) -> BaseSampler:
    if importlib.util.find_spec("cmaes") is None:
        raise UserError(
            "`search.sampler: cmaes` needs the package cmaes, which is not installed: "
            "`pip install cmaes`, or name another sampler."
        )
    return CmaEsSampler(seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False)


def _qmc(seed: int, point: int, trials: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Its points are a fixed sequence: its seed must not change from ask to ask.
        made = QMCSampler(seed=0, scramble=True, independent_sampler=RandomSampler(seed=seed))
    # Optuna counts the points in the study, and a study made anew would begin the sequence again.
    made._find_sample_id = lambda study, space: point
    return made


_SAMPLERS: Mapping[str, Callable[[int, int, int], BaseSampler]] = {
    # Where there is nothing left to climb, and with several objectives.
    "climb": _tpe,
    "tpe": _tpe,
    "cmaes": _cmaes,
    "random": _random,
    "qmc": _qmc,
}


def mixed(seed: int, number: int, attempt: int) -> int:
    """Returns the seed of one ask: of the sweep's seed, the trial's number, and how many repeats it drew."""
    return (seed * 1_000_003 + number * 1_009 + attempt) % 2**32


def sampler(name: str, seed: int, number: int, attempt: int, trials: int) -> BaseSampler:
    """Returns a fresh sampler for one ask.

    Its randomness depends on nothing that a crash could lose: a resumed sweep asks the same.

    Raises:
        UserError: It needs a package that is not installed.
    """
    return _SAMPLERS[name](mixed(seed, number, attempt), number + attempt * trials, trials)
