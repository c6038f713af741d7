"""What every trial needs of torch, imported once in the server and inherited by forked trials."""

from __future__ import annotations

import importlib

MODULES = (
    "numpy",
    "torch",
    # Constructing an optimiser imports torch._dynamo, which costs more than torch itself.
    "torch._dynamo",
    "torch.optim.adam",
    "torch.utils.data",
    "sweeper.trainer.measure",
    "sweeper.trainer.prepare",
    "sweeper.trainer.probe",
)


def preload() -> None:
    """Imports `MODULES`; runs no tensor operation, starts no thread, never touches CUDA."""
    for name in MODULES:
        importlib.import_module(name)
