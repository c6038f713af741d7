"""Changes how the ranks of a training exchange their gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from .change import EXACT, NO_EDIT, Change, ReportCallback

OPTION = "gradient_as_bucket_view"


class Ddp(Change):
    """Makes gradients parts of the buckets that DistributedDataParallel exchanges, instead of copies."""

    name = "ddp"
    choices = ("views",)
    kind = EXACT
    why = "gradients are views of the buckets that ranks exchange, not copies"
    no_edit = NO_EDIT

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        return "" if facts.get("ranks", 1) > 1 else "it trains in one process"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the models that are wrapped from now on."""
        wrapper = torch.nn.parallel.DistributedDataParallel
        original = wrapper.__init__

        @functools.wraps(original)
        def init(model: Any, *args: Any, **options: Any) -> None:
            if OPTION in options:
                report(False, f"the script sets {OPTION} itself")
            else:
                options[OPTION] = True
                report(True)
            original(model, *args, **options)

        wrapper.__init__ = init
