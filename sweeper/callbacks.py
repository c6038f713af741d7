"""Deprecated alias of `sweeper.integrations`, kept for scripts written for 0.1.0."""

import warnings

from sweeper.integrations.lightning import for_lightning
from sweeper.integrations.transformers import for_transformers

__all__ = ["for_lightning", "for_transformers"]

warnings.warn(
    "sweeper.callbacks is deprecated. Import from sweeper.integrations.lightning or "
    "sweeper.integrations.transformers.",
    DeprecationWarning,
    stacklevel=2,
)
