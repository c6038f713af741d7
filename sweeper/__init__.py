"""sweeper makes PyTorch training faster, and shows that it trains the same.

from sweeper import Pipeline, Prepared, Samples, Source, TrialConfig, UserError    # a pipeline
from sweeper import meter                                                          # a training script
from sweeper import confirm, export, judge, load, run, tune, watch                  # a notebook
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeper._version import __version__
from sweeper.metering import Meter, meter

if TYPE_CHECKING:
    from sweeper.api import Sweep, confirm, export, judge, run, tune, watch
    from sweeper.core.config import TrialConfig
    from sweeper.dataframe import load
    from sweeper.errors import UserError
    from sweeper.trainer.pipeline import Pipeline, Prepared, Samples, Source
    from sweeper.trainer.sources import ParquetSource, ShardSource

__all__ = [
    "Meter",
    "ParquetSource",
    "Pipeline",
    "Prepared",
    "Samples",
    "ShardSource",
    "Source",
    "Sweep",
    "TrialConfig",
    "UserError",
    "__version__",
    "confirm",
    "export",
    "judge",
    "load",
    "meter",
    "run",
    "tune",
    "watch",
]

_HOMES = {
    "ParquetSource": "sweeper.trainer.sources",
    "Pipeline": "sweeper.trainer.pipeline",
    "Prepared": "sweeper.trainer.pipeline",
    "Samples": "sweeper.trainer.pipeline",
    "ShardSource": "sweeper.trainer.sources",
    "Source": "sweeper.trainer.pipeline",
    "Sweep": "sweeper.api",
    "TrialConfig": "sweeper.core.config",
    "UserError": "sweeper.errors",
    "confirm": "sweeper.api",
    "export": "sweeper.api",
    "judge": "sweeper.api",
    "load": "sweeper.dataframe",
    "run": "sweeper.api",
    "tune": "sweeper.api",
    "watch": "sweeper.api",
}

_REMOVED = {
    "sweeper.callbacks": "remove the callback, since sweeper sees Lightning and the Trainer without one",
    "sweeper.core.errors": "import from `sweeper.errors`",
    "sweeper.export": "import from `sweeper.exports`, or call the function `sweeper.export`",
    "sweeper.integrations": "remove the callback, since sweeper sees Lightning and the Trainer without one",
    "sweeper.testing": "what it had is in sweeper's repository, in tests/parts and in benchmarks/recorded",
}
"""What to do instead of importing a module that earlier versions had."""


class _Removed:
    """Comes first on `sys.meta_path`: the folder of a removed module may still hold its compiled files."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if not name.startswith("sweeper."):
            return
        for module, remedy in _REMOVED.items():
            if f"{name}.".startswith(f"{module}."):
                # One sentence, since a failed trial shows the first.
                rule = f"An import must name a module that sweeper has, but {name} was removed"
                raise ModuleNotFoundError(f"{rule}; {remedy}", name=name)


sys.meta_path.insert(0, _Removed)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: a script that only meters needs nothing else."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
