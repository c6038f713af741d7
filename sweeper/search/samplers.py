"""Makes the built-in samplers (`sweeper.core.samplers` has the table)."""

from __future__ import annotations

import importlib.util
import warnings

import optuna
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from sweeper.core.registry import resolve
from sweeper.errors import UserError

STARTUP_TRIALS = 8
LOCAL_SEARCHES = 2
"""Points from which GP optimises its suggestion; Optuna's default, 10, would take 90% of the time."""


def tpe(seed: int, point: int, trials: int) -> BaseSampler:
    """Returns Optuna's TPE, which begins with a few random points."""
    return TPESampler(seed=seed, n_startup_trials=min(STARTUP_TRIALS, max(2, trials // 3)))


def at_random(seed: int, point: int, trials: int) -> BaseSampler:
    """Returns Optuna's random sampler."""
    return RandomSampler(seed=seed)


def cmaes(seed: int, point: int, trials: int) -> BaseSampler:
    """Returns Optuna's CMA-ES.

    Raises:
        UserError: Its package is not installed.
    """
    if importlib.util.find_spec("cmaes") is None:
        raise UserError(
            "`search.sampler: cmaes` needs the package cmaes, which is not installed. "
            "Install it with `pip install cmaes`, or use another sampler."
        )
    return CmaEsSampler(seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False)


def qmc(seed: int, point: int, trials: int) -> BaseSampler:
    """Returns Optuna's Sobol sequence, at point `point`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Its points are a fixed sequence: its seed must not change from ask to ask.
        sampler = QMCSampler(seed=0, scramble=True, independent_sampler=RandomSampler(seed=seed))
    # Optuna counts the points in the study, and a new study would restart the sequence.
    sampler._find_sample_id = lambda study, space: point
    return sampler


def gp(seed: int, point: int, trials: int) -> BaseSampler:
    """Returns Optuna's Gaussian process, with fewer local searches; imports torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=seed)
    sampler._n_local_search = LOCAL_SEARCHES
    return sampler


def mix_seed(seed: int, number: int, attempt: int) -> int:
    """Returns the seed of one ask, from the sweep's seed, the trial's number and the attempt."""
    return (seed * 1_000_003 + number * 1_009 + attempt) % 2**32


def make(path: str, seed: int, point: int, trials: int) -> BaseSampler:
    """Returns a fresh sampler for one ask.

    Its randomness depends on nothing that a crash could lose: a resumed sweep gets the same suggestions.

    Args:
        path: Import string of the function that makes the sampler.
        seed: The seed of this ask (`mix_seed`).
        point: The trial's number, increased for each repeated suggestion.
        trials: Number of trials in the search.

    Raises:
        UserError: The function cannot be imported, needs a package that is not installed, or does
            not return a sampler.
    """
    sampler = resolve(path)(seed, point, trials)
    if not isinstance(sampler, BaseSampler):
        raise UserError(f"`{path}` must return an optuna.samplers.BaseSampler, but it returns {sampler!r}.")
    return sampler
