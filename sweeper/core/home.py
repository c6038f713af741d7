"""Where a sweep is kept and shown unless a command names another place."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_HOME = Path("mlruns")
SHELL_URI = "MLFLOW_TRACKING_URI"
"""Environment variable of MLflow, which `--tracking-uri` takes precedence over."""


def home_option(home: Path) -> str:
    """Returns ` --home DIR`, quoted for a shell, unless it is the default."""
    return "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
