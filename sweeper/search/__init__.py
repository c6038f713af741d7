"""Asks Optuna for configurations and tells it the results. No other package imports optuna."""

from sweeper.search.presets import Hints
from sweeper.search.searcher import Searcher, SpaceExhaustedError
from sweeper.search.study_copy import copy_study

__all__ = ["Hints", "Searcher", "SpaceExhaustedError", "copy_study"]
