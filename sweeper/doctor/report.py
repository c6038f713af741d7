"""Makes the report that a user sends back: what was found and measured, without anything private.

Checks about the user's own folders lose their text, and every text that is left loses what could name a
person, a machine, a place or a device.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sweeper._version import __version__
from sweeper.core.codec import encode
from sweeper.doctor.finding import Check, Examination
from sweeper.doctor.software import SHOWN, installed_version
from sweeper.system.secrets import strike
from sweeper.telemetry.nvml.capabilities import Capabilities, capabilities
from sweeper.telemetry.nvml.devices import GpuFacts

SCHEMA = 1
_OF_FOLDERS = {"home", "file system", "mlflow store"}
_OF_A_JOB = "measuring"
_MIN_VALUE_LENGTH = 8
"""Characters from which a text must not contain the value of an environment variable."""
_UUID = re.compile(r"\b(?:GPU|MIG)-[\w/-]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=('[^']*'|\"[^\"]*\"|[^\s;]*)")
_QUOTED_PATH = re.compile(r"'[^'\n]*/[^'\n]*'|\"[^\"\n]*/[^\"\n]*\"")
_WITH_SLASH = re.compile(r"[^\s'\"`(),;]*/[^\s'\"`(),;]*[^\s'\"`(),;.:]")
_RATE = re.compile(r"[\w.]*\w/s")
_KEPT = {"/dev/shm", "is/are"}


def make_report(
    examination: Examination, describe: Callable[[str], Capabilities] = capabilities
) -> dict[str, Any]:
    """Returns the report of an examination, as JSON.

    Args:
        describe: Returns what NVML reports of a GPU, given its UUID.
    """
    values = examination.values
    report = {
        "schema": SCHEMA,
        "sweeper": __version__,
        "python": platform.python_version(),
        "system": {"kernel": platform.release(), "machine": platform.machine(), "libc": platform.libc_ver()},
        "packages": {name: installed_version(name) for name in SHOWN},
        "torch": values.get("torch", {}),
        "cpu": _without_uuid(values.get("cpu", {})),
        "cuda": [_without_uuid(device) for device in values.get("gpus", ())],
        "compile": values.get("compile", {}),
        "nvml": {
            "problem": examination.problem,
            "gpus": [_gpu_report(gpu, describe) for gpu in examination.gpus],
        },
        "checks": [
            {"name": check.name, "state": check.state, "text": _text(check)} for check in examination.checks
        ],
        "ceilings": encode(examination.ceilings),
        "seconds": examination.seconds,
    }
    cleaned: dict[str, Any] = _clean(encode(report), _private_words())
    return cleaned


def _without_uuid(device: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in device.items() if name != "uuid"}


def _gpu_report(gpu: GpuFacts, describe: Callable[[str], Capabilities]) -> dict[str, Any]:
    """Returns a GPU's facts and capabilities; of other processes, only their number."""
    facts = _without_uuid(encode(gpu))
    return {**facts, "foreign": len(gpu.foreign), **encode(describe(gpu.uuid))}


def _text(check: Check) -> str:
    if check.name in _OF_FOLDERS:
        return ""
    # What a job printed last may be a line of code.
    return check.text.partition(". ")[0] if check.name == _OF_A_JOB else check.text


def _private_words() -> Collection[str]:
    """Returns the names of this user and this machine, and the values of the environment."""
    names = {socket.gethostname(), platform.node(), Path.home().name, str(Path.home()), str(Path.cwd())}
    with contextlib.suppress(Exception):
        names.add(getpass.getuser())
    names |= {os.environ.get(name, "") for name in ("USER", "LOGNAME")}
    names |= {name.partition(".")[0] for name in names if "/" not in name}
    values = {value for value in os.environ.values() if len(value) >= _MIN_VALUE_LENGTH}
    return {word for word in names | values if word}


def _clean(value: Any, private: Collection[str]) -> Any:
    if isinstance(value, str):
        return clean_text(value, private)
    if isinstance(value, Mapping):
        return {key: _clean(item, private) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, private) for item in value]
    return value


def clean_text(text: str, private: Collection[str]) -> str:
    """Returns a text without UUIDs, values of variables, paths, secrets and `private` words."""
    text = _VARIABLE.sub(r"\1=<value>", _UUID.sub("<uuid>", strike(text)))
    for word in sorted(private, key=len, reverse=True):
        # A short one may be a part of another word.
        edges = ("", "") if len(word) >= _MIN_VALUE_LENGTH else (r"(?<!\w)", r"(?!\w)")
        text = re.sub(re.escape(word).join(edges), "<private>", text)
    return _WITH_SLASH.sub(_without_path, _QUOTED_PATH.sub("<path>", text))


def _without_path(token: re.Match[str]) -> str:
    word = token[0]
    return word if word in _KEPT or _RATE.fullmatch(word) else "<path>"
