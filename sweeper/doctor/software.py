"""Checks Python and the packages by their metadata. Imports none of them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sweeper.doctor.finding import Check, State
from sweeper.system.installed import CORE

SHOWN = ("torch", "optuna", "mlflow", "nvidia-ml-py")

TESTED = {"torch": ("2.9.1", "2.13.0", "2.14.1"), "optuna": ("5.0.0",), "mlflow": ("3.17.2",)}
"""Versions that the tests pass with, the oldest first. constraints.txt pins one of each."""

# Anyone who reaches the port of `mlflow server` can read any file (CVE-2026-2614, up to 3.9) and run code
# through uploaded artifacts (CVE-2026-2651, up to 3.10), without a password.
_HOLES = " Servers of older versions have known vulnerabilities (CVE-2026-2614, CVE-2026-2651)."


def look() -> Iterator[Check]:
    """Yields a check of Python, and one for each package that is wrong; if none is, one for all."""
    try:
        demands, needed = metadata.requires(CORE) or [], metadata.metadata(CORE)["Requires-Python"]
        yield python(platform.python_version(), needed or "")
    except metadata.PackageNotFoundError:
        remedy = "Install it from its folder: `pip install .`"
        yield Check("packages", State.WARN, "sweeper is not installed; its requirements are unknown", remedy)
        return
    yield from packages(demands, installed_version)
    if installed_version("pynvml"):
        yield Check(
            "pynvml",
            State.WARN,
            "the deprecated package `pynvml` is installed and shadows nvidia-ml-py",
            "`pip uninstall pynvml`, then `pip install --force-reinstall nvidia-ml-py`",
        )


def installed_version(name: str) -> str:
    """Returns the version of a distribution, or an empty string."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def python(version: str, needed: str) -> Check:
    """Returns a check of the interpreter's version."""
    if not SpecifierSet(needed).contains(version, prereleases=True):
        return Check(
            "python",
            State.FAIL,
            f"Python {version}, but {needed} is needed",
            f"Create a virtual environment with Python {needed}",
        )
    where = "" if sys.prefix != sys.base_prefix else ", not in a virtual environment"
    return Check("python", State.OK, f"{version}{where}")


def packages(demands: Sequence[str], version_of: Callable[[str], str]) -> Iterator[Check]:
    """Yields a failure for each package that is missing or has a wrong version; else one check for all.

    Args:
        demands: Requirements as in package metadata; those of extras are skipped, but for `whole`, if any
            of that is installed.
        version_of: Returns the version of a distribution, or an empty string.
    """
    wrong = False
    is_whole = any(map(version_of, ("mlflow", "optuna")))
    for text in demands:
        try:
            demand = Requirement(text)
        except InvalidRequirement:
            continue
        if demand.marker is not None and not demand.marker.evaluate({"extra": "whole" * is_whole}):
            continue
        version = version_of(demand.name)
        # A nightly build above the minimum will do.
        if version and demand.specifier.contains(version, prereleases=True):
            continue
        wrong = True
        fact = f"{demand.name} {version} is installed" if version else f"{demand.name} is missing"
        holes = _HOLES if demand.name == "mlflow" and version else ""
        yield Check(
            demand.name,
            State.FAIL,
            f"{fact}, but {demand.name}{demand.specifier} is needed.{holes}",
            f'`pip install "{demand.name}{demand.specifier}"`',
        )
    if not wrong:
        shown = ", ".join(f"{name} {version}" for name in SHOWN if (version := version_of(name)))
        rest = "all other requirements are met"
        if not is_whole:
            rest = "watch, tune, judge and exec need no more; `pip install sweeper-torch` brings the rest"
        yield Check("packages", State.OK, f"{shown}; {rest}")
        yield from look_for_newer(version_of)


def look_for_newer(version_of: Callable[[str], str]) -> Iterator[Check]:
    """Yields a line for each package that is newer than the versions that the tests pass with."""
    for name, versions in TESTED.items():
        # Without what a build adds: 2.14.1+cu130 is 2.14.1.
        if (version := version_of(name)) and Version(Version(version).public) > Version(versions[-1]):
            text = f"{version} is newer than {versions[-1]}, the newest that sweeper is tested with"
            yield Check(name, State.OK, text)
