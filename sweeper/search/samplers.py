"""The samplers by the names a specification uses, each made afresh for every ask."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import optuna
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler, TPESampler

STARTUP_TRIALS = 8


def _tpe(seed: int, trials: int) -> BaseSampler:
    return TPESampler(seed=seed, n_startup_trials=min(STARTUP_TRIALS, max(2, trials // 3)))


def _qmc(seed: int, trials: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Its points are a fixed sequence: the seed must not change from ask to ask.
        return QMCSampler(seed=0, scramble=True)


_SAMPLERS: Mapping[str, Callable[[int, int], BaseSampler]] = {
    "auto": _tpe,
    "tpe": _tpe,
    "random": lambda seed, trials: RandomSampler(seed=seed),
    "qmc": _qmc,
}


def sampler(name: str, seed: int, number: int, attempt: int, trials: int) -> BaseSampler:
    """Returns a fresh sampler for one ask.

    Its randomness depends on the sweep's seed, the trial's number and how many repeats were drawn
    for it, and on nothing that a crash could lose: a resumed sweep asks the same.
    """
    mixed = (seed * 1_000_003 + number * 1_009 + attempt) % 2**32
    return _SAMPLERS[name](mixed, trials)
