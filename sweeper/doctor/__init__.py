"""Examines whether a machine is fit for sweeps and measures what it can do."""

from sweeper.doctor.examine import examine
from sweeper.doctor.finding import Ceiling, Check, Examination, State

__all__ = ["Ceiling", "Check", "Examination", "State", "examine"]
