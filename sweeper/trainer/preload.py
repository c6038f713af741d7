"""Imports the modules of torch that every trial needs, once in the server for all forked trials."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

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

    Imports nothing without torch: then only scripts are run, which bring their own.
    """
    for name in MODULES if find_spec("torch") is not None else ():
        importlib.import_module(name)
