"""The table of probes that sample every trial.

A new probe is one file and one row. A third-party probe is a class derived from `Probe`, registered as
an entry point in `sweeper.probes`. It is used wherever it is installed, including a cluster's workers.
The server looks for entry points once, before it forks keepers; keepers use the cached answer.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

from sweeper.core.registry import Registry
from sweeper.errors import UserError
from sweeper.telemetry.host.probe import HostProbe
from sweeper.telemetry.nvml.probe import NvmlProbe
from sweeper.telemetry.probe import Probe, Reading

BUILTIN: Mapping[str, type[Probe]] = {"host": HostProbe, "nvml": NvmlProbe}
PROBES: Registry[type] = Registry("probes", "probe", type, BUILTIN)
"""All available probes."""

_SERIES = re.compile(r"[a-z][a-z0-9_]*")


_PROBLEM = "added_probes"
"""Stands for all added probes if their names conflict; the reason appears as a missing series."""


def look_for_probes() -> None:
    """Scans installed packages once, so that forked processes need not; imports no probe.

    A third party's module might start threads, and a process with threads must not fork.
    """
    added_names()


def make_probes() -> list[Probe]:
    """Returns a new probe of each kind, built in and third-party."""
    return [make() for make in BUILTIN.values()] + [AddedProbe(name) for name in added_names()]


def added_names() -> tuple[str, ...]:
    """Returns the names of third-party probes; the first call scans installed packages."""
    try:
        return PROBES.names()[len(BUILTIN) :]
    except UserError:
        return (_PROBLEM,)


class AddedProbe(Probe):
    """A third-party probe: loaded in the thread that reads it, given up after its first error.

    Its series start with its name, so that they cannot be confused with another probe's.
    """

    def __init__(self, name: str) -> None:
        """Loads nothing yet.

        Args:
            name: Name of its entry point.
        """
        self.name = name
        self._why: dict[str, str] = {}
        self.missing = self._why
        self._probe: Any = None
        self._is_given_up = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Imports the probe and opens it."""

        def begin() -> None:
            self._probe = PROBES.get(self.name)()
            self._probe.open(pid, device_uuid)

        self._try(begin)

    def read(self) -> Reading:
        """Returns the current values that are valid."""
        return self._usable(self._try(lambda: dict(self._probe.read())))

    def between(self) -> Reading:
        """Returns the more expensive values that are valid."""
        return self._usable(self._try(lambda: dict(self._probe.between())))

    def close(self) -> None:
        """Closes the probe, after an error too."""
        if self._probe is not None:
            self._is_given_up = False
            self._try(lambda: self._probe.close())

    def _try(self, call: Callable[[], Any]) -> Any:
        """Returns the result of `call`; None if it raises, or if an earlier call did."""
        if self._is_given_up:
            return None
        try:
            found = call()
            self._why.update(self._probe.missing)
        except Exception as error:
            self._is_given_up = True
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self._why[self.name] = f"{kind}{error}".rstrip(": ")
            return None
        return found

    def _usable(self, found: Mapping[Any, Any] | None) -> Reading:
        kept: dict[str, float] = {}
        for name, value in (found or {}).items():
            if why := self._refusal(name, value):
                self._why[str(name)] = why
            else:
                kept[name] = float(value)
        return kept

    def _refusal(self, name: object, value: object) -> str:
        if not (isinstance(name, str) and _SERIES.fullmatch(name) and name.startswith(f"{self.name}_")):
            return f"a series must be called {self.name}_..., in lower-case letters, digits and `_`"
        if isinstance(value, numbers.Real) and math.isfinite(value):
            return ""
        return f"a reading must be a finite number, but got {value!r:.40}"
