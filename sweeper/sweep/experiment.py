"""Describes a sweep as a whole to the tracker: its device, its versions, its data and its result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper._version import __version__
from sweeper.results.decision_lines import decision_lines
from sweeper.results.numbers.summary import Summary
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import varied_names
from sweeper.tracking import Dataset, SweepInfo

COMMIT_TAG = "mlflow.source.git.commit"
DRIVER = Path("/sys/module/nvidia/version")
_SECRET = re.compile("token|passw|secret|credential|key$", re.IGNORECASE)


def info_of(
    journal: Journal, spec: SweepSpec, marks: Mapping[str, Any], about: Mapping[str, Any]
) -> SweepInfo:
    """Returns a tracker's description of a sweep."""
    tags = {"sweeper.version": about.get("sweeper", ""), "sweeper.driver": about.get("driver", "")}
    # A script may use a different PyTorch from sweeper's.
    tags["sweeper.torch"] = str(marks["torch"]) if spec.traits.uses_own_torch else ""
    return SweepInfo(
        name=journal.name,
        device=about["device"],
        fingerprint=str(marks["code"]),
        pipeline=shlex.join(spec.traits.words(spec)),
        data=", ".join(f"{key}: {value}" for key, value in public_data(spec.data).items()),
        synthetic=about["synthetic"],
        varied=varied_names(spec),
        searched=tuple(spec.varied_names()),
        is_recorded=spec.traits.is_of_changes,
        dataset=_dataset(spec, marks),
        provenance={**tags, COMMIT_TAG: about.get("commit", "")},
    )


def provenance() -> dict[str, str]:
    """Returns the versions that a sweep starts with: sweeper's, the driver's and the user's commit."""
    versions = {"sweeper": __version__}
    with contextlib.suppress(OSError):
        versions["driver"] = DRIVER.read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=2, check=True
        )
        versions["commit"] = done.stdout.strip()
    return versions


def public_data(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns the data section for publication, without anything that looks like a secret."""
    return {
        key: "***" if _SECRET.search(key) else re.sub(r"(://)[^/\s]*@", r"\1", str(value))
        for key, value in data.items()
    }


def _dataset(spec: SweepSpec, marks: Mapping[str, Any]) -> Dataset | None:
    if "data" not in marks:
        return None  # A script loads its data itself.
    shown = public_data(spec.data)
    source = shown.get("path") or shown.get("source") or " ".join(spec.traits.words(spec))
    digest = hashlib.sha256(json.dumps(marks["data"], sort_keys=True, default=list).encode()).hexdigest()
    return Dataset(name=source.rstrip("/").rpartition("/")[2] or source, digest=digest[:16], source=source)


def note_of(summary: Summary) -> str:
    """Returns Markdown for the reader of the experiment: the decision first, then what to do next."""
    first, *lines = (line.strip() for line in decision_lines(summary))
    parts = [f"**{first.removeprefix(f'{summary.name}: ')}**", *lines]
    if summary.winner is not None:
        parts.append(f"Use it: `sweeper export {summary.name}`.")
    ended = [record.outcome.finished_at for record in summary.records if record.outcome is not None]
    if ended:
        counted = ", ".join(f"{count} {kind}" for kind, count in summary.counts.items())
        parts.append(
            f"Ran {_utc_time(min(ended))} to {_utc_time(max(ended))} UTC;"
            f" searched trials: {counted or 'none'}."
        )
    return "\n\n".join(parts)


def _utc_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
