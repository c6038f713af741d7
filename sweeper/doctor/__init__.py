"""Whether this machine is fit for sweeps, and what it can do."""

from sweeper.doctor.examine import examine
from sweeper.doctor.finding import Ceiling, Check, Examination, State

__all__ = ["Ceiling", "Check", "Examination", "State", "examine"]
