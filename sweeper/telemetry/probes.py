"""The probes that sample a trial (`make_probes`): the built-in ones, and those of third parties.

A new built-in one is a file and a row of the table. A third party's is a class derived from `Probe`, which
`measure.probes` names. Only the thread that reads it imports it: its module might start threads, and a
process with threads must not fork.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.core.probes import THIRD_PARTY_PROBES, Probe, Reading
from sweeper.errors import UserError
from sweeper.telemetry.host.probe import HostProbe
from sweeper.telemetry.nvml.other_gpus import OtherGpus
from sweeper.telemetry.nvml.probe import NvmlProbe

BUILTIN: Mapping[str, type[Probe]] = {"host": HostProbe, "nvml": NvmlProbe}
"""What samples every trial; `OtherGpus` joins where a trial uses several."""
_TAKEN_NAMES = {*BUILTIN, OtherGpus.name}

_SERIES = re.compile(r"[a-z][a-z0-9_]*")


def make_probes(third_party: Sequence[str] = (), other_gpus: Sequence[str] = ()) -> list[Probe]:
    """Returns new probes for a trial.

    Args:
        third_party: Import strings of further probes.
        other_gpus: The GPUs that it uses besides its first, as CUDA_VISIBLE_DEVICES names them.
    """
    probes: list[Probe] = [make() for make in BUILTIN.values()]
    probes += [ThirdPartyProbe(path) for path in third_party]
    return [*probes, OtherGpus(other_gpus)] if other_gpus else probes


class ThirdPartyProbe(Probe):
    """A third party's probe: imported in the thread that reads it, given up after its first error.

    Its series start with its name, so that they cannot be confused with another probe's.
    """

    def __init__(self, path: str) -> None:
        """Imports nothing yet.

        Args:
            path: Its import string, which is its name until it is imported.
        """
        self.name = self._path = path
        self.missing: dict[str, str] = {}
        self._probe: Any = None
        self._is_given_up = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Imports the probe and opens it."""

        def begin() -> None:
            self._probe = THIRD_PARTY_PROBES.get(self._path)()
            name = self._probe.name
            if not _SERIES.fullmatch(name) or name in _TAKEN_NAMES:
                raise UserError(f"a probe must have a name of its own such as `files`, but got {name!r}.")
            self.name = name
            self._probe.open(pid, device_uuid)

        self._try(begin)

    def read(self) -> Reading:
        """Returns the current values that are valid."""
        return self._keep_valid(self._try(lambda: dict(self._probe.read())))

    def read_between_windows(self) -> Reading:
        """Returns the more expensive values that are valid."""
        return self._keep_valid(self._try(lambda: dict(self._probe.read_between_windows())))

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
            self.missing.update(self._probe.missing)
        except Exception as error:
            self._is_given_up = True
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self.missing[self._path] = f"{kind}{error}".rstrip(": ")
            return None
        return value

    def _keep_valid(self, reading: Mapping[Any, Any] | None) -> Reading:
        kept: dict[str, float] = {}
        for name, value in (reading or {}).items():
            if why := self._refusal(name, value):
                self.missing[str(name)] = why
            else:
                kept[name] = float(value)
        return kept

    def _refusal(self, name: object, value: object) -> str:
        if not (isinstance(name, str) and _SERIES.fullmatch(name) and name.startswith(f"{self.name}_")):
            return f"a series must be called {self.name}_..., in lower-case letters, digits and `_`"
        if isinstance(value, numbers.Real) and math.isfinite(value):
            return ""
        return f"a reading must be a finite number, but got {value!r:.40}"
