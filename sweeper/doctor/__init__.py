"""Examines whether a machine is fit for sweeps and measures what it can do."""

from sweeper.doctor.examine import examine
from sweeper.doctor.finding import Ceiling, Check, Examination, State
from sweeper.doctor.report import make_report

__all__ = ["Ceiling", "Check", "Examination", "State", "examine", "make_report"]
