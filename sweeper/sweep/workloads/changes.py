"""Implements tunes: a script whose parameters are changes, made at run time, from what it does by itself."""

from __future__ import annotations

from sweeper.core.config import TrialConfig
from sweeper.spec import SweepSpec
from sweeper.sweep.workloads.script import ScriptWork


class ChangesWork(ScriptWork):
    """A script with changes that are proved to train the same."""

    def config_for_loss(self, spec: SweepSpec, config: TrialConfig) -> TrialConfig:
        """Returns `config` with a gathered loader, if that is among the changes."""
        return spec.trained_sooner(config)


CHANGES = ChangesWork()
