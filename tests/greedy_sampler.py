"""The distribution `greedy-sampler`: it draws near the best trial so far, half of the time."""

from __future__ import annotations

from pathlib import Path

from distributions import install

MODULE = """\
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from sweeper.core.samplers import SamplerTraits

GREEDY = SamplerTraits(make="greedy_sampler:Greedy", why="near the best so far")


class Greedy(RandomSampler):
    def __init__(self, seed, point, trials):
        super().__init__(seed)
        self.keep = point % 2

    def sample_independent(self, study, trial, name, distribution):
        drawn = super().sample_independent(study, trial, name, distribution)
        ended = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        if not ended or len(study.directions) > 1 or not self.keep or name == "optimizer.lr":
            return drawn
        sign = 1 if study.direction.name == "MAXIMIZE" else -1
        return max(ended, key=lambda each: sign * each.values[0]).params[name]
"""


def install_greedy_sampler(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"greedy": "greedy_sampler:GREEDY"}
    return install(folder, "greedy-sampler", {"sweeper.samplers": points}, {"greedy_sampler.py": module})
