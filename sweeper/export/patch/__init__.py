"""What to change in a training script of one's own so that it runs as the winning configuration."""

from sweeper.export.patch.advise import advice, advice_on
from sweeper.export.patch.change import Advice, rendered_advice

__all__ = ["Advice", "advice", "advice_on", "rendered_advice"]
