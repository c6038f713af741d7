"""Imports the modules of torch that every trial needs, once in the server for all forked trials."""

from __future__ import annotations

import importlib

from sweeper.system.installed import is_whole

MODULES = (
    "numpy",
    "torch",
    # Constructing an optimizer imports torch._dynamo, which costs more than torch itself.
    "torch._dynamo",
    "torch.optim.adam",
    "torch.utils.data",
    "sweeper.trainer.measure",
    "sweeper.trainer.prepare",
    "sweeper.trainer.probe",
)


def preload() -> None:
    """Imports `MODULES`; runs no tensor operation, starts no thread, never touches CUDA.

    Imports nothing where only the core is installed: then only scripts are run, which bring their own torch.
    """
    for name in MODULES if is_whole() else ():
        importlib.import_module(name)
