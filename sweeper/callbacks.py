"""Deprecated: `sweeper.integrations`, under the name that 0.1.0 had for it; users' scripts import it."""

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
