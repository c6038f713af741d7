"""The table of probes that sample every trial, and those of third parties.

A new probe is one file and one row. A third party's is a class derived from `Probe`, which `measure.probes`
names. Only the thread that reads it imports it: its module might start threads, and a process with threads
must not fork.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.core.probes import PROBES, Probe, Reading
from sweeper.errors import UserError
from sweeper.telemetry.host.probe import HostProbe
from sweeper.telemetry.nvml.probe import NvmlProbe

BUILTIN: Mapping[str, type[Probe]] = {"host": HostProbe, "nvml": NvmlProbe}

_SERIES = re.compile(r"[a-z][a-z0-9_]*")


def make_probes(added: Sequence[str] = ()) -> list[Probe]:
    """Returns a new probe of each built-in kind, and of each import string in `added`."""
    return [make() for make in BUILTIN.values()] + [AddedProbe(path) for path in added]


class AddedProbe(Probe):
    """A third party's probe: imported in the thread that reads it, given up after its first error.

    Its series start with its name, so that they cannot be confused with another probe's.
    """

    def __init__(self, path: str) -> None:
        """Imports nothing yet.

        Args:
            path: Its import string, which is its name until it is imported.
        """
        self.name = self._path = path
        self._why: dict[str, str] = {}
        self.missing = self._why
        self._probe: Any = None
        self._is_given_up = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Imports the probe and opens it."""

        def begin() -> None:
            self._probe = PROBES.get(self._path)()
            name = self._probe.name
            if not _SERIES.fullmatch(name) or name in BUILTIN:
                raise UserError(f"a probe must have a name of its own such as `files`, but got {name!r}.")
            self.name = name
            self._probe.open(pid, device_uuid)

        self._try(begin)

    def read(self) -> Reading:
        """Returns the current values that are valid."""
        return self._keep_valid(self._try(lambda: dict(self._probe.read())))

    def between(self) -> Reading:
        """Returns the more expensive values that are valid."""
        return self._keep_valid(self._try(lambda: dict(self._probe.between())))

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
            value = call()
            self._why.update(self._probe.missing)
        except Exception as error:
            self._is_given_up = True
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self._why[self._path] = f"{kind}{error}".rstrip(": ")
            return None
        return value

    def _keep_valid(self, reading: Mapping[Any, Any] | None) -> Reading:
        kept: dict[str, float] = {}
        for name, value in (reading or {}).items():
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
