"""sweeper makes PyTorch training faster, and shows that it trains the same.

from sweeper import Pipeline, Prepared, Samples, Source, TrialConfig, UserError    # a pipeline
from sweeper import meter                                                          # a training script
from sweeper import confirm, export, judge, load, run, tune, watch                  # a notebook
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeper._version import __version__
from sweeper.script.metering import Meter, meter

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


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: a script that only meters needs nothing else."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
