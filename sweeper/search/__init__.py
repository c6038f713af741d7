"""Asks Optuna for configurations and tells it the results. No other package imports optuna."""

from sweeper.search.presets import Hints
from sweeper.search.searcher import Searcher, SpaceExhaustedError
from sweeper.search.study_copy import Mirror, NoMirror, StudyMirror, compare_study, with_driver

__all__ = [
    "Hints",
    "Mirror",
    "NoMirror",
    "Searcher",
    "SpaceExhaustedError",
    "StudyMirror",
    "compare_study",
    "with_driver",
]
