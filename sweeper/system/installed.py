"""Says what of sweeper is installed: the core, or the whole with torch, Optuna, MLflow and pandas."""

from __future__ import annotations

from importlib.util import find_spec

CORE = "sweeper-torch-core"
"""Name of the distribution that has the code."""
WHOLE = frozenset(
    {
        *("torch", "optuna", "mlflow", "pandas", "pyarrow", "numpy", "safetensors", "scipy"),
        *("plotly", "fsspec", "jinja2"),
    }
)
"""Modules that only the whole brings (`project.optional-dependencies.whole` of pyproject.toml)."""


def is_whole() -> bool:
    """Returns whether all of it is here. The core may be beside a training's own torch and numpy."""
    return all(find_spec(name) is not None for name in WHOLE)


def missing_line(error: BaseException) -> str:
    """Returns what to install if an error is that a module of the whole is missing; else an empty string."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in WHOLE:
        return ""
    return f"{name} is not installed here. Install the whole of sweeper: `pip install sweeper-torch`"
