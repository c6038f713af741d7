"""Defines the findings of an examination: checks with a state and a remedy, and measured ceilings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sweeper.telemetry.nvml.devices import GpuFacts


class State(StrEnum):
    """`fail` stops a sweep; `warn` makes it slower, or its figures less certain."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: What was checked; several findings may share it.
        text: What was found.
        remedy: What to do about it; empty if all is well.
    """

    name: str
    state: State
    text: str
    remedy: str = ""


Look = tuple[str, Callable[[], Check]]
"""A check's name and the function that makes it."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The speed of one component alone: `cpu.matmul_fp32`, `cuda:0.memory_copy`, `loader.rows`, ..."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All findings.

    Attributes:
        devices: Name of each measured device, by the first part of its ceilings' names.
        gpus: The GPUs as NVML describes them.
        problem: Why NVML cannot be used; empty if it can.
        values: The report of the ceilings job; empty if it gave none.
    """

    checks: tuple[Check, ...]
    ceilings: tuple[Ceiling, ...]
    devices: Mapping[str, str]
    seconds: float
    gpus: tuple[GpuFacts, ...] = ()
    problem: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; warnings are allowed."""
        return not self.of(State.FAIL)

    def of(self, state: State) -> list[Check]:
        """Returns the checks in a state."""
        return [check for check in self.checks if check.state is state]


def make_check(name: str, text: str, remedies: Sequence[tuple[bool, State, str]]) -> Check:
    """Returns a check with the state and remedy of the first `(holds, state, remedy)` that holds, else ok."""
    for holds, state, remedy in remedies:
        if holds:
            return Check(name, state, text, remedy)
    return Check(name, State.OK, text)
