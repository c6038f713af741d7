"""Runs a sampler that needs torch in a separate process; the supervisor must not import torch.

stdin, a line per question   {"sampler": [PATH, SEED, POINT, TRIALS], "directions": [...],
                              "distributions": {NAME: JSON}, "trials": [...]}
stdout, a line per answer    {NAME: VALUE}, or {"failed": WHY}
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.core.config import Scalar
from sweeper.errors import EnvironmentStopError
from sweeper.search.samplers import make
from sweeper.system.process import python_module

TIMEOUT_SECONDS = 300.0


class Helper:
    """A process that returns a sampler's suggestions; it imports torch once."""

    def __init__(
        self, name: str, directions: Sequence[str], distributions: Mapping[str, BaseDistribution]
    ) -> None:
        """Starts the process; `name` is the sampler's name in messages."""
        self._name = name
        self._request = {
            "directions": list(directions),
            "distributions": {
                key: distribution_to_json(distribution) for key, distribution in distributions.items()
            },
        }
        self._process = subprocess.Popen(
            python_module("sweeper.search.sampler_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Matrices this small do not need several threads.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # Ctrl-C must reach only the sweep, which waits for this process.
            start_new_session=True,
        )

    def ask(self, sampler: tuple[str, int, int, int], trials: Sequence[FrozenTrial]) -> dict[str, Scalar]:
        """Returns the suggestion after `trials`; running ones count as average (constant liar).

        Args:
            sampler: The arguments of `sweeper.search.samplers.make`.

        Raises:
            EnvironmentStopError: The process failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        lie = [sum(values) / len(ended) for values in zip(*(trial.values for trial in ended), strict=True)]
        holds = dict.fromkeys(ended[0].constraints, 0.0) if ended else {}
        trials = [
            {
                "params": trial.params,
                "values": trial.values if trial.state == TrialState.COMPLETE else lie,
                "constraints": trial.constraints if trial.state == TrialState.COMPLETE else holds,
            }
            for trial in (trials if ended else ())
        ]
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(
                json.dumps({"sampler": sampler, **self._request, "trials": trials}) + "\n"
            )
            self._process.stdin.flush()
            if select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)[0]:
                answer = self._process.stdout.readline()
        reply: dict[str, Scalar] = json.loads(answer or '{"failed": "its process ended or took too long"}')
        if "failed" in reply:
            raise EnvironmentStopError(
                f"`search.sampler: {self._name}` failed: {reply['failed']}. Use another sampler."
            )
        return reply

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def _answer(request: Mapping[str, Any]) -> dict[str, Scalar]:
    distributions = {key: json_to_distribution(text) for key, text in request["distributions"].items()}
    study = optuna.create_study(directions=request["directions"])
    study.add_trials(create_trial(**trial, distributions=distributions) for trial in request["trials"])
    study.sampler = make(*request["sampler"])
    return dict(study.ask(distributions).params)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for line in sys.stdin:
        try:
            reply = _answer(json.loads(line))
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
