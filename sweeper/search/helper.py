"""Asking a sampler that needs torch, in a process of its own: the supervisor must not import it.

stdin   {"study": FILE, "name": STUDY, "seed": N, "distributions": {NAME: JSON}}
stdout  {NAME: VALUE}
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.core.config import Scalar
from sweeper.core.errors import EnvironmentStopError

TIMEOUT_SECONDS = 300.0


def ask(path: Path, name: str, seed: int, distributions: Mapping[str, BaseDistribution]) -> dict[str, Scalar]:
    """Returns what Optuna's GPSampler suggests for the study in `path`, which stays as it is.

    Raises:
        EnvironmentStopError: The process failed; its last line says why.
    """
    request = {
        "study": str(path),
        "name": name,
        "seed": seed,
        "distributions": {key: distribution_to_json(each) for key, each in distributions.items()},
    }
    done = subprocess.run(
        [sys.executable, "-m", "sweeper.search.helper"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        # A Ctrl-C is the sweep's, which waits for this.
        start_new_session=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentStopError(f"`search.sampler: gp` failed: {last}. Name another sampler.")
    params: dict[str, Scalar] = json.loads(done.stdout)
    return params


def _answer(request: Mapping[str, Any]) -> dict[str, Scalar]:
    storage = JournalStorage(JournalFileBackend(request["study"]))
    known = optuna.load_study(study_name=request["name"], storage=storage)
    copied = optuna.create_study(directions=known.directions)
    finished = (optuna.trial.TrialState.COMPLETE,)
    copied.add_trials(known.get_trials(deepcopy=False, states=finished))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        copied.sampler = optuna.samplers.GPSampler(seed=request["seed"])
    distributions = {key: json_to_distribution(each) for key, each in request["distributions"].items()}
    return dict(copied.ask(distributions).params)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(json.dumps(_answer(json.load(sys.stdin))))
