"""Advises what to change in a training script so that it runs like the winning configuration."""

from sweeper.export.patch.advise import advice, advice_on
from sweeper.export.patch.change import Advice, rendered_advice

__all__ = ["Advice", "advice", "advice_on", "rendered_advice"]
