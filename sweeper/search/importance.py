"""Which parameters decided what the trials reached: their shares, by Optuna's PED-ANOVA."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import optuna
from optuna.trial import FrozenTrial, create_trial

from sweeper.core.config import Scalar
from sweeper.core.record import SearchResult
from sweeper.search.distributions import distribution
from sweeper.spec import Parameter, SweepSpec
from sweeper.spec.space import acts

FEWEST_TRIALS = 8


def importance(spec: SweepSpec, told: Mapping[int, SearchResult]) -> dict[str, float]:
    """Returns how much each parameter decided whether a trial is among the best, most important first.

    Trials that are not feasible count as the search was told of them: with the worst value so far.
    With several objectives the best are those nearest to the Pareto front. A parameter that `when`
    put out of effect says nothing about that trial.

    Args:
        told: What the search was told, by trial number. A trial may lack names of the space: what the
            device cannot do has left it.

    Returns:
        Shares that sum to 1, of the parameters of which more than one value was tried; empty where
        fewer than `FEWEST_TRIALS` trials say anything, or they say all the same.
    """
    trials = [_frozen(spec.space, each) for _, each in sorted(told.items()) if each.values is not None]
    tried: dict[str, set[Scalar]] = {}
    for trial in trials:
        for name, value in trial.params.items():
            tried.setdefault(name, set()).add(value)
    # A constant would get a share, too: with few trials the estimates at the top and of all differ.
    varied = [name for name in spec.space if len(tried.get(name, ())) > 1]
    if len(trials) < FEWEST_TRIALS or not varied or len({tuple(trial.values) for trial in trials}) < 2:
        return {}
    study = optuna.create_study(directions=[objective.direction for objective in spec.objectives])
    study.add_trials(trials)
    with warnings.catch_warnings():
        # Of parameters that had an effect in one trial only; they count as nothing then.
        warnings.simplefilter("ignore", UserWarning)
        # Without a `target`, which it would minimise, it follows the directions of the study.
        found = _evaluator().evaluate(study, varied)
    total = sum(found.values())
    return {name: float(value / total) for name, value in found.items()} if total else {}


@cache
def _evaluator() -> Any:
    """Returns Optuna's PED-ANOVA, less the two seconds in which its package imports scikit-learn.

    That is an option of Optuna's, for evaluators which are not used here; whoever wants those later finds
    the package as it is.
    """
    if "sklearn" in sys.modules:
        from optuna.importance import PedAnovaImportanceEvaluator

        return PedAnovaImportanceEvaluator()
    blocked: dict[str, Any] = sys.modules
    blocked["sklearn"] = None
    try:
        from optuna.importance import PedAnovaImportanceEvaluator
    finally:
        for name in [name for name in blocked if name == "sklearn" or name.startswith("optuna.importance")]:
            del blocked[name]
    return PedAnovaImportanceEvaluator()


def _frozen(space: Mapping[str, Parameter], told: SearchResult) -> FrozenTrial:
    params = {
        name: told.params[name]
        for name, parameter in space.items()
        if name in told.params and parameter.contains(told.params[name]) and acts(name, space, told.params)
    }
    return create_trial(
        values=told.values,
        params=params,
        distributions={name: distribution(space[name]) for name in params},
    )
